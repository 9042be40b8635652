"""Options of the client, its producers and its consumers: frozen, keyword-only, times in ms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class ConsumeFrom(StrEnum):
    """Where a group without a stored offset begins in a queue."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(StrEnum):
    """Who gets a message: one member of the group, or each."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """What all producers and consumers of one client share."""

    instance_name: str = ""
    """Last part of the client id; empty: made from process id and time, so that it is unique."""
    request_timeout_ms: int = 3_000
    """How long an answer may take where nothing else is said."""
    connect_timeout_ms: int = 3_000
    route_interval_ms: int = 30_000
    """How often known routes are asked for again."""
    heartbeat_interval_ms: int = 30_000
    """How often brokers are told which groups this client has; they forget it after 120 s."""
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
    compress_above_bytes: int = 4_096
    """Longer bodies are compressed (zlib); batches never are."""
    max_message_bytes: int = 4 * 1024 * 1024
    """The broker's default limit (maxMessageSize), checked before anything is sent."""
    new_topic_queues: int = 4
    """Queues that a topic gets which the broker creates at the first send."""

    def __post_init__(self) -> None:
        if self.retries < 0 or self.compress_above_bytes < 0:
            raise ValueError("retries and compress_above_bytes cannot be negative")
        _positive(self, "retries", "compress_above_bytes")


@dataclass(frozen=True, kw_only=True)
class PushConsumerOptions:
    """How a push consumer takes messages."""

    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    consume_timestamp_ms: int = 0
    """With ConsumeFrom.TIMESTAMP: begin with the first message stored at or after it."""
    ordered: bool = False
    """Messages of a queue one after the other, each queue locked for one member of the group."""
    concurrency: int = 20
    """Handlers that run at a time."""
    max_reconsume_times: int = -1
    """Retries of a message before it goes to the group's dead letters; -1: 16, or without end if `ordered`."""
    retry_delay_level: int = 0
    """Level of the first retry and all others; 0: the broker decides (level 3, then one higher each time)."""
    pull_batch: int = 32
    suspend_timeout_ms: int = 15_000
    """How long a broker may hold a pull for which there is no message."""
    max_cached_messages: int = 1_000
    """Of one queue, pulled and not yet handled; pulling pauses there."""
    max_cached_bytes: int = 16 * 1024 * 1024
    """The same in bytes of bodies."""
    max_cached_span: int = 2_000
    """Largest distance of offsets within the cached messages of one queue: bounds what comes again after a crash."""
    rebalance_interval_ms: int = 20_000
    commit_interval_ms: int = 5_000
    close_timeout_ms: int = 10_000
    """How long close() waits for handlers that still run before it cancels them."""
    local_retry_ms: int = 1_000
    """Pause before a failed message is tried again here (ordered, or when it cannot be sent back)."""
    offsets_path: Path | None = None
    """Broadcasting: the file that keeps this member's offsets; None: they are not kept."""

    def __post_init__(self) -> None:
        if self.max_reconsume_times < -1:
            raise ValueError("max_reconsume_times is -1 (RocketMQ's defaults) or more")
        if self.consume_from is ConsumeFrom.TIMESTAMP and self.consume_timestamp_ms <= 0:
            raise ValueError("ConsumeFrom.TIMESTAMP needs consume_timestamp_ms")
        _positive(self, "consume_timestamp_ms", "max_reconsume_times", "retry_delay_level")


def _positive(options: object, *but: str) -> None:
    for name, value in vars(options).items():
        if type(value) is int and value <= 0 and name not in but:
            raise ValueError(f"{name} must be more than 0, not {value}")
