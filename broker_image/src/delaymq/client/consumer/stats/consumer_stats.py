"""Statistics of a consumer: pulled, handled and cached messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from delaymq.client.consumer.stats.rates import Counters, Rates
from delaymq.client.messages import ReceivedMessage, topic_of
from delaymq.message.names import RETRY_PREFIX
from delaymq.protocol.bodies import ConsumeStatus, MessageQueue


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicStats:
    """Message counts of a topic since the consumer's start; a retry counts again, for its original topic."""

    pulled: int = 0
    consumed: int = 0
    """Number of messages handled successfully."""
    failed: int = 0
    """Number of messages that failed: an exception, Outcome.RETRY, or a timeout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueStats:
    """State of an assigned queue."""

    queue: MessageQueue
    next_offset: int | None
    """Offset of its first unfinished message; None while the start is not known."""
    cached_messages: int
    """Number of pulled and unfinished messages."""
    cached_bytes: int
    """Total size of their bodies in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerStats:
    """Current statistics of a consumer."""

    topics: dict[str, TopicStats] = field(default_factory=dict)
    queues: tuple[QueueStats, ...] = ()
    running: int = 0
    """Number of running handlers."""

    @property
    def cached_messages(self) -> int:
        """Number of pulled and unfinished messages of all queues."""
        return sum(each.cached_messages for each in self.queues)

    @property
    def cached_bytes(self) -> int:
        """Total size of their bodies in bytes."""
        return sum(each.cached_bytes for each in self.queues)


class Tally:
    """Counters of all topics ever subscribed to; others count for the queue's topic, so that senders cannot increase
    the number of counters.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counters] = {}
        self._rates: dict[str, Rates] = {}

    def add_topic(self, topic: str) -> None:
        """Create counters for `topic`."""
        if topic not in self._counts:
            counters = self._counts[topic] = Counters()
            self._rates[topic] = Rates(counters)

    def pulled(self, messages: Sequence[ReceivedMessage]) -> None:
        for counters, count in self._counts_of(messages):
            counters.pulled += count

    def pull_took(self, topic: str, took_ms: float) -> None:
        """Count a pull that found messages."""
        self._counters(topic).pulls += 1
        self._counts[topic].pulls_ms += took_ms

    def handler_took(self, message: ReceivedMessage, took_ms: float) -> None:
        """Count a finished handler call that started with `message`."""
        counters = self._of(message.topic, message.queue.topic)
        counters.handled += 1
        counters.handled_ms += took_ms

    def consumed(self, messages: Sequence[ReceivedMessage]) -> None:
        for counters, count in self._counts_of(messages):
            counters.consumed += count

    def failed(self, messages: Sequence[ReceivedMessage]) -> None:
        for counters, count in self._counts_of(messages):
            counters.failed += count

    def topics(self) -> dict[str, TopicStats]:
        """Return the current counts."""
        return {
            topic: TopicStats(pulled=each.pulled, consumed=each.consumed, failed=each.failed)
            for topic, each in self._counts.items()
            if not topic.startswith(RETRY_PREFIX)  # its messages count for their original topics
        }

    async def sample(self) -> None:
        """Sample the counters; call it every SAMPLE_INTERVAL_MS."""
        for rates in self._rates.values():
            rates.sample()

    def statuses(self) -> dict[str, ConsumeStatus]:
        """Return topic → its rates of the last minute."""
        return {topic: rates.status() for topic, rates in self._rates.items()}

    def _counts_of(self, messages: Sequence[ReceivedMessage]) -> list[tuple[Counters, int]]:
        """Return the counters of messages from one queue, with the number of messages of each."""
        if not messages:
            return []
        topics = list(map(topic_of, messages))
        # Nearly always, all messages have the same topic, and a Counter would take most of the time.
        counted = Counter(topics) if topics.count(topics[0]) < len(topics) else {topics[0]: len(topics)}
        return [(self._of(topic, messages[0].queue.topic), count) for topic, count in counted.items()]

    def _of(self, topic: str, queue_topic: str) -> Counters:
        counters = self._counts.get(topic)
        return counters if counters is not None else self._counters(queue_topic)

    def _counters(self, topic: str) -> Counters:
        self.add_topic(topic)
        return self._counts[topic]
