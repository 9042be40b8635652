"""Scenarios of a broker with many pending messages: memory, sends and starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import proc
import rows
from crash.load import LoadProgram
from delays import fill
from options import Options
from rows import Sample
from subjects import Contender, Subject

TABLE = "1s 3d"
"""The messages have the second level, which outlasts every run."""
DELAYS_MS = f"{6 * 3_600_000},{3 * 86_400_000}"
"""Timed messages are due evenly from 6 hours to 3 days later, the most that RocketMQ 5 accepts by default."""
QUARTERS = 4
SETTLE_S = 10.0
"""Time without load before the memory is read."""
START_LIMIT_S = 600.0


def pending_levels(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure a broker whose pending messages all have the same delay level."""
    with Subject(contender, load, messageDelayLevel=TABLE) as subject:
        yield from _pending(options, subject, "pending-level", {"levels": "2"})


def pending_timed(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure a broker whose pending messages are timed."""
    with Subject(contender, load, timers=True) as subject:
        yield from _pending(options, subject, "pending", {"delays_ms": DELAYS_MS})


def _pending(options: Options, subject: Subject, group: str, times: dict[str, Any]) -> Iterator[list[Sample]]:
    count = options.pending
    each = count // QUARTERS
    subject.start()
    fill(subject, "Warm", options.count(100_000, 4_000), **times)
    yield []
    used = []
    for _ in range(QUARTERS):
        before = proc.processor_s(subject.pid)
        fill(subject, "Pending", each, **times)
        used.append(proc.processor_s(subject.pid) - before)
    time.sleep(SETTLE_S)
    memory = proc.memory_mib(subject.pid, "RssAnon")
    subject.cluster.stop()
    clean_s = subject.start_to_first_send_s("First", limit_s=START_LIMIT_S)
    subject.cluster.kill()
    killed_s = subject.start_to_first_send_s("First", limit_s=START_LIMIT_S)
    figures = memory, used[0] / each * 1e6, used[-1] / each * 1e6, clean_s, killed_s
    yield [Sample(row, value) for row, value in zip(rows.pending_rows(group, count), figures, strict=True)]
