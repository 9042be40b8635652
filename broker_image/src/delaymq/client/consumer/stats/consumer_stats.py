"""Figures of a consumer, for people: what it pulled, what became of it, and what waits in its memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from delaymq.client.consumer.stats.rates import Counters, Rates
from delaymq.client.messages import ReceivedMessage
from delaymq.message.names import RETRY_PREFIX
from delaymq.protocol.bodies import ConsumeStatus, MessageQueue


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicStats:
    """Messages of one topic since the consumer's start; a retry counts again, for the topic that it came from."""

    pulled: int = 0
    consumed: int = 0
    """Handled with success."""
    failed: int = 0
    """Handled without: an error, Outcome.RETRY, or too late."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueStats:
    """A queue that the consumer reads now."""

    queue: MessageQueue
    next_offset: int | None
    """Of its first message that is not done; None while it is not known where to begin."""
    cached_messages: int
    """Pulled and not done."""
    cached_bytes: int
    """Of their bodies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerStats:
    """A moment's figures of one consumer."""

    topics: dict[str, TopicStats] = field(default_factory=dict)
    queues: tuple[QueueStats, ...] = ()
    running: int = 0
    """Handlers at work."""

    @property
    def cached_messages(self) -> int:
        """Pulled and not done, of all queues."""
        return sum(each.cached_messages for each in self.queues)

    @property
    def cached_bytes(self) -> int:
        """Of their bodies."""
        return sum(each.cached_bytes for each in self.queues)


class Tally:
    """Counts for the topics that were ever subscribed to; others count for the queue's topic, so that the number of
    counters is not the senders' choice."""

    def __init__(self) -> None:
        self._counts: dict[str, Counters] = {}
        self._rates: dict[str, Rates] = {}

    def add_topic(self, topic: str) -> None:
        """`topic` has counters from now on."""
        if topic not in self._counts:
            counters = self._counts[topic] = Counters()
            self._rates[topic] = Rates(counters)

    def pulled(self, message: ReceivedMessage) -> None:
        self._of(message).pulled += 1

    def pull_took(self, topic: str, took_ms: float) -> None:
        """A pull of one of the topic's queues found something."""
        self._counters(topic).pulls += 1
        self._counts[topic].pulls_ms += took_ms

    def handler_took(self, message: ReceivedMessage, took_ms: float) -> None:
        """A handler that began with `message` ended."""
        counters = self._of(message)
        counters.handled += 1
        counters.handled_ms += took_ms

    def consumed(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            self._of(message).consumed += 1

    def failed(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            self._of(message).failed += 1

    def topics(self) -> dict[str, TopicStats]:
        """The counts so far."""
        return {
            topic: TopicStats(pulled=each.pulled, consumed=each.consumed, failed=each.failed)
            for topic, each in self._counts.items()
            if not topic.startswith(RETRY_PREFIX)  # its messages count for the topics that they came from
        }

    async def sample(self) -> None:
        """To be called every SAMPLE_INTERVAL_MS."""
        for rates in self._rates.values():
            rates.sample()

    def statuses(self) -> dict[str, ConsumeStatus]:
        """Topic → its rates of the last minute."""
        return {topic: rates.status() for topic, rates in self._rates.items()}

    def _of(self, message: ReceivedMessage) -> Counters:
        counters = self._counts.get(message.topic)
        return counters if counters is not None else self._counters(message.queue.topic)

    def _counters(self, topic: str) -> Counters:
        self.add_topic(topic)
        return self._counts[topic]
