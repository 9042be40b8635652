"""Hand-overs that failed, waiting for their next attempt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from delaymq.schedule.scheduler import Entry, Lane

# Each failed entry is an object here. When that many fail, the cause is not theirs, and the whole schedule waits.
MAX_RETRYING = 10_000


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long a failed hand-over waits."""

    first_ms: int = 100
    """Before the second attempt; each further one waits twice as long."""
    longest_ms: int = 60_000
    """Never longer than this: what keeps a message back may be gone at any time."""

    def wait_ms(self, failures: int) -> int:
        """The wait after the `failures`-th failure (1 or more)."""
        return min(self.first_ms << min(failures - 1, 32), self.longest_ms)


class RetryQueue:
    """A due source with a lane of its own: a message that cannot be handed over holds up no other."""

    lane = Lane.RETRIES

    def __init__(self, backoff: Backoff, limit: int = MAX_RETRYING) -> None:
        self._backoff = backoff
        self._limit = limit
        self._heap: list[tuple[int, Entry]] = []

    def entries(self) -> Iterator[Entry]:
        """What waits, in no order."""
        return (entry for _, entry in self._heap)

    @property
    def full(self) -> bool:
        """Whether no further entry may be added."""
        return len(self._heap) >= self._limit

    def add_failed(self, entry: Entry, now_ms: int) -> int:
        """Keeps `entry`, whose hand-over failed at `now_ms`; the wait in ms until it is due again."""
        due_ms, queue_id, offset, failures = entry
        wait_ms = self._backoff.wait_ms(failures + 1)
        heappush(self._heap, (now_ms + wait_ms, (due_ms, queue_id, offset, failures + 1)))
        return wait_ms

    def give_back(self, entry: Entry, now_ms: int) -> None:
        """Keeps an entry that was taken and not tried."""
        heappush(self._heap, (now_ms, entry))

    def next_due_ms(self) -> int | None:
        """When the next attempt is due."""
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """The entries whose next attempt is due."""
        taken: list[Entry] = []
        while self._heap and len(taken) < count and self._heap[0][0] <= now_ms:
            taken.append(heappop(self._heap)[1])
        return taken
