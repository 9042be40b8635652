"""Options of the client, its producers and its consumers: frozen, keyword-only, times in ms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from delaymq.client.credentials import Credentials
from delaymq.client.tls import TlsOptions

_BAD_TIMESTAMP = "consume_timestamp_ms must be a time in ms since 1970, or 0 for half an hour ago, not {}"


class ConsumeFrom(StrEnum):
    """Start position of a group in a queue without a stored offset.

    By RocketMQ's rule, with clustering all of them start at offset 0 of a young queue: one whose first message still
    exists and counts as in memory (the broker's accessMessageInMemoryMaxRatio).
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(StrEnum):
    """Distribution of messages: each to one member of the group, or to every member."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class Allocation(StrEnum):
    """Strategy that assigns a topic's queues to the members of a group; it must be the same for all members."""

    AVERAGELY = "AVG"
    """Consecutive queues: of 4 queues, the first of two members is assigned 0 and 1."""
    CIRCLE = "AVG_BY_CIRCLE"
    """Alternating queues: of 4 queues, the first of two members is assigned 0 and 2."""


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Options that all producers and consumers of a client share."""

    instance_name: str = ""
    """Last part of the client id. Empty: derived from process id and time, and therefore unique."""
    request_timeout_ms: int = 3_000
    """Timeout of requests for which no other timeout is specified."""
    connect_timeout_ms: int = 3_000
    """Timeout for establishing a connection."""
    route_interval_ms: int = 30_000
    """Interval between updates of known routes."""
    heartbeat_interval_ms: int = 30_000
    """Interval between heartbeats, which register the client's groups with brokers. Brokers remove a client after 120 s
    without a heartbeat."""
    credentials: Credentials | None = None
    """Account that signs every request, for brokers with access control. None: requests are not signed."""
    tls: TlsOptions | None = None
    """TLS options for connections to brokers and NameServers. None: plaintext."""
    delay_table_ms: int = 30_000
    """Time for which a broker's delay level table is cached. After a change on the broker, delays may follow the
    old table for this time."""

    def __post_init__(self) -> None:
        _positive(self)


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Options of a producer."""

    send_timeout_ms: int = 3_000
    """Timeout of a send, including all its attempts."""
    retries: int = 2
    """Number of attempts after the first one, on another broker if one is available. 0: a message is never sent
    twice."""
    retry_unsafe: bool = False
    """Also retry if a broker has stored the message but could not flush or replicate it in time. The message may then
    be stored twice (RocketMQ: retryAnotherBrokerWhenNotStoreOK)."""
    compress_above_bytes: int = 4_096
    """Bodies above this size are compressed (zlib) if this makes them smaller. Batches are never compressed."""
    max_message_bytes: int = 4 * 1024 * 1024
    """Maximum size of a message, checked before it is sent. The default is the broker's default limit
    (maxMessageSize)."""
    new_topic_queues: int = 4
    """Number of queues of a topic that the broker creates at the first send."""
    max_unanswered_sends: int = 5_000
    """Maximum number of concurrent sends. Further sends wait within their timeouts, which prevents a slow broker from
    exhausting memory."""
    max_unanswered_bytes: int = 64 * 1024 * 1024
    """The same limit in bytes of bodies. A single larger body is sent on its own."""
    latency_faults: bool = False
    """Whether to avoid brokers for a while after they were slow or failed, as long as another broker has the topic
    (RocketMQ: sendLatencyFaultEnable). Sends with a queue or an ordering key are not affected."""
    fault_latencies_ms: tuple[int, ...] = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
    """Latencies at or above which a broker is avoided, in ascending order. Each corresponds to a value of
    `fault_pauses_ms`. For each send, the highest of these values that its latency reached applies."""
    fault_pauses_ms: tuple[int, ...] = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
    """Time for which a broker is avoided after a send that reached the corresponding latency."""
    fault_failure_ms: int = 30_000
    """Latency that is assumed for a failed send. With the default tables, its broker is avoided for 10 min."""
    enable_trace: bool = False
    """Whether to trace the messages that are sent: see `trace_topic`."""
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    """Topic to which traces are sent, for mqadmin queryMsgTraceById and RocketMQ's Dashboard."""

    def __post_init__(self) -> None:
        if self.retries < 0 or self.compress_above_bytes < 0:
            raise ValueError("retries and compress_above_bytes cannot be negative")
        if len(self.fault_latencies_ms) != len(self.fault_pauses_ms):
            raise ValueError("fault_latencies_ms and fault_pauses_ms must have the same number of values")
        if list(self.fault_latencies_ms) != sorted(self.fault_latencies_ms) or min(self.fault_pauses_ms, default=0) < 0:
            raise ValueError("fault_latencies_ms must be in ascending order, and fault_pauses_ms cannot be negative")
        _positive(self, "retries", "compress_above_bytes")


@dataclass(frozen=True, kw_only=True)
class TransactionOptions(ProducerOptions):
    """Options of a transactional producer: those of any producer, and those of its transactions."""

    check_concurrency: int = 20
    """Maximum number of concurrent checks by the listener."""
    max_open_checks: int = 2_000
    """Maximum number of running and queued checks. The broker repeats checks that exceed it (RocketMQ:
    checkRequestHoldMax)."""
    close_timeout_ms: int = 10_000
    """Time for which close() waits for running local transactions and checks."""


@dataclass(frozen=True, kw_only=True)
class PushConsumerOptions:
    """Options of a push consumer. Where RocketMQ has the same setting, the default is the same."""

    model: MessageModel = MessageModel.CLUSTERING
    """Distribution of messages: each to one member of the group, or to every member."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Start position in a queue for which the broker (with broadcasting, the file of offsets) has no offset. Except
    with broadcasting, such a queue is always consumed from its first message if that message has not been deleted and
    is so recent that the broker assumes it is still in memory."""
    consume_timestamp_ms: int = 0
    """With ConsumeFrom.TIMESTAMP: start with the first message stored at or after this time. 0: half an hour before
    now."""
    allocation: Allocation = Allocation.AVERAGELY
    """Strategy that assigns queues to the group's members. It must be the same for all members."""
    ordered: bool = False
    """Whether to handle the messages of a queue one at a time, with each queue locked for one member of the group."""
    concurrency: int = 20
    """Maximum number of concurrent handlers."""
    batch: int = 1
    """Maximum number of messages that the handler of a BatchPushConsumer receives. It receives those that are
    available; the consumer never waits for more."""
    max_reconsume_times: int = -1
    """Number of retries before a message becomes a dead letter. -1: 16, or unlimited if `ordered`."""
    retry_delay_level: int = 0
    """Delay level of all retries. 0: the broker decides (level 3, then one level higher each time)."""
    consume_timeout_ms: int = 900_000
    """Time after which the message of a running handler is sent back to the broker, which allows the offset of its
    queue to advance (not if `ordered`)."""
    pull_batch: int = 32
    """Maximum number of messages per pull."""
    suspend_timeout_ms: int = 15_000
    """Maximum time for which a broker holds a pull that finds no message."""
    max_cached_messages: int = 1_000
    """Maximum number of messages of a queue that are pulled but not yet handled. Pulling pauses at this limit."""
    max_cached_bytes: int = 100 * 1024 * 1024
    """The same limit in bytes of bodies."""
    max_cached_span: int = 2_000
    """Maximum difference between the offsets of a queue's cached messages. It limits the number of messages that are
    redelivered after a crash."""
    max_cached_messages_of_topic: int = -1
    """Limit for all queues of a topic that are assigned to this member, divided equally among them. -1: only the limit
    of each queue applies."""
    max_cached_bytes_of_topic: int = -1
    """The same limit in bytes of bodies."""
    max_cached_messages_in_all: int = 100_000
    """Limit for all queues of the consumer together. Each pull in progress may exceed it by one batch."""
    max_cached_bytes_in_all: int = 512 * 1024 * 1024
    """The same limit in bytes of bodies."""
    rebalance_interval_ms: int = 20_000
    """Maximum interval between rebalances. When members join or leave, the group is rebalanced immediately."""
    lock_renewal_interval_ms: int = 20_000
    """Interval at which an ordered consumer renews the locks of its queues. Brokers release locks after 60 s."""
    lock_retry_ms: int = 3_000
    """Interval at which an ordered consumer tries again to lock a queue that another member has locked."""
    commit_interval_ms: int = 5_000
    """Interval between commits of consumer offsets."""
    close_timeout_ms: int = 10_000
    """Time for which close() waits for running handlers before it cancels them."""
    local_retry_ms: int = 1_000
    """Pause before a failed message of an ordered queue is retried."""
    unsent_retry_ms: int = 5_000
    """Pause before a failed message is retried locally because no broker accepted it back."""
    offsets_path: Path | None = None
    """Broadcasting: the file that stores this member's offsets. None: the path of RocketMQ's client,
    ~/.rocketmq_offsets/ADDRESS@INSTANCE/GROUP/offsets.json (INSTANCE: ClientOptions.instance_name, or DEFAULT)."""
    enable_trace: bool = False
    """Whether to trace the messages that are handled: see `trace_topic`."""
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    """Topic to which traces are sent, for mqadmin queryMsgTraceById and RocketMQ's Dashboard."""

    def __post_init__(self) -> None:
        if self.max_reconsume_times < -1:
            raise ValueError(
                f"max_reconsume_times must be -1 (RocketMQ's defaults) or more, not {self.max_reconsume_times}"
            )
        if self.consume_timestamp_ms < 0:
            raise ValueError(_BAD_TIMESTAMP.format(self.consume_timestamp_ms))
        for name in ("max_cached_messages_of_topic", "max_cached_bytes_of_topic"):
            if getattr(self, name) != -1 and getattr(self, name) <= 0:
                raise ValueError(f"{name} must be -1 (no limit) or more than 0, not {getattr(self, name)}")
        _positive(
            self, "consume_timestamp_ms", "max_reconsume_times", "retry_delay_level", "max_cached_messages_of_topic",
            "max_cached_bytes_of_topic",
        )  # fmt: skip

    def queue_limits(self, queues: int) -> tuple[int, int]:
        """Messages and bytes that each of a topic's `queues` at this member may cache."""
        messages, size_bytes = self.max_cached_messages, self.max_cached_bytes
        if self.max_cached_messages_of_topic > 0:
            messages = min(messages, max(self.max_cached_messages_of_topic // max(queues, 1), 1))
        if self.max_cached_bytes_of_topic > 0:
            size_bytes = min(size_bytes, max(self.max_cached_bytes_of_topic // max(queues, 1), 1))
        return messages, size_bytes


@dataclass(frozen=True, kw_only=True)
class LitePullOptions:
    """Options of a lite pull consumer: how it prefetches messages and commits offsets."""

    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Start position in a queue for which the broker has no offset. Such a queue is always consumed from its first
    message if that message has not been deleted and is so recent that the broker assumes it is still in memory."""
    consume_timestamp_ms: int = 0
    """With ConsumeFrom.TIMESTAMP: start with the first message stored at or after this time. 0: half an hour before
    now."""
    allocation: Allocation = Allocation.AVERAGELY
    """Strategy that assigns queues to the group's members. It must be the same for all members."""
    auto_commit: bool = True
    """Whether to commit the offsets of consumed messages every `commit_interval_ms`, when queues are released, and at
    close."""
    commit_interval_ms: int = 5_000
    """Interval between automatic commits."""
    pull_batch: int = 32
    """Maximum number of messages per pull."""
    suspend_timeout_ms: int = 15_000
    """Maximum time for which a broker holds a pull that finds no message."""
    max_cached_messages: int = 1_000
    """Maximum number of messages of a queue that are pulled but not yet consumed. Pulling pauses at this limit."""
    max_cached_bytes: int = 100 * 1024 * 1024
    """The same limit in bytes of bodies."""
    max_cached_span: int = 2_000
    """Maximum difference between the offsets of a queue's cached messages. It limits the number of messages that are
    redelivered after a crash."""
    max_cached_in_all: int = 10_000
    """Maximum number of messages of all queues that are pulled but not yet consumed. Each pull in progress may exceed
    it by one batch."""
    rebalance_interval_ms: int = 20_000
    """Maximum interval between rebalances. When members join or leave, the group is rebalanced immediately."""

    def __post_init__(self) -> None:
        if self.consume_timestamp_ms < 0:
            raise ValueError(_BAD_TIMESTAMP.format(self.consume_timestamp_ms))
        _positive(self, "consume_timestamp_ms")


def _positive(options: object, *but: str) -> None:
    for name, value in vars(options).items():
        if type(value) is int and value <= 0 and name not in but:
            raise ValueError(f"{name} must be more than 0, not {value}")
