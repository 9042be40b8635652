"""Two writers that race for each version of a register, and the check that one of them wins."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from delaymq.replication import Record
from delaymq.server.registers import Conflict, Content, Outcome, Register, RegisterError, Unknown, Written

TIMEOUT_S = 2.0
RECOVERY_S = 30.0
MEMBERS = ("broker-a-0", "broker-a-1")


class Attempt(NamedTuple):
    """A write, with a record that no other write has."""

    expected: str
    record: Record
    outcome: Outcome


class Race:
    """Rounds in which all writers try to replace the same version."""

    def __init__(self, registers: Sequence[Register]) -> None:
        self._registers = registers
        self._serial = 0
        self.attempts: list[Attempt] = []
        self.seen: dict[str, Record | None] = {}
        """Version → record, from reads."""
        self.first = ""
        self.last = ""
        self.failed_reads = 0
        self.read_ms: list[float] = []
        self.write_ms: list[float] = []

    async def run(
        self,
        rounds: int,
        disturb: Callable[[int], None] = lambda number: None,
        suspend: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Run rounds; `suspend` is called before the writes of a round, and `disturb` while they are in progress."""
        loop = asyncio.get_running_loop()
        for number in range(rounds):
            contents = [await self.read(register) for register in self._registers]
            version = self.last = contents[-1].version
            self.first = self.first or version
            # The second read may have seen a delayed write, then the first writer's attempt has to fail.
            suspend(number)
            loop.call_later(0.001, disturb, number)
            writers = enumerate(zip(self._registers, contents, strict=True))
            await asyncio.gather(*(self._write(index, register, content) for index, (register, content) in writers))
        self.last = (await self.read(self._registers[0])).version

    async def read(self, register: Register) -> Content:
        """Read, repeatedly if the register does not respond."""
        deadline = time.monotonic() + RECOVERY_S
        while True:
            started = time.monotonic()
            try:
                content = await register.read(TIMEOUT_S)
            except RegisterError:
                self.failed_reads += 1
                assert time.monotonic() < deadline, "the register does not recover"
                await asyncio.sleep(0.1)
                continue
            self.read_ms.append((time.monotonic() - started) * 1_000)
            assert self.seen.setdefault(content.version, content.record) == content.record
            return content

    async def _write(self, index: int, register: Register, content: Content) -> None:
        self._serial += 1
        epoch = 1 if content.record is None else content.record.epoch + 1
        record = Record(epoch, MEMBERS[index], self._serial, frozenset(MEMBERS))
        started = time.monotonic()
        outcome = await register.write(record, content.version, TIMEOUT_S)
        if not isinstance(outcome, Unknown):
            self.write_ms.append((time.monotonic() - started) * 1_000)
        self.attempts.append(Attempt(content.version, record, outcome))

    def counts(self) -> Counter[str]:
        """Return the number of outcomes of each kind."""
        return Counter(type(attempt.outcome).__name__ for attempt in self.attempts)

    def verify(self) -> int:
        """Check that the outcomes agree with one history, and return its length."""
        by_record = {attempt.record: attempt for attempt in self.attempts}
        winners: dict[str, Record] = {}
        for attempt in self.attempts:
            if isinstance(attempt.outcome, Written):
                assert attempt.expected not in winners, "two writes replaced the same version"
                winners[attempt.expected] = attempt.record
                assert self.seen.setdefault(attempt.outcome.version, attempt.record) == attempt.record
        versions = {record: version for version, record in self.seen.items() if record is not None}
        assert len(versions) == len(self.seen) - (self.seen[self.first] is None), "a write took place twice"
        for record in versions:
            attempt = by_record[record]
            assert not isinstance(attempt.outcome, Conflict), "a conflict was reported for a write"
            assert winners.setdefault(attempt.expected, record) == record, "two writes replaced the same version"
        length, version = 0, self.first
        while version != self.last:
            version = versions[winners[version]]
            length += 1
        assert length == len(winners) == len(self.seen) - 1
        return length

    def figures(self, name: str) -> str:
        """Return counts and latencies as one line."""
        parts = [f"{name}: {dict(self.counts())}, {self.failed_reads} failed reads"]
        for what, values in (("read", self.read_ms), ("write", self.write_ms)):
            parts.append(f"{what} p50 {_quantile(values, 0.5):.1f} ms, p99 {_quantile(values, 0.99):.1f} ms")
        return "; ".join(parts)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]
