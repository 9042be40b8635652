"""What a consumer tells an administrator about itself, by way of its broker."""

from enum import StrEnum

from delaymq.protocol.bodies.base import Body, MessageQueue, written
from delaymq.protocol.bodies.clients import SubscriptionData
from delaymq.protocol.integers import Int32, Int64


class ProcessQueueInfo(Body):
    """One queue that a consumer reads. Offsets and times in ms are 0 where there is none; `droped` is the wire's."""

    commit_offset: Int64 = written(int)
    cached_msg_min_offset: Int64 = written(int)
    cached_msg_max_offset: Int64 = written(int)
    cached_msg_count: Int32 = written(int)
    cached_msg_size_in_mi_b: Int32 = written(int, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: Int64 = written(int)
    transaction_msg_max_offset: Int64 = written(int)
    transaction_msg_count: Int32 = written(int)
    """Of an ordered consumer: messages at its handler."""
    locked: bool = written(bool)
    try_unlock_times: Int64 = written(int)
    last_lock_timestamp: Int64 = written(int)
    droped: bool = written(bool)
    last_pull_timestamp: Int64 = written(int)
    last_consume_timestamp: Int64 = written(int)


class ConsumeStatus(Body):
    """How a consumer gets on with one topic: times in ms, rates a second of the last minute, failures of an hour."""

    pull_rt: float = written(float, name="pullRT")
    pull_tps: float = written(float, name="pullTPS")
    consume_rt: float = written(float, name="consumeRT")
    consume_ok_tps: float = written(float, name="consumeOKTPS")
    consume_failed_tps: float = written(float, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = written(int)


class ConsumerRunningInfo(Body):
    """Answer to 307."""

    properties: dict[str, str] = written(dict)
    subscription_set: list[SubscriptionData] = written(list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = written(dict)
    status_table: dict[str, ConsumeStatus] = written(dict)
    jstack: str | None = None


class ConsumeResult(StrEnum):
    """How a handler ended."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


class ConsumeDirectlyResult(Body):
    """Answer to 309; `spent_time_mills` is the wire's name for ms."""

    order: bool = written(bool)
    auto_commit: bool = written(lambda: True)
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: Int64 = written(int)
