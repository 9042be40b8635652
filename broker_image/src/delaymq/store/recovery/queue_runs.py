"""Queue offsets of the log's records, collected in one walk before the replay.

The offsets of a queue are consecutive, so an undamaged queue is one run of any length. Only runs are stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from delaymq.message.flags import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from delaymq.message.names import DUE, HALF_TOPIC, MARK, TIMER_OUT_MS
from delaymq.message.record import FIXED_BYTES
from delaymq.message.timed_marks import PLACE_DIGITS, VERSION
from delaymq.store.plain_runs import Stretch

_TIMED: Final = TIMER_OUT_MS.encode()
"""Name that the records of timed messages have in their properties."""
_STATEMENTS: Final = tuple(f"\x02{name}\x01{VERSION}:".encode() for name in (DUE, MARK))

_HALF_TOPIC: Final = HALF_TOPIC.encode()

Key = tuple[bytes, int]
"""Topic, as spelled in the record, and queue id."""


@dataclass(slots=True)
class Run:
    """Records of one queue with consecutive offsets, in log order."""

    start: int
    end: int
    """Queue offset after the last record's."""
    first_at: int
    last_at: int
    """Physical offsets of the first and the last record."""

    def __len__(self) -> int:
        return self.end - self.start


class Survey:
    """Collector of a walk's records. `deleted`: topic → log end at its deletion; older records are ignored."""

    def __init__(self, deleted: Mapping[str, int]) -> None:
        self._deleted = {topic.encode("utf-8", "surrogateescape"): end for topic, end in deleted.items()}
        self._last: dict[Key, Run] = {}
        self._earlier: dict[Key, list[Run]] = {}
        self._odd: list[int] = []
        self._lost: list[tuple[int, int]] = []
        self._lost_before: list[int] = [0]
        """Number of records possibly lost in the damaged ranges before each of `_lost`."""
        self.unnamed_statements: list[int] = []
        """Physical offsets of records of timed messages that contain a statement without the name of its property."""

    def take(
        self, at: int, size: int, _crc: int, queue_id: int, number: int, sys_flag: int, _born_ms: int, _stored_ms: int,
        _reconsume_times: int, _prepared_offset: int, topic: bytes, properties: bytes, /,
    ) -> None:  # fmt: skip
        """Add a valid record, given by the fields of `log_scan.Head`."""
        if (
            _TIMED in properties
            and not any(name in properties for name in _STATEMENTS)
            and f"{VERSION}:{at:0{PLACE_DIGITS}d}:".encode() in properties
        ):
            self.unnamed_statements.append(at)
        transaction = sys_flag & TRANSACTION_MASK
        if transaction in (TRANSACTION_ROLLBACK, TRANSACTION_PREPARED):
            if transaction == TRANSACTION_ROLLBACK:
                self.lost(at, size)
            elif number or topic != _HALF_TOPIC:
                self._odd.append(at)  # only damage leads to such an offset or topic: the record's queue lacks it
            return
        key = topic, queue_id
        run = self._last.get(key)
        if run is not None and run.end == number:
            run.end = number + 1
            run.last_at = at
            return
        if self._deleted and at < self._deleted.get(topic, 0):
            return
        if run is not None:
            self._earlier.setdefault(key, []).append(run)
        self._last[key] = Run(number, number + 1, at, at)

    def take_stretches(self, stretches: list[Stretch], _keys: bytes) -> None:
        """Add valid records without a transaction, of which none belongs to a timed message or a deleted topic."""
        for topic, queue_id, number, records, first_at, last_at, _ in stretches:
            key = topic.encode(), queue_id
            run = self._last.get(key)
            if run is not None and run.end == number:
                run.end = number + records
                run.last_at = last_at
                continue
            if run is not None:
                self._earlier.setdefault(key, []).append(run)
            self._last[key] = Run(number, number + records, first_at, last_at)

    def lost(self, at: int, size: int) -> None:
        """Add a damaged range: `size` bytes from `at` on contain no record."""
        self._lost.append((at, size))

    def call_odd(self, places: list[int]) -> None:
        """Mark the records at these physical offsets as possibly belonging to other queues."""
        self._odd = sorted({*self._odd, *places})
        self._lost.sort()
        self._lost_before = [0, *accumulate(max(size // FIXED_BYTES, 1) for _, size in self._lost)]

    def may_be_missing(self, after: int, before: int) -> int:
        """Return the maximum number of records that a queue may lack between two physical offsets."""
        odd = bisect_left(self._odd, before) - bisect_left(self._odd, after + 1)
        return odd + self.may_be_lost(after, before)

    def may_be_lost(self, after: int, before: int) -> int:
        """Return the maximum number of records that damaged ranges between two physical offsets contained."""
        first, end = bisect_left(self._lost, (after, 0)), bisect_left(self._lost, (before, 0))
        return self._lost_before[end] - self._lost_before[min(first, end)]

    @property
    def queues(self) -> list[Key]:
        """Queues that have records."""
        return list(self._last)

    def last_run(self, key: Key) -> Run | None:
        """Return the newest run of a queue."""
        return self._last.get(key)

    def runs(self, key: Key) -> list[Run]:
        """Return the runs of a queue in log order."""
        return [*self._earlier.get(key, ()), self._last[key]]

    def is_broken(self, key: Key) -> bool:
        """Whether the offsets of a queue are not consecutive."""
        return key in self._earlier
