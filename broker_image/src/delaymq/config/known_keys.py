"""Keys of RocketMQ 4.9 that are not settings here: those without a meaning, and those that may not be overlooked."""

from __future__ import annotations

from typing import NamedTuple

# Accepted, so that a broker.conf works as it is, and reported: why → the keys.
_ASIDE = {
    "threads and queues of a Java broker; one event loop serves all requests here": """
        adminBrokerThreadPoolNums clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity
        consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity endTransactionPoolQueueCapacity
        endTransactionThreadPoolNums heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity
        litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums
        putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity
        replyThreadPoolQueueCapacity sendMessageThreadPoolNums startAcceptSendRequestTimeStamp
        useReentrantLockWhenPutMessage waitTimeMillsInLitePullQueue
        """,
    "Netty's settings; `maxConnections` and `channelIdleMs` are the limits here": """
        channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
        clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
        clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads
        connectTimeoutMillis serverAsyncSemaphoreValue serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds
        serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
        serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads transferMsgByHeap useEpollNativeSelector
        writeBufferHighWaterMark writeBufferLowWaterMark
        """,
    "how RocketMQ writes, maps and deletes files; here the log is synced each `flushIntervalCommitLog`": """
        cleanFileForciblyEnable cleanResourceInterval commitCommitLogLeastPages commitCommitLogThoroughInterval
        commitIntervalCommitLog debugLockEnable deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
        destroyMapedFileIntervalForcibly fastFailIfNoBufferInStorePool flushCommitLogLeastPages
        flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
        flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval flushIntervalConsumeQueue
        flushLeastPagesWhenWarmMapedFile messageIndexSafe putMsgIndexHightWater redeleteHangedFileInterval
        transientStorePoolEnable transientStorePoolSize warmMapedFileEnable
        """,
    "replication's details; there is none yet": """
        duplicationEnable haHousekeepingInterval haMasterAddress haSendHeartbeatInterval haSlaveFallbehindMax
        haTransferBatchSize offsetCheckInSlave slaveTimeout
        """,
    "helpers of RocketMQ's filters; messages are compared directly here": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap enableConsumeQueueExt expectConsumerNumUseFilter
        filterDataCleanTimeSpan filterServerNums mappedFileSizeConsumeQueueExt
        maxErrorRateOfBloomFilter
        """,
    "RocketMQ's statistics and throttles; see the [metrics](http.md#metrics)": """
        autoDeleteUnusedStats commercialBaseCount commercialBigCount commercialEnable commercialTimerCount
        commercialTransCount diskFallRecorded
        enableDetailStat enableScheduleMessageStats highSpeedMode isolateLogEnable
        """,
    "how RocketMQ hands delayed messages over; here each is handed over when it is due": """
        enableScheduleAsyncDeliver maxDelayTime scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked
        """,
    "RocketMQ's own files, names and look-ups": """
        brokerConfigPath configStorePath productEnvName rocketmqHome
        rmqAddressServerDomain rmqAddressServerSubGroup storePathDLedgerCommitLog
        """,
    "batches and light queues, which have limits of their own or none here": """
        enableBatchPush isEnableBatchPush maxLmqConsumeQueueNum maxMsgsNumBatch
        """,
    "often seen in files, but no key of RocketMQ 4.9 either": """
        abortFile checkTransactionMessageEnable clientIP commitLogReputFromOffset diskSpaceCleanForciblyRatio
        diskSpaceWarningLevelRatio instanceName logicalDiskSpaceCleanForciblyThreshold mapedFileSizeCommitLog
        mapedFileSizeConsumeQueue maxDeleteFilesNum replicasPerDiskPartition scheduleAsyncDeliver
        storeCheckpoint traceTopicName vipChannelEnabled
        """,
}
WITHOUT_MEANING = {key: why for why, keys in _ASIDE.items() for key in keys.split()}
"""Key → why it means nothing here."""


class Refusal(NamedTuple):
    """A key that may not be overlooked."""

    harmless: frozenset[str]
    """Values, in small letters, that ask for nothing; an empty one never does."""
    why: str
    """What to do instead."""


def _refusal(why: str, *harmless: str) -> Refusal:
    return Refusal(frozenset(harmless) | {""}, why)


NO_DLEDGER = "there is no dLedger here: remove the key"
_NO_LIGHT_QUEUES = "there are no light queues here: set it to false"

# Leaving one of these aside would break what the configuration promises.
REFUSED = {
    "brokerRole": _refusal("there is no replication yet: write ASYNC_MASTER", "async_master"),
    "clusterTest": _refusal(
        "no other environment's NameServer is asked for routes here: set it to false, and name this NameServer in the"
        " namesrvAddr of that environment's brokers too",
        "false",
    ),
    "enableDLegerCommitLog": _refusal(NO_DLEDGER, "false"),
    "dLegerGroup": _refusal(NO_DLEDGER),
    "dLegerPeers": _refusal(NO_DLEDGER),
    "dLegerSelfId": _refusal(NO_DLEDGER),
    "preferredLeaderId": _refusal(NO_DLEDGER),
    "enableLmq": _refusal(_NO_LIGHT_QUEUES, "false"),
    "enableMultiDispatch": _refusal(_NO_LIGHT_QUEUES, "false"),
    "fetchNamesrvAddrByAddressServer": _refusal(
        "no address server is asked here: set it to false, and name the NameServers in namesrvAddr", "false"
    ),
    "messageStorePlugIn": _refusal("Java plug-ins cannot be loaded here: remove the key"),
    "readOnlyCommitLogStorePaths": _refusal("a store has one directory here: remove the key"),
    "storePathCommitLog": _refusal("the log is always in storePathRootDir/commitlog: remove the key"),
    "storePathConsumeQueue": _refusal("the queues are always in storePathRootDir/consumequeue: remove the key"),
    "storePathIndex": _refusal("the index is always in storePathRootDir/index: remove the key"),
}
FOLDERS = {"storePathCommitLog": "commitlog", "storePathConsumeQueue": "consumequeue", "storePathIndex": "index"}
"""Keys that are harmless where they name the folder that is used anyway, as in most broker.conf."""


def is_dledger(key: str) -> bool:
    """Whether a key is one of dLedger's, however it is spelt."""
    return "dledger" in key.lower() or "dleger" in key.lower()
