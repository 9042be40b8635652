"""Records of a soak test: acknowledged messages, number of deliveries of each, and resource usage of the process.

Their size is constant from the start, so any growth of memory is the client's.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

KIB_PER_MIB = 1024
MOST_OFTEN = 255


class Ledger:
    """Messages of one topic by number, and how often each group handled them."""

    def __init__(self, capacity: int, groups: Iterable[str]) -> None:
        self._acknowledged = bytearray(capacity)
        self._handled = {group: bytearray(capacity) for group in groups}
        self.sent = 0
        self.refused = 0

    def next_number(self) -> int:
        """Return a number for the next message."""
        number = self.sent
        self.sent += 1
        return number

    def acknowledged(self, number: int) -> None:
        self._acknowledged[number] = 1

    def handled(self, group: str, number: int) -> None:
        counts = self._handled[group]
        counts[number] = min(counts[number] + 1, MOST_OFTEN)

    def acknowledged_count(self) -> int:
        return sum(self._acknowledged)

    def lost(self, group: str) -> list[int]:
        """Return acknowledged messages that the group never handled."""
        pairs = zip(self._acknowledged, self._handled[group], strict=True)
        return [number for number, (sent, times) in enumerate(pairs) if sent and not times]

    def consumed(self, group: str) -> int:
        """Return the number of handled messages, including unacknowledged ones."""
        return sum(times > 0 for times in self._handled[group])

    def repeats(self, group: str) -> int:
        """Return how often a message was handled repeatedly."""
        return sum(times - 1 for times in self._handled[group] if times > 1)


class Order:
    """Check that an ordered queue is handled step by step: it may go back, but not skip messages."""

    def __init__(self) -> None:
        self._reached: dict[int, int] = {}
        self._active: dict[int, int] = {}
        self.jumps: list[str] = []
        self.overlaps = 0
        """A killed broker loses the locks, as RocketMQ's does, so two members may handle a queue then."""

    def begin(self, queue_id: int, offset: int) -> None:
        reached = self._reached.get(queue_id, -1)
        if offset > reached + 1:
            self.jumps.append(f"queue {queue_id} from {reached} to {offset}")
        self._active[queue_id] = self._active.get(queue_id, 0) + 1
        self.overlaps += self._active[queue_id] > 1

    def end(self, queue_id: int, offset: int, *, done: bool) -> None:
        self._active[queue_id] -= 1
        if done:
            self._reached[queue_id] = max(self._reached.get(queue_id, -1), offset)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Resources that this process holds."""

    tasks: int
    descriptors: int
    memory_kib: int
    """RssAnon."""

    @classmethod
    def now(cls) -> "Usage":
        status = Path("/proc/self/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+)", status)
        assert found is not None
        return cls(
            tasks=len(asyncio.all_tasks()),
            descriptors=len(os.listdir("/proc/self/fd")),
            memory_kib=int(found[1]),
        )


@dataclass
class MemorySlope:
    """RssAnon over time."""

    _samples: list[tuple[float, int]] = field(default_factory=list)

    def sample(self) -> None:
        self._samples.append((time.monotonic(), Usage.now().memory_kib))

    def mib_a_minute(self, *, skip: float = 0.3) -> float:
        """Return the least-squares slope after the first part, in which pools and caches fill."""
        samples = self._samples[int(len(self._samples) * skip) :]
        if len(samples) < 2:
            return 0.0
        mean_s = sum(at for at, _ in samples) / len(samples)
        mean_kib = sum(kib for _, kib in samples) / len(samples)
        over = sum((at - mean_s) * (kib - mean_kib) for at, kib in samples)
        under = sum((at - mean_s) ** 2 for at, _ in samples)
        return over / under * 60 / KIB_PER_MIB
