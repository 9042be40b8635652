"""Five tenants with quotas, one of which sends ten times its quota: `python -m hostile_load.tenants [--seconds 8]`.

Each tenant has an account, a topic and connections of its own. First each of them sends alone, then all concurrently.
Two tenants send steadily at 80 % of their quota, two as fast as they can, and the last one ten times its quota,
whatever the responses. The broker has one processor to itself. Prints a table and writes it to bench/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from delaymq.protocol.signatures import Signer
from delaymq.transport import TransportError, connect
from delaymq_testing.running_server import send_command
from hostile import RESULTS, Broker, broker

STEADY, GREEDY, EXCESSIVE = "steady", "greedy", "excessive"
KINDS = [STEADY, STEADY, GREEDY, GREEDY, EXCESSIVE]
NAMES = [f"tenant-{number}" for number in range(1, len(KINDS) + 1)]
STEADY_SHARE = 0.8
CONNECTIONS = 4
IN_FLIGHT = 16
"""Concurrent requests of a greedy tenant."""
BODY = bytes(100)
TIMEOUT_MS = 15_000
BURST_S = 2.0
"""Time before a measurement: burst and longest debt are used up."""
NICE, URGENT = 10, -15
"""Priorities: of the excessive tenant, and, if permitted, of the broker and the other tenants."""
TITLES = [
    "tenant",
    "sends",
    "alone, msg/s",
    "with others",
    "of alone",
    "alone p50, ms",
    "p99",
    "with others p50",
    "p99",
]
TITLES += ["rejected with others"]
TOLERANCE = 0.05


@dataclass
class Outcome:
    """Responses to one tenant within the measured time."""

    seconds: float
    accepted: int = 0
    rejected: int = 0
    failed: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Accepted messages per second."""
        return self.accepted / self.seconds

    def latency(self, percent: int) -> str:
        """Return a percentile, formatted."""
        ordered = sorted(self.latencies_ms)
        return f"{ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]:.1f}" if ordered else "–"


