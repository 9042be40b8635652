"""Scenario of a broker with one replica: DelayMQ's pair of members, and RocketMQ's master and slave."""

from __future__ import annotations

import statistics
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import proc
import rows
from crash.load import LoadProgram
from harness.commitlog import BLANK_MAGIC, MESSAGE_MAGIC
from harness.errors import HarnessError
from options import Options
from rows import Row, Sample
from subjects import Contender, Subject

SYNC_8: dict[str, Any] = {"threads": 8}
BATCH: dict[str, Any] = {"mode": "batch", "threads": 4, "batch": 32}
MODES = ("ASYNC_MASTER", "SYNC_MASTER")
UNLIMITED = str(1 << 40)
"""Only DelayMQ limits what a replica that catches up receives. RocketMQ's broker ignores the setting."""
LAG_RATE = 20_000
LAG_SAMPLE_S = 0.01
MIN_LAGS = 2
"""The fewest values that have percentiles."""
CATCH_UP_LIMIT_S = 300.0
CONNECT_LIMIT_S = 60.0
POLL_S = 0.1
STEADY_S = 3
STEADY_BLOCKS = 3
"""Number of times that a rate is measured before the replica is stopped or started."""
ALONE_S = 4.0
"""Time after which a master has noticed that its replica has stopped or returned; the default timeout is 2 s."""
MIB = 1 << 20
_SIZE_MAGIC = struct.Struct(">iI")


