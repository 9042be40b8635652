"""Messages that come due while the broker is not running, and their treatment."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from delaymq.api_types.delay_settings import Overdue
from delaymq.broker.delivery.settings.overdue import FILE_NAME
from delaymq.broker.opening import open_broker

from delaymq_testing.broker.changing import records, send
from delaymq_testing.broker.harness import START_MS, Harness
from delaymq_testing.broker.smoothing import limit

MINUTE_MS = 60_000
DOWN_MS = 20 * MINUTE_MS


def treat(harness: Harness, treatment: str, topic: str = "Orders", **settings: Any) -> None:
    """Sets a policy and writes it, as a request over HTTP does."""
    over_ms = 10 * MINUTE_MS if treatment == "spread" else None
    overdue = msgspec.convert({"treatment": treatment, "overMs": over_ms}, Overdue)
    limit(harness, topic, overdue=overdue, **settings)
    harness.broker.persist_definitions()


def kill(harness: Harness, down_ms: int = DOWN_MS) -> None:
    """kill -9, and a start after a downtime."""
    harness.flush()
    harness.broker.store.abandon()
    harness.clock.advance(down_ms)
    harness.broker = open_broker(harness.config, harness.clock)


def stored(harness: Harness) -> dict[str, Any] | None:
    content: dict[str, Any] | None = harness.broker.store.own_files.load(FILE_NAME, json.loads)
    return content and content["topics"]


def schedule_overdue(harness: Harness, count: int = 100, topic: str = "Orders") -> None:
    """Messages of both kinds that come due within ten minutes."""
    for number in range(count):
        due = {"TIMER_DELAY_MS": str(1_000 + number * 6_000)} if number % 2 else {"DELAY": "1"}
        send(harness, str(number), topic=topic, **due)


def lateness(harness: Harness, topic: str = "Orders") -> dict[int, set[int]]:
    """Numbers of the messages of `schedule_overdue` by their lateness in s."""
    found: dict[int, set[int]] = {}
    for record in records(harness, topic):
        number = int(record.body)
        due_ms = START_MS + (1_000 + number * 6_000 if number % 2 else 1_000)
        found.setdefault(round((record.store_timestamp_ms - due_ms) / 1_000), set()).add(number)
    return found
