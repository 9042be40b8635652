"""Benchmark scenarios. A scenario is a generator that yields after every row, so that two brokers take turns."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import backlog
import delays
import proc
import replicas
import rows
from crash.load import JVM_OPTIONS, LoadProgram
from harness.commitlog import log_end
from options import Options
from rows import Sample
from subjects import Contender, Subject
from tls import CLIENT_OPTIONS, ServerKeys

Scenario = Callable[[Options, Contender, LoadProgram], Iterator[list[Sample]]]

SEND_OPTIONS: dict[str, dict[str, Any]] = {
    "sync1": {"threads": 1},
    "sync8": {"threads": 8},
    "sync64": {"threads": 64},
    "async": {"mode": "async", "threads": 2, "window": 512},
    "batch": {"mode": "batch", "threads": 4, "batch": 32},
}
TRANSACTION_THREADS = (1, 16)
KINDS = 10
FILTERS: dict[str, dict[str, Any]] = {"SQL92": {"sql": "kind='3'AND(number>=0)"}, "tags": {"tags": "T3"}}
GUARDED_SENDS = ("sync1", "sync64", "async")
ACCESS_KEY, SECRET_KEY = "bench-producer", "bench-producer-secret"
ACCOUNT_OPTIONS = (f"-Dload.accessKey={ACCESS_KEY}", f"-Dload.secretKey={SECRET_KEY}")
RULES = f"""accounts:
- accessKey: {ACCESS_KEY}
  secretKey: {SECRET_KEY}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
UNREACHED_QUOTAS = """  quotas:
    sendBytesPerSecond: 1000000000
    sendRequestsPerSecond: 1000000
    pullBytesPerSecond: 1000000000
    pullRequestsPerSecond: 1000000
    requestsPerSecond: 1000000
    eventLoopPercent: 100
    connections: 1000
"""
GIB = 1 << 30
ASYNCIO_LOAD_PATH = Path(__file__).resolve().parent / "asyncio_load.py"


