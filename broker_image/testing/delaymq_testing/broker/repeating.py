"""Repeating messages for tests: sends, and the runs that the log contains."""

from __future__ import annotations

from typing import NamedTuple

from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark, parse_own_mark
from delaymq.protocol.command import Response

from delaymq_testing.broker.changing import SUCCESS, records, send
from delaymq_testing.broker.harness import Harness

MINUTE_MS = 60_000


class Run(NamedTuple):
    """A copy of a repeating message."""

    number: int
    time_ms: int
    next_ms: int | None
    """Due time that its mark states."""
    record: Record


def repeat(harness: Harness, body: str = "m", **properties: str) -> Response:
    answer = send(harness, body, **properties)
    assert answer.code == SUCCESS, answer.remark
    return answer


def mark_of(record: Record) -> TimedMark:
    mark = parse_own_mark(record.properties[names.MARK], record.physical_offset)
    assert mark is not None
    return mark


def runs(harness: Harness, topic: str = "Orders") -> list[Run]:
    """All copies of repeating messages in queue 0 of a topic."""
    return [
        Run(
            int(record.properties[names.DELAY_RUN]),
            int(record.properties[names.TIMER_OUT_MS]),
            mark_of(record).next_due_ms,
            record,
        )
        for record in records(harness, topic)
        if names.DELAY_RUN in record.properties
    ]


def kill(harness: Harness) -> None:
    """What a kill -9 and a start leave."""
    harness.broker.store.abandon()
    harness.broker = open_broker(harness.config, harness.clock)


def hand_over(harness: Harness, after_ms: int = 0) -> None:
    """Lets time pass, and delivers what is due."""
    harness.clock.advance(after_ms)
    harness.flush()
    while harness.broker.hand_over(harness.clock(), 64):
        harness.flush()


def numbers(harness: Harness) -> list[int]:
    return [run.number for run in runs(harness)]
