"""Topics whose deliveries take time, and when their messages are delivered."""

from __future__ import annotations

from typing import Any

from delaymq.api_types.delay_settings import TopicDelaySettings

from delaymq_testing.broker.changing import records
from delaymq_testing.broker.harness import Harness


def limit(harness: Harness, topic: str = "Orders", **settings: Any) -> None:
    harness.broker.delay_settings.put_topic(topic, TopicDelaySettings(**settings))


def run(harness: Harness, for_ms: int) -> None:
    """Delivers at the times at which the broker wakes up, until a time."""
    end_ms = harness.clock() + for_ms
    while True:
        harness.flush()
        while harness.broker.hand_over(harness.clock(), 64):
            harness.flush()
        next_ms = harness.broker.delivery.next_wakeup_ms()
        if next_ms is None or next_ms > end_ms:
            harness.clock.now_ms = end_ms
            return
        assert next_ms > harness.clock()
        harness.clock.now_ms = next_ms


def delivered(harness: Harness, topic: str = "Orders") -> list[int]:
    """Store times of the records of a topic, queue 0."""
    return [record.store_timestamp_ms for record in records(harness, topic)]
