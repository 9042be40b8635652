"""Bodies that an administrator receives from a consumer through its broker."""

from enum import StrEnum

from delaymq.protocol.bodies.base import Body, MessageQueue, written
from delaymq.protocol.bodies.clients import SubscriptionData
from delaymq.protocol.integers import Int32, Int64


class ProcessQueueInfo(Body):
    """A queue assigned to a consumer. Unknown offsets and times in ms are 0; `droped` is the name on the wire."""

    commit_offset: Int64 = written(int)
    cached_msg_min_offset: Int64 = written(int)
    cached_msg_max_offset: Int64 = written(int)
    cached_msg_count: Int32 = written(int)
    cached_msg_size_in_mi_b: Int32 = written(int, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: Int64 = written(int)
    transaction_msg_max_offset: Int64 = written(int)
    transaction_msg_count: Int32 = written(int)
    """Messages in the handler of an ordered consumer."""
    locked: bool = written(bool)
    try_unlock_times: Int64 = written(int)
    last_lock_timestamp: Int64 = written(int)
    droped: bool = written(bool)
    last_pull_timestamp: Int64 = written(int)
    last_consume_timestamp: Int64 = written(int)


class ConsumeStatus(Body):
    """Statistics of a consumer for one topic: times in ms, rates per second in the last minute, failures in an hour."""

    pull_rt: float = written(float, name="pullRT")
    pull_tps: float = written(float, name="pullTPS")
    consume_rt: float = written(float, name="consumeRT")
    consume_ok_tps: float = written(float, name="consumeOKTPS")
    consume_failed_tps: float = written(float, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = written(int)


class ConsumerRunningInfo(Body):
    """Response body of 307."""

    properties: dict[str, str] = written(dict)
    subscription_set: list[SubscriptionData] = written(list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = written(dict)
    status_table: dict[str, ConsumeStatus] = written(dict)
    jstack: str | None = None


class ConsumeResult(StrEnum):
    """Result of a handler."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


class ConsumeDirectlyResult(Body):
    """Response body of 309; `spent_time_mills`, the name on the wire, is in ms."""

    order: bool = written(bool)
    auto_commit: bool = written(lambda: True)
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: Int64 = written(int)
