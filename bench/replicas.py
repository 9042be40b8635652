"""Scenario of a broker with one replica: DelayMQ's pair of members, and RocketMQ's master and slave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import proc
import rows
from crash.load import LoadProgram
from harness.commitlog import log_end
from harness.errors import HarnessError
from options import Options
from rows import Sample
from subjects import Contender, Subject

SYNC_8: dict[str, Any] = {"threads": 8}
BATCH: dict[str, Any] = {"mode": "batch", "threads": 4, "batch": 32}
MODES = ("ASYNC_MASTER", "SYNC_MASTER")
CATCH_UP_LIMIT_S = 300.0
CONNECT_LIMIT_S = 60.0
POLL_S = 0.1
MIB = 1 << 20


def replicas(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure sends that do and do not wait for the replica, and a replica that receives the whole log."""
    for mode in MODES:
        with Subject(contender, load, is_pair=True, brokerRole=mode) as subject:
            subject.start()
            _wait_for_replica(subject)
            subject.send("Warm", seconds=options.scaled(10, 3), size=1024, **SYNC_8)
            yield []
            yield _send(options, subject, mode)
            if mode == MODES[-1]:
                yield _catch_up(options, subject)


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


def _catch_up(options: Options, subject: Subject) -> list[Sample]:
    """Let a replica with an empty volume receive the log while nothing is sent. Its start is not included."""
    pair = subject.pair
    pair.replica.kill()
    subject.call("send", topic="Filled", count=options.count(600_000, 100_000), size=1024, timeout_ms=10_000, **BATCH)
    pair.empty_replica()
    end = log_end(pair.store_path)
    pair.start_replica()
    deadline = time.monotonic() + CATCH_UP_LIMIT_S
    first_s, first_end = 0.0, 0
    while True:
        reached = log_end(pair.replica_path) if (pair.replica_path / "commitlog").exists() else 0
        if reached and not first_s:
            first_s, first_end = time.monotonic(), reached
        if reached >= end:
            break
        if time.monotonic() > deadline:
            raise HarnessError(f"{subject.kind}: the replica has {reached} of {end} bytes\n{pair.replica.log_tail()}")
        time.sleep(POLL_S)
    seconds = max(POLL_S, time.monotonic() - first_s)
    return [
        Sample(rows.CATCH_UP, (end - first_end) / MIB / seconds),
        Sample(rows.REPLICA_MEMORY, proc.memory_mib(pair.replica.pid, "RssAnon")),
    ]