class Tenant:
    """Client of one account."""

    def __init__(self, name: str, kind: str, quota: int, excess: float) -> None:
        self.name = name
        self._kind = kind
        self._rate = quota * (STEADY_SHARE if kind == STEADY else excess)
        self._signer = Signer(f"{name}-secret")
        self._next = 0

    async def work(self, host: str, port: int, seconds: float) -> Outcome:
        """Send for `BURST_S` and for `seconds`, and count what is answered in the latter."""
        self._connections = [await connect(host, port, timeout_ms=TIMEOUT_MS) for _ in range(CONNECTIONS)]
        outcome = Outcome(seconds)
        self._from = time.perf_counter() + BURST_S
        self._until = self._from + seconds
        if self._kind == GREEDY:
            await asyncio.gather(*(self._repeat(outcome) for _ in range(IN_FLIGHT)))
        else:
            await self._send_steadily(outcome)
        for connection in self._connections:
            connection.abort()
        return outcome

    async def _repeat(self, outcome: Outcome) -> None:
        while time.perf_counter() < self._until:
            await self._send(outcome, time.perf_counter())

    async def _send_steadily(self, outcome: Outcome) -> None:
        began, tasks = time.perf_counter(), set[asyncio.Task[None]]()
        for number in range(int(self._rate * (BURST_S + outcome.seconds))):
            due = began + number / self._rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(self._send(outcome, due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        for task in tasks:
            task.cancel()

    async def _send(self, outcome: Outcome, due: float) -> None:
        command = send_command(self.name, BODY)
        self._signer.sign(command, self.name)
        self._next += 1
        try:
            code = (await self._connections[self._next % CONNECTIONS].request(command, TIMEOUT_MS)).code
        except TransportError:
            code = -1
        now = time.perf_counter()
        if self._from <= now < self._until:
            outcome.accepted += code == 0
            outcome.rejected += code == 2
            outcome.failed += code not in (0, 2)
            outcome.latencies_ms.append((now - due) * 1000)


def prioritise(pid: int, priority: int) -> None:
    """Set the priority of a process. On a shared machine, other programs disturb urgent ones less."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, priority)


def work(
    tenants: list[int], options: argparse.Namespace, port: int, priority: int, told: multiprocessing.Queue[Any]
) -> None:
    """Let tenants send, in a process of their own."""
    os.sched_setaffinity(0, {options.client_processor})
    prioritise(os.getpid(), priority)

    async def run() -> list[Outcome]:
        clients = [Tenant(NAMES[each], KINDS[each], options.quota, options.excess) for each in tenants]
        return await asyncio.gather(*(client.work(options.host, port, options.seconds) for client in clients))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        told.put(dict(zip(tenants, runner.run(run()), strict=True)))


def measure(tenants: list[int], options: argparse.Namespace, port: int) -> dict[int, Outcome]:
    """Return the outcomes of tenants that send concurrently. The excessive one is a process with a low priority."""
    context = multiprocessing.get_context("fork")
    told: Any = context.Queue()
    groups = [
        [each for each in tenants if KINDS[each] != EXCESSIVE],
        [each for each in tenants if KINDS[each] == EXCESSIVE],
    ]
    processes = [
        context.Process(target=work, args=(group, options, port, priority, told), daemon=True)
        for group, priority in zip(groups, (URGENT, NICE), strict=True)
        if group
    ]
    for process in processes:
        process.start()
    found: dict[int, Outcome] = {}
    for _ in processes:
        found |= told.get(timeout=BURST_S + options.seconds + 60)
    for process in processes:
        process.join(10)
    return found


def rules(quota: int, *, limited: bool) -> str:
    """Return the rule file."""
    quotas = f"defaultQuotas: {{sendRequestsPerSecond: {quota}}}\n" if limited else ""
    accounts = [f"- {{accessKey: {name}, secretKey: {name}-secret, topicPerms: [{name}=PUB|SUB]}}\n" for name in NAMES]
    return f"{quotas}accounts:\n{''.join(accounts)}"


def rows_of(alone: dict[int, Outcome], together: dict[int, Outcome]) -> list[str]:
    """Return the rows of the table."""
    rows = ["| " + " | ".join(TITLES) + " |", "|" + "---|" * len(TITLES)]
    for each, name in enumerate(NAMES):
        before, after = alone[each], together[each]
        cells = [
            name,
            KINDS[each],
            f"{before.rate:.0f}",
            f"{after.rate:.0f}",
            f"{after.rate / before.rate * 100:.1f} %",
        ]
        cells += [before.latency(50), before.latency(99), after.latency(50), after.latency(99), str(after.rejected)]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def run(options: argparse.Namespace, one: Broker) -> list[str]:
    """Measure each tenant alone and all of them, and return the table."""
    everyone = list(range(len(NAMES)))
    alone: dict[int, Outcome] = {}
    for each in everyone:
        alone |= measure([each], options, one.ports.broker)
    together = measure(everyone, options, one.ports.broker)
    failed = sum(each.failed for each in (*alone.values(), *together.values()))
    rows = rows_of(alone, together)
    others = [each for each in everyone if KINDS[each] != EXCESSIVE]
    worst = max(abs(together[each].rate / alone[each].rate - 1) for each in others)
    rows.append(
        f"\nlargest difference of the other tenants' rates: {worst * 100:.1f} % (limit: {TOLERANCE * 100:.0f} %)"
    )
    if failed:
        rows.append(f"{failed} requests failed otherwise")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8, help="measured time of each of the six phases")
    parser.add_argument("--quota", type=int, default=300, help="sendRequestsPerSecond of each tenant")
    parser.add_argument("--excess", type=float, default=10, help="sends of the last tenant, as a multiple of its quota")
    parser.add_argument("--without-quotas", action="store_true", help="for comparison")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--broker-processor", type=int, default=0)
    parser.add_argument("--client-processor", type=int, default=1)
    parser.set_defaults(quotas=False)  # those of the hostile client
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "plain_acl.yml").write_text(rules(options.quota, limited=not options.without_quotas))
        with broker(folder, options) as one:
            for thread in os.listdir(f"/proc/{one.pid}/task"):
                prioritise(int(thread), URGENT)
            rows = run(options, one)
    print("\n".join(rows))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"tenants-{time.strftime('%Y%m%d-%H%M%S')}.md").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