def replicas(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure sends that do and do not wait for the replica, its lag, and a replica that receives the whole log.

    The latter needs ASYNC_MASTER: under SYNC_MASTER, no send succeeds without a replica.
    """
    for mode in MODES:
        with _started(options, contender, load, mode) as subject:
            yield []
            yield _send(options, subject, mode)
            if mode == "ASYNC_MASTER":
                yield _lag(options, subject)
                yield _catch_up(options, subject)


def steady(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure sends at constant rates with and without the replica in turn, under ASYNC_MASTER."""
    with _started(options, contender, load, "ASYNC_MASTER") as subject:
        yield []
        yield _steady(options, subject)


@contextmanager
def _started(options: Options, contender: Contender, load: LoadProgram, mode: str) -> Iterator[Subject]:
    with Subject(contender, load, is_pair=True, brokerRole=mode, haMaxBytesPerSecond=UNLIMITED) as subject:
        subject.start()
        _wait_for_replica(subject)
        subject.send("Warm", seconds=options.scaled(10, 3), size=1024, **SYNC_8)
        yield subject


def _wait_for_replica(subject: Subject) -> None:
    """Wait until sends succeed: RocketMQ's slave connects to its master within 5 s."""
    deadline = time.monotonic() + CONNECT_LIMIT_S
    while not subject.call("send", topic="Warm", count=1, size=100, threads=1, timeout_ms=3_000)["acknowledged"]:
        if time.monotonic() > deadline:
            raise HarnessError(f"{subject.kind}: no send succeeds\n{subject.cluster.broker.log_tail()}")
        time.sleep(POLL_S)


def _send(options: Options, subject: Subject, mode: str) -> list[Sample]:
    pair = subject.pair
    before = proc.processor_s(subject.pid), proc.processor_s(pair.replica.pid)
    result = subject.send("Bench", seconds=options.scaled(10, 3), size=1024, **SYNC_8)
    used = proc.processor_s(subject.pid) - before[0], proc.processor_s(pair.replica.pid) - before[1]
    count = result["acknowledged"]
    rate, master, replica, p99 = rows.replicated_rows(mode)
    return [
        Sample(rate, result["rate"]),
        Sample(master, used[0] / count * 1e6),
        Sample(replica, used[1] / count * 1e6),
        Sample(p99, result["p99_us"] / 1_000),
    ]


def _steady(options: Options, subject: Subject) -> list[Sample]:
    """Send at constant rates, so that the load does not depend on what the replica costs.

    The same master is measured with and without its replica in turn, because processes of the same program differ.
    """
    pair, used = subject.pair, defaultdict[Row, list[float]](list)
    for _ in range(options.count(2, 1)):
        for has_replica in (True, False):
            if not has_replica:
                pair.replica.kill()
                time.sleep(ALONE_S)
            for rate in rows.STEADY_RATES:
                row = rows.steady_row(rate, has_replica=has_replica)
                used[row] += (_send_steadily(subject, rate) for _ in range(STEADY_BLOCKS))
        _return(subject)
    return [Sample(row, statistics.median(values)) for row, values in used.items()]


def _return(subject: Subject) -> None:
    """Start the replica again, and wait until it has the log."""
    master, replica = LogEnd(subject.pair.store_path), LogEnd(subject.pair.replica_path)
    master.offset()
    subject.pair.start_replica()
    _wait(subject, lambda: replica.has_record(master.last), "does not catch up")
    time.sleep(ALONE_S)


def _send_steadily(subject: Subject, rate: int) -> float:
    """Send at a constant rate, and return the processor time of the master for each message, in microseconds."""
    before_s = proc.processor_s(subject.pid)
    result = subject.send("Steady", count=rate * STEADY_S, rate=rate, size=1024, **SYNC_8)
    used_s = proc.processor_s(subject.pid) - before_s
    return used_s / int(result["acknowledged"]) * 1e6


def _lag(options: Options, subject: Subject) -> list[Sample]:
    """Compare the ends of both logs while messages are sent in batches at a constant rate."""
    pair, count = subject.pair, LAG_RATE * options.count(8, 2)
    replica, master = LogEnd(pair.replica_path), LogEnd(pair.store_path)
    replica.offset()  # the first one reads the whole log
    began_at, began_s = master.offset(), time.monotonic()
    sends = subject.load.start(
        "send", namesrv=subject.cluster.namesrv_address, topic="Lag", count=count, rate=LAG_RATE, size=1024,
        timeout_ms=10_000, **BATCH,
    )  # fmt: skip
    lags: list[int] = []
    while not sends.is_done:
        reached = replica.offset()
        lags.append(master.offset() - reached)
        time.sleep(LAG_SAMPLE_S)
    seconds = time.monotonic() - began_s
    result = sends.result(10)
    subject.check_sent(result)
    if len(lags) < MIN_LAGS:
        raise HarnessError(f"{subject.kind}: the lag was read only {len(lags)} times: use a less busy machine")
    bytes_per_ms = (master.offset() - began_at) / seconds / 1_000
    cuts = statistics.quantiles(lags, n=100)
    return [
        Sample(rows.LAG_RATE, result["rate"]),
        Sample(rows.LAG_P50, cuts[49] / bytes_per_ms),
        Sample(rows.LAG_P99, cuts[98] / bytes_per_ms),
    ]


def _catch_up(options: Options, subject: Subject) -> list[Sample]:
    """Let a replica with an empty volume receive the log while nothing is sent. Its start is not included."""
    pair = subject.pair
    pair.replica.kill()
    subject.send("Filled", count=options.count(600_000, 100_000), size=1024, timeout_ms=10_000, **BATCH)
    pair.empty_replica()
    master = LogEnd(pair.store_path)
    end, replica = master.offset(), LogEnd(pair.replica_path)
    pair.start_replica()
    began_s = _wait(subject, lambda: replica.has_record(replica.begin()), "has no log")
    began_at = replica.begin()
    seconds = _wait(subject, lambda: replica.has_record(master.last), f"does not have the log up to {end}") - began_s
    return [
        Sample(rows.CATCH_UP, (end - began_at) / MIB / max(seconds, POLL_S)),
        Sample(rows.REPLICA_MEMORY, proc.memory_mib(pair.replica.pid, "RssAnon")),
    ]


def _wait(subject: Subject, condition: Callable[[], bool], problem: str) -> float:
    """Wait for a condition, and return the time, monotonic. HarnessError after CATCH_UP_LIMIT_S."""
    deadline = time.monotonic() + CATCH_UP_LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise HarnessError(f"{subject.kind}: the replica {problem}\n{subject.pair.replica.log_tail()}")
        time.sleep(LAG_SAMPLE_S)
    return time.monotonic()


class LogEnd:
    """End of a log that grows, found from record to record. Only their sizes are read."""

    def __init__(self, store: Path) -> None:
        self._folder = store / "commitlog"
        self._offset = 0
        self.last = 0
        """Physical offset of the last record that `offset` found."""

    def begin(self) -> int:
        """Return the physical offset of the oldest segment; 0 without a log."""
        return min((base for base, _ in self._segments()), default=0)

    def has_record(self, offset: int) -> bool:
        """Return whether the log has a record at a physical offset."""
        for base, path in reversed(self._segments()):
            if base <= offset:
                with path.open("rb", buffering=0) as file:
                    return self._read(file, offset - base)[1] == MESSAGE_MAGIC
        return False

    def offset(self) -> int:
        """Return the physical offset after the last record; 0 without a log."""
        for base, path in self._segments():
            following = base + path.stat().st_size
            if self._offset < following and not self._advance(base, path):
                break
        return self._offset

    def _segments(self) -> list[tuple[int, Path]]:
        paths = self._folder.iterdir() if self._folder.exists() else ()
        return sorted((int(path.name), path) for path in paths)

    def _advance(self, base: int, path: Path) -> bool:
        """Advance within a segment; return whether the next one follows."""
        self._offset = max(self._offset, base)
        with path.open("rb", buffering=0) as file:
            while True:
                size, magic = self._read(file, self._offset - base)
                if size <= 0 or magic not in (MESSAGE_MAGIC, BLANK_MAGIC):
                    return False
                following = self._offset + size
                if magic == BLANK_MAGIC:
                    self._offset = following
                    return True
                self.last, self._offset = self._offset, following

    @staticmethod
    def _read(file: FileIO, position: int) -> tuple[int, int]:
        """Return size and magic number of a record, which may be written at this moment."""
        head = previous = None
        while head is None or head != previous:  # half of a size that crosses a cache line may be read
            previous = head
            file.seek(position)
            head = file.read(_SIZE_MAGIC.size)
        size, magic = _SIZE_MAGIC.unpack(head) if len(head) == _SIZE_MAGIC.size else (0, 0)
        return size, magic
