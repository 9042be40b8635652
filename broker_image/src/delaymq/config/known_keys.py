"""Keys of RocketMQ 4.9 that are not settings here: those without a meaning, and those that may not be overlooked."""

from __future__ import annotations

# Thread pools, page-cache tricks, Netty's settings, replication's details: accepted, so that a broker.conf works as
# it is, and reported.
WITHOUT_MEANING = frozenset(
    """
    abortFile adminBrokerThreadPoolNums autoDeleteUnusedStats bitMapLengthConsumeQueueExt brokerFastFailureEnable
    channelNotActiveInterval cleanFileForciblyEnable cleanResourceInterval clientAsyncSemaphoreValue
    clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientIP
    clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterTest
    commercialBaseCount commercialBigCount commercialEnable commercialTimerCount commercialTransCount
    commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog commitLogReputFromOffset
    compressedRegister configStorePath connectTimeoutMillis consumerFallbehindThreshold consumerManageThreadPoolNums
    consumerManagerThreadPoolQueueCapacity debugLockEnable deleteCommitLogFilesInterval
    deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly disableConsumeIfConsumerReadSlowly
    diskFallRecorded diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio duplicationEnable enableCalcFilterBitMap
    enableConsumeQueueExt enableDetailStat enableLmq enableMultiDispatch enableScheduleMessageStats
    endTransactionPoolQueueCapacity endTransactionThreadPoolNums expectConsumerNumUseFilter
    fastFailIfNoBufferInStorePool fetchNamesrvAddrByAddressServer filterDataCleanTimeSpan filterServerNums
    filterSupportRetry flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
    flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval
    flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile forceRegister haHousekeepingInterval haMasterAddress
    haSendHeartbeatInterval haSlaveFallbehindMax haTransferBatchSize heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode instanceName litePullMessageThreadPoolNums
    litePullThreadPoolQueueCapacity logicalDiskSpaceCleanForciblyThreshold mappedFileSizeConsumeQueueExt
    maxDelayTime maxDeleteFilesNum maxErrorRateOfBloomFilter maxLmqConsumeQueueNum messageIndexSafe
    messageStorePlugIn offsetCheckInSlave osPageCacheBusyTimeOutMills processReplyMessageThreadPoolNums
    productEnvName pullMessageThreadPoolNums pullThreadPoolQueueCapacity putMsgIndexHightWater
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity redeleteHangedFileInterval replicasPerDiskPartition
    replyThreadPoolQueueCapacity rocketmqHome scheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked sendMessageThreadPoolNums sendThreadPoolQueueCapacity
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads startAcceptSendRequestTimeStamp
    storeCheckpoint storePathDLedgerCommitLog storeReplyMessageEnable traceTopicName transferMsgByHeap
    transientStorePoolEnable transientStorePoolSize useEpollNativeSelector useReentrantLockWhenPutMessage useTLS
    vipChannelEnabled waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
    waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue warmMapedFileEnable writeBufferHighWaterMark
    writeBufferLowWaterMark
    """.split()  # noqa: SIM905  (a list of 120 quoted words is harder to read)
)

# Leaving one of these aside would break what the configuration promises: key → (values that are harmless, why).
REFUSED = {
    "aclEnable": ({"false"}, "there is no access control yet: set it to false, and keep the ports private"),
    "brokerRole": ({"ASYNC_MASTER"}, "there is no replication yet: write ASYNC_MASTER"),
    "storePathCommitLog": (set[str](), "the log is always in storePathRootDir/commitlog: remove the key"),
    "storePathConsumeQueue": (set[str](), "the queues are always in storePathRootDir/consumequeue: remove the key"),
    "storePathIndex": (set[str](), "the index is always in storePathRootDir/index: remove the key"),
    "readOnlyCommitLogStorePaths": (set[str](), "a store has one directory here: remove the key"),
}
