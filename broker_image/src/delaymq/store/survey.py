"""What the records of the log say about their place in queues, gathered in one walk before the replay.

Numbers of a queue follow each other, so an undamaged queue is one run whatever its length. Runs are all that is kept.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass

from delaymq.message.flags import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from delaymq.message.record import FIXED_BYTES
from delaymq.store.scan import Head

Key = tuple[bytes, int]
"""Topic, as the record spells it, and queue id."""


@dataclass(slots=True)
class Run:
    """Records of one queue that follow each other in the log and by their numbers."""

    start: int
    end: int
    """Number behind the last one's."""
    first_at: int
    last_at: int
    """Physical offsets of the first and of the last record."""

    def __len__(self) -> int:
        return self.end - self.start


class Survey:
    """Takes the records of a walk in log order. `deleted`: topic → log end at its deletion; older records count not."""

    def __init__(self, deleted: Mapping[str, int]) -> None:
        self._deleted = {topic.encode("utf-8", "surrogateescape"): end for topic, end in deleted.items()}
        self._last: dict[Key, Run] = {}
        self._earlier: dict[Key, list[Run]] = {}
        self._odd: list[int] = []
        self._lost: list[tuple[int, int]] = []

    def take(self, head: Head) -> None:
        """One sound record."""
        sys_flag, number, at = head.sys_flag, head.queue_offset, head.physical_offset
        transaction = sys_flag & TRANSACTION_MASK
        if transaction == TRANSACTION_ROLLBACK or transaction == TRANSACTION_PREPARED:
            if transaction == TRANSACTION_ROLLBACK:
                self.lost(at, head.size)
            elif number:
                self._odd.append(at)  # only damage gives it a number: its queue lacks it
            return
        key = head.topic, head.queue_id
        run = self._last.get(key)
        if run is not None and run.end == number:
            run.end = number + 1
            run.last_at = at
            return
        if self._deleted and at < self._deleted.get(head.topic, 0):
            return
        if run is not None:
            self._earlier.setdefault(key, []).append(run)
        self._last[key] = Run(number, number + 1, at, at)

    def lost(self, at: int, size: int) -> None:
        """So many bytes from `at` on hold no record any more."""
        self._lost.append((at, size))

    def odd(self, at: int) -> None:
        """The record at `at` may belong to another queue than it says."""
        if not self.is_odd(at):
            insort(self._odd, at)

    def is_odd(self, at: int) -> bool:
        """Whether the record at `at` was called odd."""
        index = bisect_left(self._odd, at)
        return index < len(self._odd) and self._odd[index] == at

    def may_be_missing(self, after: int, before: int) -> int:
        """How many records a queue may lack at most between two physical offsets."""
        count = bisect_left(self._odd, before) - bisect_left(self._odd, after + 1)
        begin = bisect_left(self._lost, (after, 0))
        for at, size in self._lost[begin:]:
            if at >= before:
                break
            count += max(size // FIXED_BYTES, 1)
        return count

    @property
    def queues(self) -> list[Key]:
        """All queues that have records."""
        return list(self._last)

    def last_run(self, key: Key) -> Run | None:
        """The newest run of a queue."""
        return self._last.get(key)

    def runs(self, key: Key) -> list[Run]:
        """The runs of a queue in log order."""
        return [*self._earlier.get(key, ()), self._last[key]]

    def is_broken(self, key: Key) -> bool:
        """Whether the numbers of a queue do not follow each other."""
        return key in self._earlier
