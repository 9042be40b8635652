"""Keys of RocketMQ 4.9 that are not settings here: keys without a meaning, and keys that are rejected."""

from __future__ import annotations

from typing import NamedTuple

_ASIDE = {
    "thread pools and queues of the Java broker; here, one event loop serves all requests": """
        adminBrokerThreadPoolNums clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity
        consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity endTransactionPoolQueueCapacity
        endTransactionThreadPoolNums heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity
        litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums
        putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity
        replyThreadPoolQueueCapacity sendMessageThreadPoolNums startAcceptSendRequestTimeStamp
        useReentrantLockWhenPutMessage waitTimeMillsInLitePullQueue
        """,
    "settings of Netty; the limits here are `maxConnections` and `channelIdleMs`": """
        channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
        clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
        clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads
        connectTimeoutMillis serverAsyncSemaphoreValue serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds
        serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
        serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads transferMsgByHeap useEpollNativeSelector
        writeBufferHighWaterMark writeBufferLowWaterMark
        """,
    "settings for writing, mapping and deleting files; here, the log is synced every `flushIntervalCommitLog`": """
        cleanFileForciblyEnable cleanResourceInterval commitCommitLogLeastPages commitCommitLogThoroughInterval
        commitIntervalCommitLog debugLockEnable deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
        destroyMapedFileIntervalForcibly fastFailIfNoBufferInStorePool flushCommitLogLeastPages
        flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
        flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval flushIntervalConsumeQueue
        flushLeastPagesWhenWarmMapedFile messageIndexSafe putMsgIndexHightWater redeleteHangedFileInterval
        transientStorePoolEnable transientStorePoolSize warmMapedFileEnable
        """,
    "settings of RocketMQ's slaves; here, a replica counts until it is behind for `haReplicaTimeoutMs`, however many\
 bytes it lacks, and never corrects offsets": """
        duplicationEnable haSlaveFallbehindMax offsetCheckInSlave
        """,
    "settings of RocketMQ's filter optimisations; here, messages are matched directly": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap enableConsumeQueueExt expectConsumerNumUseFilter
        filterDataCleanTimeSpan filterServerNums mappedFileSizeConsumeQueueExt
        maxErrorRateOfBloomFilter
        """,
    "RocketMQ's statistics and flow control; see the [metrics](http.md#metrics)": """
        autoDeleteUnusedStats commercialBaseCount commercialBigCount commercialEnable commercialTimerCount
        commercialTransCount diskFallRecorded
        enableDetailStat enableScheduleMessageStats highSpeedMode isolateLogEnable
        """,
    "settings for the delivery of delayed messages; here, each message is delivered when it is due": """
        enableScheduleAsyncDeliver maxDelayTime scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked
        """,
    "RocketMQ's own files, names and lookups": """
        brokerConfigPath configStorePath productEnvName rocketmqHome
        rmqAddressServerDomain rmqAddressServerSubGroup storePathDLedgerCommitLog
        """,
    "settings of batches and light queues, which have other limits or none here": """
        enableBatchPush isEnableBatchPush maxLmqConsumeQueueNum maxMsgsNumBatch
        """,
    "common in configuration files, although not keys of RocketMQ 4.9": """
        abortFile checkTransactionMessageEnable clientIP commitLogReputFromOffset instanceName
        logicalDiskSpaceCleanForciblyThreshold mapedFileSizeCommitLog mapedFileSizeConsumeQueue maxDeleteFilesNum
        replicasPerDiskPartition scheduleAsyncDeliver storeCheckpoint traceTopicName vipChannelEnabled
        """,
}
"""Keys that are accepted, so that an existing broker.conf works unchanged, and reported: reason → keys."""
WITHOUT_MEANING = {key: why for why, keys in _ASIDE.items() for key in keys.split()}
"""Key → reason why it has no meaning here."""


class Refusal(NamedTuple):
    """A key that must not be ignored silently."""

    harmless: frozenset[str]
    """Accepted values in lower case, which change nothing; an empty value is always accepted."""
    why: str
    """Reason, and what to do instead."""


def _refusal(why: str, *harmless: str) -> Refusal:
    return Refusal(frozenset(harmless) | {""}, why)


NO_DLEDGER = "DLedger is not supported: remove the key"
_NO_LIGHT_QUEUES = "light queues are not supported: set it to false"

REFUSED = {
    "clusterTest": _refusal(
        "routes are not looked up in another environment's NameServer: set it to false, and add this NameServer to"
        " the namesrvAddr of that environment's brokers",
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
        "address servers are not supported: set it to false, and name the NameServers in namesrvAddr", "false"
    ),
    "messageStorePlugIn": _refusal("Java plug-ins are not supported: remove the key"),
    "readOnlyCommitLogStorePaths": _refusal("a store has a single directory: remove the key"),
    "storePathCommitLog": _refusal("the log is always in storePathRootDir/commitlog: remove the key"),
    "storePathConsumeQueue": _refusal("the queues are always in storePathRootDir/consumequeue: remove the key"),
    "storePathIndex": _refusal("the index is always in storePathRootDir/index: remove the key"),
}
"""Keys that are rejected, since ignoring one of them would break a promise of the configuration."""
FOLDERS = {"storePathCommitLog": "commitlog", "storePathConsumeQueue": "consumequeue", "storePathIndex": "index"}
"""Keys that are accepted if they name the folder that is used anyway, as in most broker.conf files."""


def is_dledger(key: str) -> bool:
    """Return whether a key belongs to DLedger, in any of its spellings."""
    return "dledger" in key.lower() or "dleger" in key.lower()
