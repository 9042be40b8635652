"""Counts of the hand-over: deliveries within a run, before they are added to statistics, and undelivered messages."""

from __future__ import annotations

from collections.abc import Iterator

from delaymq.broker.delivery.copying.copies import Fate
from delaymq.broker.delivery.settings.promises import Promises
from delaymq.broker.delivery.status import DeliveryCounters
from delaymq.message import names
from delaymq.message.properties import decode_properties
from delaymq.message.record import Record
from delaymq.store.model import NewRecord
from delaymq.throttled_log import ThrottledLogger, about_message


class Tally:
    """Deliveries with equal topic, delay level and lateness are counted together: most of those in a run are."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], list[int]] = {}

    def add(self, topic: str, level: int, lateness_ms: int, size: int, messages: int = 1) -> None:
        """Count deliveries whose records have `size` bytes."""
        key = topic, level, lateness_ms
        counts = self._counts.get(key)
        if counts is None:
            self._counts[key] = [messages, size]
        else:
            counts[0] += messages
            counts[1] += size

    def take(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield topic, level, lateness in ms, number of messages and bytes of their records; then forget them."""
        for key, counts in self._counts.items():
            yield *key, counts[0], counts[1]
        self._counts.clear()


class Undelivered:
    """Counts messages by the reason why they were not delivered."""

    def __init__(self, counters: DeliveryCounters, promises: Promises, throttled: ThrottledLogger) -> None:
        self._counters = counters
        self._promises = promises
        self._throttled = throttled

    def count(self, fate: Fate, record: Record, copy: NewRecord) -> None:
        """Count a message, whose record is `record`. `copy` was appended in place of its delivery."""
        counters, place = self._counters, record.physical_offset
        properties = decode_properties(record.raw_properties)
        topic = properties.get(names.REAL_TOPIC, "") if fate in (Fate.DEAD, Fate.TOPIC_GONE) else ""
        if topic and self._promises.fate_of_gone(topic) is fate:
            treatment = self._promises.settings.of_topic(topic).when_topic_is_gone
            counters.topic_gone[treatment] = counters.topic_gone.get(treatment, 0) + 1
            text = "a delayed message (physical offset %d) is not delivered because its topic %s was deleted: %s"
            self._throttled.warning(text, place, topic, treatment, topic=topic)
        elif fate is Fate.DEAD:
            counters.dead += 1
            text = (
                "a delayed message (physical offset %d) names no valid topic for its delivery and was moved to topic %s"
            )
            self._throttled.warning(text, place, copy.topic, **about_message(properties), offset=place)
        elif fate is Fate.REFUSED:
            counters.refused += 1
        elif fate is Fate.EXPIRED:
            counters.expired += 1
        else:
            counters.dropped += 1
