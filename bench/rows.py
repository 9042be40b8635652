"""Rows of the table: measured quantity, unit, and which direction is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Row:
    """A measured figure; `group` is selected by ``--rows``."""

    name: str
    group: str
    title: str
    unit: str
    better: Better
    aim: str = ""


@dataclass(frozen=True)
class Sample:
    """A measurement of a row."""

    row: Row
    value: float


SEND_GROUPS = {
    "sync1": "sync send, 1 thread",
    "sync8": "sync send, 8 threads",
    "sync64": "sync send, 64 threads",
    "async": "async send, window 512",
    "batch": "batches of 32",
}


def rate_row(group: str, title: str, size: int) -> Row:
    return Row(f"{group}_{size}_rate", group, f"{title}, {size} B", "messages/s", "higher", "ratio ≥ 1")


def processor_row(group: str, title: str, size: int) -> Row:
    return Row(f"{group}_{size}_cpu", group, f"{title}, {size} B: processor", "µs/message", "lower", "ratio ≤ 1")


def guarded_rows(group: str, send: str, size: int) -> tuple[Row, Row]:
    """Return the rows of rate and processor time of the sends `send` with access control, or with quotas, too."""
    suffix = "access control" if group == "access" else "access control and quotas"
    title = f"{SEND_GROUPS[send]}, {suffix}, {size} B"
    name = f"{group}_{send}_{size}"
    return (
        Row(f"{name}_rate", group, title, "messages/s", "higher", "ratio ≥ 1"),
        Row(f"{name}_cpu", group, f"{title}: processor", "µs/message", "lower", "ratio ≤ 1"),
    )


START = Row("start", "start", "start to first acknowledged send", "s", "lower", "1 s")
IDLE_MEMORY = Row("idle_memory", "idle", "idle memory, VmRSS", "MiB", "lower", "60 MiB")
IDLE_PROCESSOR = Row("idle_cpu", "idle", "idle processor", "%", "lower", "1 %")
LOADED_MEMORY = Row("loaded_memory", "memory", "memory after load, RssAnon", "MiB", "lower")
LATENCY_P50 = Row("latency_p50", "latency", "send to receive, p50", "ms", "lower")
LATENCY_P99 = Row("latency_p99", "latency", "send to receive, p99", "ms", "lower")
DELAYED_RATE = Row("delayed_rate", "delay", "delayed send at 2,000/s", "messages/s", "higher", "2,000")
DELAYED_PROCESSOR = Row("delayed_cpu", "delay", "delayed send and delivery: processor", "µs/message", "lower")
LATENESS_P50 = Row("lateness_p50", "delay", "lateness in the store, p50", "ms", "lower", "1 ms")
LATENESS_P99 = Row("lateness_p99", "delay", "lateness in the store, p99", "ms", "lower", "5 ms")
DELAY_ROWS = (DELAYED_RATE, DELAYED_PROCESSOR, LATENESS_P50, LATENESS_P99)
TIMED_ROWS = (
    Row("timed_rate", "timed", "timed send at 2,000/s", "messages/s", "higher", "2,000"),
    Row("timed_cpu", "timed", "timed send and delivery: processor", "µs/message", "lower"),
    Row("timed_lateness_p50", "timed", "timed: lateness in the store, p50", "ms", "lower", "1 ms"),
    Row("timed_lateness_p99", "timed", "timed: lateness in the store, p99", "ms", "lower", "5 ms"),
)
"""The counterparts of DELAY_ROWS."""
REBUILD = Row("rebuild", "rebuild", "full rebuild without consume queues, start included", "s/GiB", "lower")


def overdue_rows(group: str, count: int) -> tuple[Row, Row]:
    """Return the rows of the start and of the first delivery, each to the last delivery."""
    name, kind = ("overdue", "overdue") if group == "overdue" else ("overdue_timed", "overdue timed messages")
    return (
        Row(name, group, f"{count:,} {kind}: start to last delivery", "s", "lower"),
        Row(f"{name}_span", group, f"{count:,} {kind}: first to last delivery", "s", "lower"),
    )


def burst_rows(count: int) -> tuple[Row, ...]:
    """Return the rows of the deliveries: durations, then lateness of the other topic (p50, p99, maximum)."""
    title = f"{count:,} due at the same time"
    return (
        Row("burst", "burst", f"{title}: due time to last delivery", "s", "lower"),
        Row("burst_span", "burst", f"{title}: first to last delivery", "s", "lower"),
        Row("burst_lateness_p50", "burst", f"{title}: lateness of another topic, p50", "ms", "lower"),
        Row("burst_lateness_p99", "burst", f"{title}: lateness of another topic, p99", "ms", "lower"),
        Row("burst_lateness_max", "burst", f"{title}: lateness of another topic, maximum", "ms", "lower"),
    )


def burst_send_row(count: int) -> Row:
    return Row("burst_send_p99", "burst", f"{count:,} due at the same time: sends meanwhile, p99", "ms", "lower")


def pending_rows(group: str, count: int) -> tuple[Row, ...]:
    """Return the rows of memory, of the sends (first and last quarter), and of a start after a stop and a kill."""
    title = f"{count:,} pending {'timed messages' if group == 'pending' else 'at one level'}"
    name = group.replace("-", "_")
    return (
        Row(f"{name}_memory", group, f"{title}: RssAnon", "MiB", "lower", "120 MiB"),
        Row(f"{name}_first", group, f"{title}: sends, first quarter: processor", "µs/message", "lower"),
        Row(f"{name}_last", group, f"{title}: sends, last quarter: processor", "µs/message", "lower"),
        Row(f"{name}_start", group, f"{title}: clean start to first send", "s", "lower", "5 s"),
        Row(f"{name}_killed", group, f"{title}: kill -9, start to first send", "s", "lower", "5 s"),
    )


def killed_row(count: int) -> Row:
    return Row("killed", "recovery", f"kill -9 with {count:,} × 1 KiB: start to first send", "s", "lower", "1 s")


def client_rate_row(name: str, title: str, size: int) -> Row:
    return Row(f"client_{name}_{size}_rate", "client", f"client: {title}, {size} B", "messages/s", "higher")


def client_processor_row(name: str, title: str, size: int) -> Row:
    return Row(f"client_{name}_{size}_cpu", "client", f"client: {title}, {size} B: processor", "µs/message", "lower")


def filtered_rate_row(name: str, title: str) -> Row:
    return Row(f"filtered_{name}_rate", "filtered", f"{title}: examined", "messages/s", "higher", "ratio ≥ 1")


def filtered_processor_row(name: str, title: str) -> Row:
    return Row(f"filtered_{name}_cpu", "filtered", f"{title}: processor", "µs/message", "lower", "ratio ≤ 1")


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def transaction_rate_row(threads: int) -> Row:
    title = f"transactions committed, {_threads(threads)}, 1024 B"
    return Row(f"transactions_{threads}_rate", "transactions", title, "transactions/s", "higher", "ratio ≥ 1")


def transaction_processor_row(threads: int) -> Row:
    title = f"transactions committed, {_threads(threads)}, 1024 B: processor"
    return Row(f"transactions_{threads}_cpu", "transactions", title, "µs/transaction", "lower", "ratio ≤ 1")


def replicated_rows(mode: str) -> tuple[Row, Row, Row, Row]:
    """Return the rows of sends with a replica: rate, processor time of the master and of the replica, p99."""
    title = f"sync send, 8 threads, 1024 B, {mode} with a replica"
    name = f"replicas_{mode.partition('_')[0].lower()}"
    return (
        Row(f"{name}_rate", "replicas", title, "messages/s", "higher", "ratio ≥ 1"),
        Row(f"{name}_cpu", "replicas", f"{title}: processor of the master", "µs/message", "lower", "ratio ≤ 1"),
        Row(f"{name}_replica_cpu", "replicas", f"{title}: processor of the replica", "µs/message", "lower"),
        Row(f"{name}_p99", "replicas", f"{title}: p99", "ms", "lower"),
    )


STEADY_RATES = (2_000, 8_000)
"""Messages per second at which the cost of a replica is measured: at the highest rate, more sends share a wake-up
without a replica than with one.
"""


def steady_row(rate: int, *, has_replica: bool) -> Row:
    """Return the row of the processor time at a constant rate."""
    title = f"sync send at {rate:,}/s, 8 threads, 1024 B, ASYNC_MASTER {'with' if has_replica else 'without'} a replica"
    name = f"replicas_async_{rate}_cpu" if has_replica else f"no_replica_{rate}_cpu"
    return Row(name, "replicas-steady", f"{title}: processor of the master", "µs/message", "lower", "ratio ≤ 1")


LAG_RATE = Row("lag_rate", "replicas", "batches of 32 at 20,000 messages/s, ASYNC_MASTER", "messages/s", "higher")
LAG_P50 = Row("lag_p50", "replicas", "the same: lag of the replica, p50", "ms", "lower")
LAG_P99 = Row("lag_p99", "replicas", "the same: lag of the replica, p99", "ms", "lower")
CATCH_UP = Row("catch_up", "replicas", "replica with an empty volume: log received", "MiB/s", "higher")
REPLICA_MEMORY = Row("replica_memory", "replicas", "replica with an empty volume: RssAnon afterwards", "MiB", "lower")

CLIENT_LATENCY_P50 = Row("client_latency_p50", "client", "client: send to receive, p50", "ms", "lower")
CLIENT_LATENCY_P99 = Row("client_latency_p99", "client", "client: send to receive, p99", "ms", "lower")
CLIENT_LATENCY_PROCESSOR = Row(
    "client_latency_cpu", "client", "client: send to receive, 500/s: processor", "µs/message", "lower"
)

GROUPS = (
    "start", "idle", *SEND_GROUPS, "consume", "tls", "filtered", "transactions", "latency", "memory", "delay",
    "timed", "burst", "overdue", "overdue-timed", "pending", "pending-level", "recovery", "rebuild", "replicas",
    "replicas-steady", "access", "quotas", "client",
)  # fmt: skip
