"""Scenarios of the comparison with NATS: those of bench/run.py that NATS has, with a load program for NATS."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import delays
import proc
import rows
import scenarios
from crash.load import LoadProgram
from options import Options
from rows import Sample
from scenarios import SEND_OPTIONS, Scenario
from subjects import Contender, Subject

from nats import programs

EACH = "consume-each"
"""Scenario and row group of a consumer that acknowledges each message."""
MISSING_IN_OURS: Mapping[str, str] = {EACH: "consumers commit offsets instead of acknowledging single messages"}
SERVING_GROUPS = ("start", "idle", "sync1", "sync8", "sync64", "async", "consume", "latency", "memory")
GROUPS = (*SERVING_GROUPS, EACH, "timed", "burst")


def with_client(scenario: Scenario) -> Scenario:
    """Return the scenario that uses the load program for NATS if NATS is measured."""

    def run(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
        if contender.kind != "nats":
            yield from scenario(options, contender, load)
            return
        with (
            tempfile.TemporaryDirectory(prefix="delaymq-bench-nats-") as folder,
            LoadProgram(Path(folder), command=[str(programs.load_path())]) as own,
        ):
            yield from scenario(options, contender, own)

    return run


def consume_each(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure a consumer that acknowledges each message."""
    count = options.count(300_000, 60_000)
    with Subject(contender, load) as subject:
        subject.start()
        for topic in ("WarmEach", "Each"):
            subject.send(topic, count=count, size=1024, **SEND_OPTIONS["batch"])
        subject.call("consume", topic="WarmEach", group="warm_group", count=count, acks="each")
        yield []
        before = proc.processor_s(subject.pid)
        result = subject.call("consume", topic="Each", group="group", count=count, acks="each")
        used = proc.processor_s(subject.pid) - before
        title = "consumer that acknowledges each message, filled topic"
        yield [
            Sample(rows.rate_row(EACH, title, 1024), result["rate"]),
            Sample(rows.processor_row(EACH, title, 1024), used / result["received"] * 1e6),
        ]


SCENARIOS: dict[str, tuple[Scenario, frozenset[str]]] = {
    "serving": (with_client(scenarios.serving), frozenset(SERVING_GROUPS)),
    EACH: (with_client(consume_each), frozenset({EACH})),
    "timed": (with_client(delays.timed), frozenset({"timed"})),
    "burst": (with_client(delays.burst), frozenset({"burst"})),
}
