"""Options of the client, its producers and its consumers: frozen, keyword-only, times in ms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from delaymq.client.credentials import Credentials
from delaymq.client.tls import TlsOptions


class ConsumeFrom(StrEnum):
    """Where a group without a stored offset begins in a queue.

    By RocketMQ's rule all of them begin at offset 0 of a young queue: one whose first message is still there and counts
    as in memory (the broker's accessMessageInMemoryMaxRatio).
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(StrEnum):
    """Who gets a message: one member of the group, or each."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class Allocation(StrEnum):
    """How a group's members share the queues of a topic; all members of a group do it alike."""

    AVERAGELY = "AVG"
    """Neighbours: with 4 queues the first of two members gets 0 and 1."""
    CIRCLE = "AVG_BY_CIRCLE"
    """In turn: with 4 queues the first of two members gets 0 and 2."""


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """What all producers and consumers of one client share."""

    instance_name: str = ""
    """Last part of the client id; empty: made from process id and time, so that it is unique."""
    request_timeout_ms: int = 3_000
    """How long an answer may take where nothing else is said."""
    connect_timeout_ms: int = 3_000
    """How long a connection may take to come up."""
    route_interval_ms: int = 30_000
    """How often known routes are asked for again."""
    heartbeat_interval_ms: int = 30_000
    """How often brokers are told which groups this client has; they forget it after 120 s."""
    credentials: Credentials | None = None
    """The account that signs every request, for brokers with access control; None: nothing is signed."""
    tls: TlsOptions | None = None
    """How brokers and NameServers are connected to with TLS; None: without."""
    delay_table_ms: int = 30_000
    """How long a broker's table of delay levels is believed. After a change on the broker, a delay may go by the old
    table for so long."""

    def __post_init__(self) -> None:
        _positive(self)


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """How a producer sends."""

    send_timeout_ms: int = 3_000
    """For one send with all its attempts."""
    retries: int = 2
    """Attempts after the first one, on another broker if there is one. 0: a message is never sent twice."""
    retry_unsafe: bool = False
    """Also try again when a broker has the message but could not flush or replicate it in time; it may then be stored
    twice (RocketMQ: retryAnotherBrokerWhenNotStoreOK)."""
    compress_above_bytes: int = 4_096
    """Longer bodies are compressed (zlib) if that makes them shorter; batches never are."""
    max_message_bytes: int = 4 * 1024 * 1024
    """The broker's default limit (maxMessageSize), checked before anything is sent."""
    new_topic_queues: int = 4
    """Queues that a topic gets which the broker creates at the first send."""
    max_unanswered_sends: int = 5_000
    """Sends under way at a time; more wait, within their timeouts, so that a slow broker does not fill memory."""
    max_unanswered_bytes: int = 64 * 1024 * 1024
    """The same in bytes of bodies; one larger body goes alone."""
    latency_faults: bool = False
    """Whether brokers that were slow or failed are left alone for a while, as long as another one has the topic
    (RocketMQ: sendLatencyFaultEnable). Sends with a queue or an ordering key go where they must."""
    fault_latencies_ms: tuple[int, ...] = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
    """A send that took at least so long …"""
    fault_pauses_ms: tuple[int, ...] = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
    """… keeps its broker out of choice for so long (the last latency that fits counts)."""
    fault_failure_ms: int = 30_000
    """A failed send counts as if it had taken so long: with the tables above its broker is left alone for 10 min."""
    enable_trace: bool = False
    """Whether what it does with each message is traced: see `trace_topic`."""
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    """Where its traces go, for mqadmin queryMsgTraceById and RocketMQ's Dashboard."""

    def __post_init__(self) -> None:
        if self.retries < 0 or self.compress_above_bytes < 0:
            raise ValueError("retries and compress_above_bytes cannot be negative")
        if len(self.fault_latencies_ms) != len(self.fault_pauses_ms):
            raise ValueError("fault_latencies_ms and fault_pauses_ms must have the same number of values")
        if list(self.fault_latencies_ms) != sorted(self.fault_latencies_ms) or min(self.fault_pauses_ms, default=0) < 0:
            raise ValueError("fault_latencies_ms must rise, and fault_pauses_ms cannot be negative")
        _positive(self, "retries", "compress_above_bytes")


@dataclass(frozen=True, kw_only=True)
class TransactionOptions(ProducerOptions):
    """How a transactional producer sends, as any producer, and answers for its transactions."""

    check_concurrency: int = 20
    """Checks of the listener's that run at a time."""
    max_open_checks: int = 2_000
    """Checks that run or wait for their turn; the broker asks again about more (RocketMQ: checkRequestHoldMax)."""
    close_timeout_ms: int = 10_000
    """How long close() waits for local transactions and checks that are under way."""


@dataclass(frozen=True, kw_only=True)
class PushConsumerOptions:
    """How a push consumer takes messages. Where RocketMQ has the same setting, its default is the same."""

    model: MessageModel = MessageModel.CLUSTERING
    """Who gets a message: one member of the group, or each."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Where a group begins in a queue for which the broker (or the file) has no offset; a young queue is read from its
    first message, whatever this says."""
    consume_timestamp_ms: int = 0
    """With ConsumeFrom.TIMESTAMP: begin with the first message stored at or after it; 0: half an hour before now."""
    allocation: Allocation = Allocation.AVERAGELY
    """How the group's members share the queues; the same at all of them."""
    ordered: bool = False
    """Messages of a queue one after the other, each queue locked for one member of the group."""
    concurrency: int = 20
    """Handlers that run at a time."""
    batch: int = 1
    """Messages that the handler of a BatchPushConsumer gets at most; it gets what is there and never waits for more."""
    max_reconsume_times: int = -1
    """Retries of a message before it goes to the group's dead letters; -1: 16, or without end if `ordered`."""
    retry_delay_level: int = 0
    """Level of the first retry and all others; 0: the broker decides (level 3, then one higher each time)."""
    consume_timeout_ms: int = 900_000
    """A message that is longer at its handler is sent back, so that its queue's offset moves on (not if `ordered`)."""
    pull_batch: int = 32
    """Messages that one pull brings at most."""
    suspend_timeout_ms: int = 15_000
    """How long a broker may hold a pull for which there is no message."""
    max_cached_messages: int = 1_000
    """Of one queue, pulled and not yet handled; pulling pauses there."""
    max_cached_bytes: int = 100 * 1024 * 1024
    """The same in bytes of bodies."""
    max_cached_span: int = 2_000
    """Largest distance of offsets within the cached messages of one queue: bounds what comes again after a crash."""
    max_cached_messages_of_topic: int = -1
    """For all queues of a topic that this member has: each gets its part; -1: only each queue's own limit."""
    max_cached_bytes_of_topic: int = -1
    """The same in bytes of bodies."""
    max_cached_messages_in_all: int = 100_000
    """For all queues of the consumer together; pulls that are under way may each bring one batch more."""
    max_cached_bytes_in_all: int = 512 * 1024 * 1024
    """The same in bytes of bodies."""
    rebalance_interval_ms: int = 20_000
    """How often the shares are worked out at the latest; when members come or go, at once."""
    lock_renewal_interval_ms: int = 20_000
    """How often an ordered consumer locks its queues again; brokers forget locks after 60 s."""
    lock_retry_ms: int = 3_000
    """How soon an ordered consumer asks again for a queue that another member has locked."""
    commit_interval_ms: int = 5_000
    """How often the offsets of what is done are saved."""
    close_timeout_ms: int = 10_000
    """How long close() waits for handlers that still run before it cancels them."""
    local_retry_ms: int = 1_000
    """Pause before an ordered queue's failed message is tried again."""
    unsent_retry_ms: int = 5_000
    """Pause before a failed message is tried again here because no broker took it back."""
    offsets_path: Path | None = None
    """Broadcasting: the file that keeps this member's offsets; None: where RocketMQ's client has it,
    ~/.rocketmq_offsets/ADDRESS@INSTANCE/GROUP/offsets.json (INSTANCE: ClientOptions.instance_name, or DEFAULT)."""
    enable_trace: bool = False
    """Whether what it does with each message is traced: see `trace_topic`."""
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    """Where its traces go, for mqadmin queryMsgTraceById and RocketMQ's Dashboard."""

    def __post_init__(self) -> None:
        if self.max_reconsume_times < -1:
            raise ValueError("max_reconsume_times is -1 (RocketMQ's defaults) or more")
        if self.consume_timestamp_ms < 0:
            raise ValueError("consume_timestamp_ms is a time in ms since 1970, or 0 for half an hour ago")
        for name in ("max_cached_messages_of_topic", "max_cached_bytes_of_topic"):
            if getattr(self, name) != -1 and getattr(self, name) <= 0:
                raise ValueError(f"{name} is -1 (no such limit) or more than 0, not {getattr(self, name)}")
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
    """How a lite pull consumer reads ahead and commits."""

    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Where a group begins in a queue for which the broker has no offset; a young queue is read from its first message,
    whatever this says."""
    consume_timestamp_ms: int = 0
    """With ConsumeFrom.TIMESTAMP: begin with the first message stored at or after it; 0: half an hour before now."""
    allocation: Allocation = Allocation.AVERAGELY
    """How the group's members share the queues; the same at all of them."""
    auto_commit: bool = True
    """Whether what is done is committed every commit_interval_ms, when queues are given up, and at close."""
    commit_interval_ms: int = 5_000
    """How often that is."""
    pull_batch: int = 32
    """Messages that one pull brings at most."""
    suspend_timeout_ms: int = 15_000
    """How long a broker may hold a pull for which there is no message."""
    max_cached_messages: int = 1_000
    """Of one queue, pulled and not yet done; pulling pauses there."""
    max_cached_bytes: int = 100 * 1024 * 1024
    """The same in bytes of bodies."""
    max_cached_span: int = 2_000
    """Largest distance of offsets within them: bounds what comes again after a crash."""
    max_cached_in_all: int = 10_000
    """Messages of all queues, pulled and not yet done. Pulls that are under way may each bring one batch more."""
    rebalance_interval_ms: int = 20_000
    """How often the shares are worked out at the latest; when members come or go, at once."""

    def __post_init__(self) -> None:
        if self.consume_timestamp_ms < 0:
            raise ValueError("consume_timestamp_ms is a time in ms since 1970, or 0 for half an hour ago")
        _positive(self, "consume_timestamp_ms")


def _positive(options: object, *but: str) -> None:
    for name, value in vars(options).items():
        if type(value) is int and value <= 0 and name not in but:
            raise ValueError(f"{name} must be more than 0, not {value}")
