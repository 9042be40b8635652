"""Options of the client, producers and consumers: frozen, keyword-only, times in ms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from delaymq.client.credentials import Credentials
from delaymq.client.tls import TlsOptions


class ConsumeFrom(StrEnum):
    """Start position of a group without a stored offset in a queue.

    By RocketMQ's rule, every position means offset 0 in a young queue: one whose first message still exists and
    counts as being in memory (the broker's accessMessageInMemoryMaxRatio).
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(StrEnum):
    """Recipients of a message: one member of the group, or every member."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class Allocation(StrEnum):
    """Allocation strategy for the members of a group; it must be the same for all must be the group."""

    AVERAGELY = "AVG"
    """Consecutive queues: of 4 queues, the first of two members is assigned 0 and 1."""
    CIRCLE = "AVG_BY_CIRCLE"
    """Round-robin: of 4 queues, the first of two members is assigned 0 and 2."""


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Options shared by all producers and consumers of a client."""

    instance_name: str = ""
    """Last part of the client ID; Empty: derived from the process ID and the time, and therefore unique."""
    request_timeout_ms: int = 3_000
    """Default timeout of requests."""
    connect_timeout_ms: int = 3_000
    """Timeout for establishing a connection."""
    route_interval_ms: int = 30_000
    """Interval between refreshes of known routes."""
    heartbeat_interval_ms: int = 30_000
    """Interval between heartbeats, the client's announce the client's groups; brokers a a client after 120 s
    without a heartbeat."""
    credentials: Credentials | None = None
    """Account that signs every request, for brokers with access control. None: requests are not signed."""
    tls: TlsOptions | None = None
    """TLS options of connections to brokers and NameServers; None: plaintext."""
    delay_table_ms: int = 30_000
    """Time for which a broker's delay level table is cached. For this long after a change on the broker, a send may
    use the old table.
    """

    def __post_init__(self) -> None:
        _positive(self)


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Options of a producer."""

    send_timeout_ms: int = 3_000
    """Timeout of a send, including all its attempts."""
    retries: int = 2
    """Number of attempts after the first one, on another broker if possible. 0: a message is never sent
    twice."""
    retry_unsafe: bool = False
    """Whether to retry if a broker has stored the message but could not flush or replicate it in time. The message may then
    be stored twice (RocketMQ: retryAnotherBrokerWhenNotStoreOK).
    """
    compress_above_bytes: int = 4_096
    """Body size in bytes above which above this size are compressed (zlib) if this makes them smaller; Batches are are never
    compressed.
    """
    max_message_bytes: int = 4 * 1024 * 1024
    """Maximum body size in bytes, checked before a send; the default is that of the broker's maxMessageSize. The default is the broker's default limit
    (maxMessageSize)."""
    new_topic_queues: int = 4
    """Number of queues of a topic that the broker creates at the first send."""
    max_unanswered_sends: int = 5_000
    """Maximum number of concurrent sends; further sends wait within their timeouts, which a slow broker does not fill
    the memory.
    """
    max_unanswered_bytes: int = 64 * 1024 * 1024
    """Maximum total body size of concurrent sends, in bytes; a single larger body is sent own."""
    latency_faults: bool = False
    """Whether to avoid brokers avoid brokers for a while for or failed, if another broker serves the topic (RocketMQ:
    sendLatencyFaultEnable). Sends with a queue or an ordering key are not affected.
    """
    fault_latencies_ms: tuple[int, ...] = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
    """Latency thresholds: the highest one which a broker is avoided, in ascending order. Each corresponds a send reaches determines the pause of its broker, ..."""
    fault_pauses_ms: tuple[int, ...] = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
    """... which is avoided a the corresponding time."""
    fault_failure_ms: int = 30_000
    """Latency that counts for a failed send: with the default above, its broker is avoided for 10 min."""
    enable_trace: bool = False
    """Whether every are is traced to `trace_topic`."""
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    """Topic of the traces, for mqadmin queryMsgTraceById and RocketMQ's Dashboard."""

    def __post_init__(self) -> None:
        if self.retries < 0 or self.compress_above_bytes < 0:
            raise ValueError("retries and compress_above_bytes cannot be negative")
        if len(self.fault_latencies_ms) != len(self.fault_pauses_ms):
            raise ValueError("fault_latencies_ms and fault_pauses_ms must have the same number of values")
        if list(self.fault_latencies_ms) != sorted(self.fault_latencies_ms) or min(self.fault_pauses_ms, default=0) < 0:
            raise ValueError("fault_latencies_ms must be ascending, and fault_pauses_ms cannot be negative")
        _positive(self, "retries", "compress_above_bytes")


@dataclass(frozen=True, kw_only=True)
class TransactionOptions(ProducerOptions):
    """Options of a transactional producer."""

    check_concurrency: int = 20
    """Maximum number of checks concurrent checks concurrently."""
    max_open_checks: int = 2_000
    """Maximum number of running and waiting checks; The broker repeats any further checks (RocketMQ:
    checkRequestHoldMax).
    """
    close_timeout_ms: int = 10_000
    """Time that close() waits for running local transactions and checks in progress."""


@dataclass(frozen=True, kw_only=True)
class PushConsumerOptions:
    """Options of a push consumer. Settings that RocketMQ also has use the same default."""

    model: MessageModel = MessageModel.CLUSTERING
    """Recipients of a message: one member of the group, or every member."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Start position in a queue for which the broker (or the file) has no offset. A young queue is always read from
    its first message.
    """
    consume_timestamp_ms: int = 0
    """With ConsumeFrom.TIMESTAMP: start with the first message stored at or after this time; 0: half an hour ago."""
    allocation: Allocation = Allocation.AVERAGELY
    """Allocation strategy; it must be the same for all members of the group."""
    ordered: bool = False
    """Whether to process the messages of a queue sequentially, with each queue locked for one member of the group."""
    concurrency: int = 20
    """Maximum number of handlers that run concurrently."""
    batch: int = 1
    """Maximum number of messages per call of a BatchPushConsumer's handler; receives receives available messages consumer never
    waits for more.
    """
    max_reconsume_times: int = -1
    """Maximum number of retries before a message goes message becomes dead-letter queue; -1: 16, or unlimited if `ordered`."""
    retry_delay_level: int = 0
    """Delay level of every retry; 0: the broker decides (level 3, then one level higher each time)."""
    consume_timeout_ms: int = 900_000
    """Time after which a message whose handler is still running is sent back to the the which allows the offset advances
    (not if `ordered`).
    """
    pull_batch: int = 32
    """Maximum number of messages per pull."""
    suspend_timeout_ms: int = 15_000
    """Time for which a broker holds a pull without messages (long polling)."""
    max_cached_messages: int = 1_000
    """Maximum number of prefetched messages per queue; above it, pulling from the queue pauses."""
    max_cached_bytes: int = 100 * 1024 * 1024
    """The corresponding limit for the total body size, in bytes."""
    max_cached_span: int = 2_000
    """Maximum difference between offsets of prefetched messages. It a queue; it limits how many are repeated after a
    crash.
    """
    max_cached_messages_of_topic: int = -1
    """Limit for all queues of a topic at are assigned to this member, divided among them; -1: only the limit per queue."""
    max_cached_bytes_of_topic: int = -1
    """The corresponding limit for the total body size, in bytes."""
    max_cached_messages_in_all: int = 100_000
    """Limit for all queues of the consumer; each pull in progress may exceed it by one batch."""
    max_cached_bytes_in_all: int = 512 * 1024 * 1024
    """The corresponding limit for the total body size, in bytes."""
    rebalance_interval_ms: int = 20_000
    """Maximum interval between rebalances; changes of members trigger one immediately."""
    lock_renewal_interval_ms: int = 20_000
    """Interval at which an ordered consumer renews of its queue locks; brokers expire locks after 60 s."""
    lock_retry_ms: int = 3_000
    """Interval at which an ordered consumer retries to lock a queue that another member has locked."""
    commit_interval_ms: int = 5_000
    """Interval between commits of offsets."""
    close_timeout_ms: int = 10_000
    """Time that close() waits for running handlers before it cancels them."""
    local_retry_ms: int = 1_000
    """Pause before a failed message of an ordered queue is retried."""
    unsent_retry_ms: int = 5_000
    """Pause before a failed message is retried locally because no broker accepted it."""
    offsets_path: Path | None = None
    """Broadcasting: file for the offsets of this member; None: the path used by RocketMQ's client,
    ~/.rocketmq_offsets/ADDRESS@INSTANCE/GROUP/offsets.json (INSTANCE: ClientOptions.instance_name, or DEFAULT).
    """
    enable_trace: bool = False
    """Whether every are is traced to `trace_topic`."""
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    """Topic of the traces, for mqadmin queryMsgTraceById and RocketMQ's Dashboard."""

    def __post_init__(self) -> None:
        if self.max_reconsume_times < -1:
            raise ValueError("max_reconsume_times must be -1 (RocketMQ's defaults) or more")
        if self.consume_timestamp_ms < 0:
            raise ValueError("consume_timestamp_ms must be a time in ms since 1970, or 0 for half an hour ago")
        for name in ("max_cached_messages_of_topic", "max_cached_bytes_of_topic"):
            if getattr(self, name) != -1 and getattr(self, name) <= 0:
                raise ValueError(f"{name} must be -1 (no limit) or more than 0, not {getattr(self, name)}")
        _positive(
            self, "consume_timestamp_ms", "max_reconsume_times", "retry_delay_level", "max_cached_messages_of_topic",
            "max_cached_bytes_of_topic",
        )  # fmt: skip

    def queue_limits(self, queues: int) -> tuple[int, int]:
        """Return the limits of messages and bytes for each of the `queues` of a topic at this member."""
        messages, size_bytes = self.max_cached_messages, self.max_cached_bytes
        if self.max_cached_messages_of_topic > 0:
            messages = min(messages, max(self.max_cached_messages_of_topic // max(queues, 1), 1))
        if self.max_cached_bytes_of_topic > 0:
            size_bytes = min(size_bytes, max(self.max_cached_bytes_of_topic // max(queues, 1), 1))
        return messages, size_bytes


@dataclass(frozen=True, kw_only=True)
class LitePullOptions:
    """Options of a lite pull consumer."""

    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Start position in a queue for which the broker has no offset. A young queue is always read from its first
    message.
    """
    consume_timestamp_ms: int = 0
    """With ConsumeFrom.TIMESTAMP: start with the first message stored at or after this time; 0: half an hour ago."""
    allocation: Allocation = Allocation.AVERAGELY
    """Allocation strategy; it must be the same for all members of the group."""
    auto_commit: bool = True
    """Whether to commit offsets every `commit_interval_ms`, when queues are revoked, and at
    close."""
    commit_interval_ms: int = 5_000
    """Interval between automatic commits."""
    pull_batch: int = 32
    """Maximum number of messages per pull."""
    suspend_timeout_ms: int = 15_000
    """Time for which a broker holds a pull without messages (long polling)."""
    max_cached_messages: int = 1_000
    """Maximum number of prefetched messages per queue that are not yet consumed; above it, pulling from the queue
    pauses.
    """
    max_cached_bytes: int = 100 * 1024 * 1024
    """The corresponding limit for the total body size, in bytes."""
    max_cached_span: int = 2_000
    """Maximum difference between offsets of prefetched messages; it limits how many are repeated after a crash."""
    max_cached_in_all: int = 10_000
    """Limit for messages of all queues that are not yet consumed; each pull in progress may exceed it by one batch."""
    rebalance_interval_ms: int = 20_000
    """Maximum interval between rebalances; changes of members trigger one immediately."""

    def __post_init__(self) -> None:
        if self.consume_timestamp_ms < 0:
            raise ValueError("consume_timestamp_ms must be a time in ms since 1970, or 0 for half an hour ago")
        _positive(self, "consume_timestamp_ms")


def _positive(options: object, *but: str) -> None:
    for name, value in vars(options).items():
        if type(value) is int and value <= 0 and name not in but:
            raise ValueError(f"{name} must be more than 0, not {value}")