def serving(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure from the first start to memory after load, all on one store."""
    with Subject(contender, load) as subject:
        seconds = subject.start_to_first_send_s("First")
        yield [Sample(rows.START, seconds)] if options.wants("start") else []
        if options.wants("idle"):
            yield _idle(options, subject)
        if not options.wants(*rows.SEND_GROUPS, "consume", "latency", "memory"):
            return
        _warm_up(options, subject)
        yield []
        for size in options.sizes:
            for group, title in rows.SEND_GROUPS.items():
                if options.wants(group):
                    yield _send(options, subject, group, title, size)
            if options.wants("consume"):
                yield _consume(options, subject, size)
        if options.wants("latency"):
            yield _latency(options, subject)
        if options.wants("memory"):
            yield [Sample(rows.LOADED_MEMORY, proc.memory_mib(subject.pid, "RssAnon"))]


def _idle(options: Options, subject: Subject) -> list[Sample]:
    time.sleep(options.scaled(5, 2))
    seconds = options.scaled(20, 8)
    before = proc.processor_s(subject.pid)
    time.sleep(seconds)
    percent = (proc.processor_s(subject.pid) - before) / seconds * 100
    return [
        Sample(rows.IDLE_MEMORY, proc.memory_mib(subject.pid, "VmRSS")),
        Sample(rows.IDLE_PROCESSOR, percent),
    ]


def _warm_up(options: Options, subject: Subject) -> None:
    """Warm up: RocketMQ's broker and client run compiled code only after some thousand messages of each kind."""
    for send_options in SEND_OPTIONS.values():
        subject.send("Warm", seconds=options.scaled(5, 2), size=options.sizes[0], **send_options)
    held = subject.call("held", topic="Warm")["messages"]
    subject.call("consume", topic="Warm", group="warm_group", count=min(held, 100_000))


def _per_message(row_group: str, title: str, size: int, rate: float, processor_s: float, count: int) -> list[Sample]:
    return [
        Sample(rows.rate_row(row_group, title, size), rate),
        Sample(rows.processor_row(row_group, title, size), processor_s / count * 1e6),
    ]


def _send(options: Options, subject: Subject, group: str, title: str, size: int) -> list[Sample]:
    return _per_message(group, title, size, *_sent(options, subject, size, SEND_OPTIONS[group]))


def _sent(options: Options, subject: Subject, size: int, send: Mapping[str, Any]) -> tuple[float, float, int]:
    """Send for a while, and return the rate, the broker's processor time in seconds, and the number of messages."""
    before = proc.processor_s(subject.pid)
    result = subject.send("Bench", seconds=options.scaled(10, 3), size=size, **send)
    return result["rate"], proc.processor_s(subject.pid) - before, result["acknowledged"]


def _consume(options: Options, subject: Subject, size: int) -> list[Sample]:
    count = options.count(300_000, 60_000)
    topic = f"Filled{size}"
    subject.send(topic, count=count, size=size, **SEND_OPTIONS["batch"])
    before = proc.processor_s(subject.pid)
    result = subject.call("consume", topic=topic, group=f"group_{size}", count=count)
    used = proc.processor_s(subject.pid) - before
    return _per_message("consume", "push consumer, filled topic", size, result["rate"], used, result["received"])


def _latency(options: Options, subject: Subject) -> list[Sample]:
    _make_topic(subject, "WarmLatency")
    subject.call("latency", topic="WarmLatency", group="warm_latency_group", count=500, rate=500)
    _make_topic(subject, "Latency")
    count = options.count(5_000, 1_500)
    result = subject.call("latency", topic="Latency", group="latency_group", count=count, rate=500)
    return [Sample(rows.LATENCY_P50, result["p50_us"] / 1000), Sample(rows.LATENCY_P99, result["p99_us"] / 1000)]


def _make_topic(subject: Subject, topic: str) -> None:
    """Create a topic by a send, since a consumer that starts earlier looks for it only every 30 s."""
    subject.call("first-send", topic=topic)


def encrypted(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure sends of 64 threads over TLS, which broker, NameServer and client use instead of plaintext."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="delaymq-bench-tls-")))
        load = stack.enter_context(LoadProgram(folder, jvm_options=(*JVM_OPTIONS, *CLIENT_OPTIONS)))
        subject = stack.enter_context(Subject(contender, load, tls=ServerKeys.make(folder / "keys")))
        subject.start()
        # Until its encryption code is compiled, RocketMQ's broker needs seconds for a send on a busy machine.
        send = {**SEND_OPTIONS["sync64"], "timeout_ms": 30_000}
        subject.send("Warm", seconds=options.scaled(10, 2), size=options.sizes[0], **send)
        yield []
        for size in options.sizes:
            title = f"{rows.SEND_GROUPS['sync64']}, TLS"
            yield _per_message("tls", title, size, *_sent(options, subject, size, send))


def access(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure sends with access control: the client signs each request, and the broker checks it."""
    return _guarded(options, contender, "access", RULES)


def quotas(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure the same sends with every quota on a rate, none of which is reached."""
    return _guarded(options, contender, "quotas", f"{RULES}{UNREACHED_QUOTAS}")


def _guarded(options: Options, contender: Contender, group: str, rules: str) -> Iterator[list[Sample]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="delaymq-bench-access-")))
        load = stack.enter_context(LoadProgram(folder, jvm_options=(*JVM_OPTIONS, *ACCOUNT_OPTIONS)))
        subject = stack.enter_context(Subject(contender, load, rules=rules))
        subject.start()
        for send in GUARDED_SENDS:
            subject.send("Warm", seconds=options.scaled(5, 2), size=options.sizes[0], **SEND_OPTIONS[send])
        yield []
        for size in options.sizes:
            for send in GUARDED_SENDS:
                rate, processor_s, count = _sent(options, subject, size, SEND_OPTIONS[send])
                rate_row, processor_row = rows.guarded_rows(group, send, size)
                yield [Sample(rate_row, rate), Sample(processor_row, processor_s / count * 1e6)]


def filtered(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure filtered pulls: one message in ten matches, by its tag or by an expression over its properties.

    Each group reads the whole topic, one group at a time; the rate is that of the median group.
    """
    count, groups = options.count(600_000, 60_000), options.count(7, 3)
    with Subject(contender, load, enablePropertyFilter="true") as subject:
        subject.start()
        for topic, size in (("WarmFiltered", count // 4), ("Filtered", count)):
            subject.send(topic, count=size, size=1024, kinds=KINDS, **SEND_OPTIONS["batch"])
        for name, wanted in FILTERS.items():
            subject.call("consume", topic="WarmFiltered", group=f"warm_{name}", count=count // 4 // KINDS, **wanted)
        yield []
        for name, wanted in FILTERS.items():
            used, seconds = 0.0, []
            for number in range(groups):
                before = proc.processor_s(subject.pid)
                group = f"{name}_{number}"
                wanted_count = count // KINDS
                result = subject.call("consume", topic="Filtered", group=group, count=wanted_count, settled=1, **wanted)
                used += proc.processor_s(subject.pid) - before
                seconds.append(float(result["elapsed_s"]))
            title = f"filtered pull, {name}, 1 in {KINDS} matches, 1024 B"
            yield [
                Sample(rows.filtered_rate_row(name, title), count / statistics.median(seconds)),
                Sample(rows.filtered_processor_row(name, title), used / (count * groups) * 1e6),
            ]


def transactions(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure transactions that are committed immediately, until the last committed message is in its topic."""
    with Subject(contender, load) as subject:
        subject.start()
        for threads in TRANSACTION_THREADS:
            _transact(options, subject, "WarmTransactions", threads, options.scaled(4, 2))
        yield []
        for threads in TRANSACTION_THREADS:
            before = proc.processor_s(subject.pid)
            count, elapsed_s = _transact(options, subject, f"Transactions{threads}", threads, options.scaled(10, 3))
            used = proc.processor_s(subject.pid) - before
            yield [
                Sample(rows.transaction_rate_row(threads), count / elapsed_s),
                Sample(rows.transaction_processor_row(threads), used / count * 1e6),
            ]


def _transact(options: Options, subject: Subject, topic: str, threads: int, seconds: float) -> tuple[int, float]:
    """Return the number of commits and the time they took."""
    result = subject.send(topic, mode="transaction", threads=threads, seconds=seconds, size=1024)
    count = int(result["acknowledged"])
    if not topic.startswith("Warm"):
        # The commit is a one-way request: the producer gets no response.
        subject.wait_until_held(topic, count, limit_s=30)
    return count, float(result["elapsed_s"])


def recovery(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Measure the recovery after a kill with a million messages, without consume queues."""
    count = options.count(1_000_000, 100_000)
    with Subject(contender, load) as subject:
        subject.start()
        result = subject.send("Million", mode="batch", threads=4, batch=32, count=count, size=1024)
        stored = int(result["acknowledged"])
        subject.cluster.kill()
        yield []
        seconds = subject.start_to_first_send_s("Million")
        subject.wait_until_held("Million", stored + 1, limit_s=5)
        yield [Sample(rows.killed_row(count), seconds)] if options.wants("recovery") else []
        if options.wants("rebuild"):
            subject.cluster.stop()
            shutil.rmtree(subject.cluster.store_path / "consumequeue")
            log_bytes = log_end(subject.cluster.store_path)
            seconds = subject.start_to_first_send_s("Million", limit_s=300)
            if subject.wait_until_held("Million", stored + 2, limit_s=300):
                # The broker accepted sends before its consume queues were complete; consumers had to wait until now.
                seconds = (time.time() * 1000 - proc.started_ms(subject.pid)) / 1000
            yield [Sample(rows.REBUILD, seconds / (log_bytes / GIB))]


def clients(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
    """Compare DelayMQ's asyncio client (``ours``) with RocketMQ's (``real``), each on a separate DelayMQ broker."""
    with ExitStack() as stack:
        if contender.kind == "ours":
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="delaymq-bench-client-")))
            command = [*contender.command, str(ASYNCIO_LOAD_PATH), *(["--uvloop"] if options.uvloop else [])]
            load = stack.enter_context(LoadProgram(folder, command=command))
        subject = stack.enter_context(Subject(replace(contender, kind="ours"), load))
        subject.start()
        _warm_up_client(options, subject)
        yield []
        for size in options.sizes:
            for group, title in rows.SEND_GROUPS.items():
                seconds = options.scaled(10, 3)
                before = proc.processor_s(load.pid)
                result = subject.send("Bench", seconds=seconds, size=size, **SEND_OPTIONS[group])
                used = proc.processor_s(load.pid) - before
                yield _of_client(group, title, size, result["rate"], used, result["acknowledged"])
            yield _client_consumes(options, subject, size)
        yield _client_latency(options, subject)


def _warm_up_client(options: Options, subject: Subject) -> None:
    for send_options in SEND_OPTIONS.values():
        subject.send("Warm", seconds=options.scaled(5, 2), size=options.sizes[0], **send_options)
    subject.send("WarmConsume", count=20_000, size=options.sizes[0], **SEND_OPTIONS["batch"])
    subject.call("consume", topic="WarmConsume", group="warm_group", count=20_000)


def _of_client(name: str, title: str, size: int, rate: float, processor_s: float, count: int) -> list[Sample]:
    return [
        Sample(rows.client_rate_row(name, title, size), rate),
        Sample(rows.client_processor_row(name, title, size), processor_s / count * 1e6),
    ]


def _client_consumes(options: Options, subject: Subject, size: int) -> list[Sample]:
    count = options.count(300_000, 60_000)
    topic = f"Filled{size}"
    subject.send(topic, count=count, size=size, **SEND_OPTIONS["batch"])
    before = proc.processor_s(subject.load.pid)
    result = subject.call("consume", topic=topic, group=f"group_{size}", count=count)
    used = proc.processor_s(subject.load.pid) - before
    return _of_client("consume", "push consumer, filled topic", size, result["rate"], used, result["received"])


def _client_latency(options: Options, subject: Subject) -> list[Sample]:
    for topic in ("WarmLatency", "Latency"):
        subject.send(topic, count=1, size=100)
    subject.call("latency", topic="WarmLatency", group="warm_latency_group", count=500, rate=500)
    count = options.count(5_000, 1_500)
    before = proc.processor_s(subject.load.pid)
    result = subject.call("latency", topic="Latency", group="latency_group", count=count, rate=500)
    used = proc.processor_s(subject.load.pid) - before
    return [
        Sample(rows.CLIENT_LATENCY_P50, result["p50_us"] / 1000),
        Sample(rows.CLIENT_LATENCY_P99, result["p99_us"] / 1000),
        Sample(rows.CLIENT_LATENCY_PROCESSOR, used / count * 1e6),
    ]


SCENARIOS: dict[str, tuple[Scenario, frozenset[str]]] = {
    "serving": (serving, frozenset({"start", "idle", *rows.SEND_GROUPS, "consume", "latency", "memory"})),
    "delay": (delays.delay, frozenset({"delay"})),
    "timed": (delays.timed, frozenset({"timed"})),
    "burst": (delays.burst, frozenset({"burst"})),
    "tls": (encrypted, frozenset({"tls"})),
    "access": (access, frozenset({"access"})),
    "quotas": (quotas, frozenset({"quotas"})),
    "filtered": (filtered, frozenset({"filtered"})),
    "transactions": (transactions, frozenset({"transactions"})),
    "overdue": (delays.overdue, frozenset({"overdue"})),
    "overdue-timed": (delays.overdue_timed, frozenset({"overdue-timed"})),
    "pending": (backlog.pending_timed, frozenset({"pending"})),
    "pending-level": (backlog.pending_levels, frozenset({"pending-level"})),
    "recovery": (recovery, frozenset({"recovery", "rebuild"})),
    "replicas": (replicas.replicas, frozenset({"replicas"})),
    "replicas-steady": (replicas.steady, frozenset({"replicas-steady"})),
    "client": (clients, frozenset({"client"})),
}
