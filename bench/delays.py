"""Scenarios of messages with delay levels, and of timed messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import proc
import rows
from crash.load import LoadProgram
from harness.commitlog import lateness_ms, records
from harness.errors import HarnessError
from options import Options
from rows import Row, Sample
from subjects import SEND_TIMEOUT_MS, Contender, Subject, Times

DELAY_TABLE = "1s 2s 3s 4s 5s"
DELAY_RATE = 2_000
OVERDUE_TABLE = "1s 25s"
OVERDUE_DELAY_S = 25.0
FILL: dict[str, Any] = {"threads": 16, "size": 100, "timeout_ms": 30_000}
"""Single sends: in a batch, RocketMQ 5 ignores due times. With more of them at a time, it rejects many as overload."""
FILL_LIMIT_S = 600
BURST, OTHER, MEANWHILE = "Burst", "Other", "Meanwhile"
"""Topics of the messages that are due together, of those due at short intervals, and of sends without a delay."""
OTHER_STEP_MS = 20
OTHER_COUNT = 3_000
"""Due within a minute."""
MEANWHILE_RATE = 500
BURST_LIMIT_S = 600
LEAD_MARGIN_S = 10.0
"""Time, besides twice the duration of the sends at the rate of the warm-up, until the burst is due. After the last
send, at least half of it must remain."""


def delay(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure delayed messages at a constant rate; lateness is read from the log afterwards."""

    def lateness(subject: Subject, topic: str) -> list[int]:
        subject.cluster.stop()
        return lateness_ms(subject.cluster.store_path, DELAY_TABLE, real_topic=topic)

    with Subject(contender, load, messageDelayLevel=DELAY_TABLE) as subject:
        subject.start()
        yield _paced(options, subject, rows.DELAY_ROWS, {"levels": "1,2"}, {"levels": "1,2,3,4,5"}, lateness)


