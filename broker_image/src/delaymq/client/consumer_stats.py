"""Figures of a consumer, for people: what it pulled, what became of it, and what waits in its memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from delaymq.client.messages import ReceivedMessage
from delaymq.protocol.bodies import MessageQueue


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
        self._counts: dict[str, list[int]] = {}

    def know(self, topic: str) -> None:
        """`topic` has counters from now on."""
        self._counts.setdefault(topic, [0, 0, 0])

    def pulled(self, message: ReceivedMessage) -> None:
        self._of(message)[0] += 1

    def consumed(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            self._of(message)[1] += 1

    def failed(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            self._of(message)[2] += 1

    def topics(self) -> dict[str, TopicStats]:
        """The counts so far."""
        return {
            topic: TopicStats(pulled=pulled, consumed=consumed, failed=failed)
            for topic, (pulled, consumed, failed) in self._counts.items()
        }

    def _of(self, message: ReceivedMessage) -> list[int]:
        counts = self._counts.get(message.topic)
        return counts if counts is not None else self._counts.setdefault(message.queue.topic, [0, 0, 0])
