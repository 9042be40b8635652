"""Construction of an index from all statements in a log, and statements after a snapshot that have to be put aside.

The newest statement about a message decides, whatever the older ones say, and an end is final. Statements are therefore
collected, sorted by identity and place, and evaluated message by message. Sorted pieces are written to files, so that
the memory does not depend on the number of messages.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

from delaymq.schedule.timeline.entries import Pending
from delaymq.schedule.timeline.files import RunFile, TimelineDamagedError
from delaymq.schedule.timeline.inspection import find_identities
from delaymq.schedule.timeline.timeline import Timeline

_STATEMENT: Final = struct.Struct(">qqqiII")
"""Identity, place, due time in ms, size of the record (0: it does not hold the message), owner, partition.

The order of the packed statements is that of identities and places.
"""
_ENDED: Final = -1
"""In place of a due time: the message has ended."""
_SORTED_RUNS: Final = 10
"""Statements, and later entries, that are sorted together, as a multiple of the largest run in memory: some 20 MB."""
_READ_STATEMENTS: Final = 1_024


GroupChange: TypeAlias = tuple[int, int | None]
"""Place of a statement about a group, and the new due time in ms; None: the messages have ended."""


class GroupStatements:
    """Statements about groups, in the order of the log."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, str], list[GroupChange]] = {}

    def add(self, topic: str, group: str, place: int, due_ms: int | None) -> None:
        """Note the statement at `place` about all messages of a group; without a due time, they have ended."""
        self._changes.setdefault((topic, group), []).append((place, due_ms))

    def after(self, topic: str, group: str, place: int) -> Sequence[GroupChange]:
        """Return the statements about a group that follow a place."""
        changes = self._changes.get((topic, group), ())
        return changes[bisect_right(changes, place, key=itemgetter(0)) :]

    def due_after(self, topic: str, group: str, place: int, due_ms: int) -> int | None:
        """Return the due time of a message whose newest own statement, at `place`, is `due_ms`; None: it has ended."""
        for _, group_due_ms in self.after(topic, group, place):
            if group_due_ms is None:
                return None
            due_ms = group_due_ms
        return due_ms


class Unmatched:
    """Statements about messages that the index does not contain with the stated due time.

    Either their group was moved, and the index has not applied that to them yet, or an earlier statement is damaged.
    """

    def __init__(self) -> None:
        self._statements: dict[int, GroupChange] = {}
        """Place and new due time of the newest one, by identity."""

    def __len__(self) -> int:
        return len(self._statements)

    def add(self, identity: int, place: int, due_ms: int | None) -> None:
        """Note the statement at `place` that a message is due then or, without a due time, has ended."""
        self._statements[identity] = place, due_ms

    def apply(self, index: Timeline, groups: GroupStatements) -> int:
        """Apply changes of groups to all entries of an index, then the statements; return the number of unknown ones.

        OSError, TimelineDamagedError.
        """
        while index.sweep.step():
            pass
        if not self._statements:
            return 0
        found, unknown = find_identities(index, self._statements), 0
        for identity, (place, due_ms) in self._statements.items():
            pending = found.get(identity)
            if pending is None:
                unknown += 1
                continue
            if due_ms is not None:
                _, topic, group = index.partitions.owner(pending.owner)
                due_ms = groups.due_after(topic, group, place, due_ms)
            if due_ms is None:
                index.end(pending.due_ms, identity, pending.partition)
            else:
                index.move(pending, due_ms)
        self._statements.clear()
        return unknown


class Rebuilding:
    """Collects statements in the order of the log, then adds the pending messages to an empty index."""

    def __init__(self, timeline: Timeline, groups: GroupStatements) -> None:
        """`groups` contains the statements about groups at the end."""
        self._timeline = timeline
        self._groups = groups
        self._sorted_together = timeline.sizes.run_in_memory * _SORTED_RUNS
        self._statements: list[bytes] = []
        self._pieces: list[tuple[str, RunFile, int]] = []

    def hold(self, entry: Pending) -> None:
        """Note a record that holds a message and states its due time. OSError."""
        due_ms, identity, record, size, owner, partition = entry
        self._note(_STATEMENT.pack(identity, record, due_ms, size, owner, partition))

    def change(self, identity: int, place: int, due_ms: int | None) -> None:
        """Note the statement at `place` that a message is due at another time or, without one, has ended. OSError."""
        self._note(_STATEMENT.pack(identity, place, _ENDED if due_ms is None else due_ms, 0, 0, 0))

    def _note(self, statement: bytes) -> None:
        self._statements.append(statement)
        if len(self._statements) >= self._sorted_together:
            self._statements.sort()
            name = self._timeline.next_name("sorted")
            file = self._timeline.files.create(name)
            self._pieces.append((name, file, len(self._statements)))
            file.pwrite(b"".join(self._statements), 0)
            self._statements.clear()

    def finish(self, maintain: Callable[[], object]) -> None:
        """Add the pending messages to the index, and call `maintain` after each run. OSError, TimelineDamagedError."""
        try:
            self._add(maintain)
        finally:
            for name, _, _ in self._pieces:
                self._timeline.discard(name)
        self._timeline.partitions.forget_uncounted_owners()

    def _add(self, maintain: Callable[[], object]) -> None:
        timeline, partitions = self._timeline, self._timeline.partitions
        # Merges forget partitions of which no message has been counted yet.
        names, numbers = partitions.names(), dict[int, int]()
        rows: dict[int, list[bytes]] = {}
        count = 0
        for entry in self._pending():
            partition = numbers.get(entry.partition)
            if partition is None:
                partition = numbers[entry.partition] = partitions.number(*names[entry.partition])
            timeline.count(entry._replace(partition=partition), 1)
            rows.setdefault(partition, []).append(entry.packed())
            count += 1
            if count == self._sorted_together:
                timeline.add_rows(rows, is_plain=True, in_file=True)
                maintain()
                rows, count = {}, 0
        if rows:
            timeline.add_rows(rows, is_plain=True, in_file=count > timeline.sizes.run_in_memory)
            maintain()

    def _pending(self) -> Iterator[Pending]:
        """Yield the pending messages by identity."""
        for identity, statements in groupby(map(_STATEMENT.unpack, self._sorted()), key=itemgetter(0)):
            holder: tuple[int, int, int, int] | None = None
            due_ms, newest = 0, 0
            for _, place, stated_ms, size, owner, partition in statements:
                if due_ms != _ENDED:
                    due_ms, newest = stated_ms, place
                if size:
                    holder = (place, size, owner, partition)
            if holder is not None and due_ms != _ENDED:
                _, topic, group = self._timeline.partitions.owner(holder[2])
                final_ms = self._groups.due_after(topic, group, newest, due_ms)
                if final_ms is not None:
                    yield Pending(final_ms, identity, *holder)

    def _sorted(self) -> Iterator[bytes]:
        self._statements.sort()
        return merge(*(_read(*piece) for piece in self._pieces), self._statements)


def _read(name: str, file: RunFile, count: int) -> Iterator[bytes]:
    size = _STATEMENT.size
    for first in range(0, count, _READ_STATEMENTS):
        wanted = min(_READ_STATEMENTS, count - first) * size
        data = file.pread(wanted, first * size)
        if len(data) != wanted:
            raise TimelineDamagedError(f"{name} ends before statement {first}")
        for at in range(0, wanted, size):
            yield data[at : at + size]