def timed(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure timed messages like delayed ones, with due times in milliseconds."""
    warm, delays = {"delays_ms": "1000,2000"}, {"delays_ms": "1000,5000"}
    with Subject(contender, load, timers=True) as subject:
        subject.start()
        yield _paced(options, subject, rows.TIMED_ROWS, warm, delays, _timed_lateness_ms)


def _timed_lateness_ms(subject: Subject, topic: str) -> list[float]:
    late = sorted(stored_ms - due_ms for due_ms, stored_ms in subject.delivered_times(topic)[topic])
    if late and late[0] < 0:
        raise HarnessError(f"{subject.kind}: a message was stored {-late[0]:g} ms before its due time")
    return late


def _paced(
    options: Options,
    subject: Subject,
    measured: tuple[Row, ...],
    warm_delays: dict[str, str],
    delays: dict[str, str],
    lateness: Callable[[Subject, str], Sequence[float]],
) -> list[Sample]:
    """Send at DELAY_RATE and wait for the deliveries; return rate, processor time and lateness (p50, p99)."""
    warm_count = options.count(10_000, 4_000)
    warm = subject.send("WarmDelayed", threads=16, count=warm_count, rate=2_000, size=100, **warm_delays)
    subject.wait_until_held("WarmDelayed", int(warm["acknowledged"]), limit_s=60)
    count = int(options.scaled(20, 6)) * DELAY_RATE
    before = proc.processor_s(subject.pid)
    sent = subject.send("Delayed", threads=16, count=count, rate=DELAY_RATE, size=100, **delays)
    subject.wait_until_held("Delayed", int(sent["acknowledged"]), limit_s=60)
    used = proc.processor_s(subject.pid) - before
    late = lateness(subject, "Delayed")
    if len(late) < count:
        raise HarnessError(f"{subject.kind}: {len(late)} of {count} delayed messages have a copy in the store")
    figures = (sent["rate"], used / count * 1e6, _percentile(late, 50), _percentile(late, 99))
    return [Sample(row, value) for row, value in zip(measured, figures, strict=True)]


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[len(ordered) * percent // 100]


def overdue(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure a broker that was down while its messages became due."""
    with Subject(contender, load, messageDelayLevel=OVERDUE_TABLE) as subject:
        yield from _overdue(options, subject, "overdue", {"levels": "2"})


def overdue_timed(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure the same with timed messages."""
    delay_ms = int(OVERDUE_DELAY_S * 1000)
    with Subject(contender, load, timers=True) as subject:
        yield from _overdue(options, subject, "overdue-timed", {"delays_ms": f"{delay_ms},{delay_ms}"})


def _overdue(options: Options, subject: Subject, group: str, delays: dict[str, str]) -> Iterator[list[Sample]]:
    count = options.count(50_000, 10_000)
    subject.start()
    subject.send("Warm", seconds=options.scaled(3, 1), threads=16, size=100)
    started = time.monotonic()
    fill(subject, "Overdue", count, **delays)
    if time.monotonic() - started > OVERDUE_DELAY_S - 5:
        raise HarnessError(f"{subject.kind}: sending took so long that the first messages came due before the stop")
    subject.cluster.stop()
    yield []
    time.sleep(max(0.0, started + OVERDUE_DELAY_S * 2 - time.monotonic()))
    subject.cluster.start()
    spawned_ms = proc.started_ms(subject.pid)
    subject.wait_until_held("Overdue", count, limit_s=180)
    subject.cluster.stop()
    handed = [record.stored_ms for record in records(subject.cluster.store_path) if record.topic == "Overdue"]
    if len(handed) < count or min(handed) < spawned_ms:
        raise HarnessError(f"{subject.kind}: {len(handed)} copies, expected {count}, all after the restart")
    to_last, span = rows.overdue_rows(group, count)
    yield [
        Sample(to_last, (max(handed) - spawned_ms) / 1000),
        Sample(span, (max(handed) - min(handed)) / 1000),
    ]


def burst(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure many timed messages of one topic that are due at the same time, and their effect on other messages."""
    count = options.count(500_000, 20_000)
    with Subject(contender, load, timers=True) as subject:
        subject.start()
        due_ms = _send_burst(options, subject, count)
        time.sleep(max(0.0, due_ms / 1000 - time.time()))
        meanwhile = load.start(
            "send", namesrv=subject.cluster.namesrv_address, topic=MEANWHILE, timeout_ms=SEND_TIMEOUT_MS,
            threads=16, rate=MEANWHILE_RATE, size=100, seconds=BURST_LIMIT_S,
        )  # fmt: skip
        subject.wait_until_held(BURST, count, limit_s=BURST_LIMIT_S)
        due_by_now = int(time.time() * 1000 - due_ms) // OTHER_STEP_MS + 1
        load.call("stop")
        sent = meanwhile.result()
        subject.wait_until_held(OTHER, min(due_by_now, OTHER_COUNT), limit_s=60)
        figures = burst_figures(subject.delivered_times(BURST, OTHER), due_ms, count)
        yield [Sample(row, value) for row, value in zip(rows.burst_rows(count), figures, strict=True)]
        subject.check_sent(sent)
        yield [Sample(rows.burst_send_row(count), sent["p99_us"] / 1000)]


def _send_burst(options: Options, subject: Subject, count: int) -> int:
    """Warm up, and send the messages of both topics; return the due time in ms, a whole second."""
    warm_count = options.count(20_000, 4_000)
    elapsed_s = 0.0
    for topic in ("WarmBurst", "WarmBurst2"):
        elapsed_s = fill(subject, topic, warm_count, delays_ms="1000,2000")
        subject.wait_until_held(topic, warm_count, limit_s=60)
    subject.send(MEANWHILE, count=1_000, threads=16, size=100)
    due_ms = int(time.time() + 2 * elapsed_s * count / warm_count + LEAD_MARGIN_S) * 1000
    fill(subject, BURST, count, deliver_ms=due_ms)
    fill(subject, OTHER, OTHER_COUNT, deliver_ms=due_ms, step_ms=OTHER_STEP_MS)
    if due_ms / 1000 - time.time() < LEAD_MARGIN_S / 2:
        raise HarnessError(f"{subject.kind}: the last of {count} messages was sent too shortly before the due time")
    return due_ms


def fill(subject: Subject, topic: str, count: int, **times: object) -> float:
    """Send until `count` messages are acknowledged, however many sends are rejected; return the duration in s."""
    sent = subject.call(
        "send", topic=topic, count=count, at_most_seconds=FILL_LIMIT_S, timeout_s=FILL_LIMIT_S + 60, **FILL, **times
    )
    if sent["acknowledged"] < count:
        raise HarnessError(f"{subject.kind}: {sent['acknowledged']} of {count} sends succeeded: {sent['errors']}")
    return float(sent["elapsed_s"])


def burst_figures(times: Mapping[str, Times], due_ms: int, count: int) -> tuple[float, ...]:
    """Return the values of `rows.burst_rows`: two durations in s, and the lateness in ms of the other topic's messages
    that were due before the burst's last delivery.

    HarnessError if a message of the burst has no copy, or one from before its due time.
    """
    handed = [stored_ms for _, stored_ms in times[BURST]]
    if len(handed) < count or min(handed) < due_ms:
        raise HarnessError(f"{len(handed)} copies, expected {count}, all at or after the due time")
    last_ms = max(handed)
    late = sorted(stored_ms - other_ms for other_ms, stored_ms in times[OTHER] if other_ms <= last_ms)
    if not late:
        raise HarnessError(f"no message of topic {OTHER} was delivered")
    percentiles = (_percentile(late, 50), _percentile(late, 99), late[-1])
    return ((last_ms - due_ms) / 1000, (last_ms - min(handed)) / 1000, *percentiles)
