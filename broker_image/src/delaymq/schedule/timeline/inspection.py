"""Read-only inspection of the index: counts by due time, the messages that are due next, and those of a group.

The index may change between two steps of a generator. Runs are immutable, and the file of a removed run stays readable
while a step refers to it. A message that is added, delivered or ended meanwhile may or may not be counted.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from delaymq.schedule.buckets import DueCounts
from delaymq.schedule.timeline.cursors import Key
from delaymq.schedule.timeline.entries import ENTRY_BYTES, NO_RECORD, Pending, Row, unpacked
from delaymq.schedule.timeline.merging import Range
from delaymq.schedule.timeline.partitions import MOVED
from delaymq.schedule.timeline.runs import Run
from delaymq.schedule.timeline.searching import newest_rows
from delaymq.schedule.timeline.sweeping import owners_of
from delaymq.schedule.timeline.timeline import Timeline

STEP_ENTRIES: Final = 4_096
"""Entries that one step reads to find those that replace or end others, or have certain owners: about 0.1 to 0.2 ms
if there are none."""
_FIRST_ROUND: Final = 512
_LAST_ROUND: Final = 32_768
"""Entries of each run that a round of a search by owner examines: the first one few, because a large group may have
enough there."""
_READ_ENTRIES: Final = 2_048
"""Up to this many entries are read and searched in memory."""
_ROWS_AT_ONCE: Final = 64
_KEPT_CONTENTS: Final = 64
"""Partitions of which a search for the first messages keeps the contents; those of others are read again."""
_NUMBERS: Final = ENTRY_BYTES // 8
"""Numbers of 8 bytes in a packed entry; the second one is the identity, and the third one the record."""

FIRST_KEY: Final = 0, 0
"""Not after any entry."""
END_KEY: Final = 1 << 63, 0
"""After all entries."""

_RankedRow: TypeAlias = tuple[int, int, int, int, int, int]
"""Due time, identity, rank (the lower, the newer), record, size and owner."""


class IndexSize(NamedTuple):
    """Size of the index."""

    runs: int
    file_bytes: int
    """Bytes of the files in use."""
    merging_entries: int
    """Entries that are being merged."""


def index_size(timeline: Timeline) -> IndexSize:
    """Return the size of the index."""
    return IndexSize(len(timeline.runs), sum(run.file_bytes for run in timeline.runs), timeline.compaction.entries)


class _Contents(NamedTuple):
    """Contents of a partition at one time."""

    timeline: Timeline
    partition: int
    ranges: list[Range]
    """Entries in runs, those of the newest run first."""
    held: Sequence[Pending]
    """Messages that are in memory, or taken and not settled."""
    ended: Sequence[Key]
    """Keys of entries in runs that have ended."""


class _Reader:
    """Returns the contents of partitions, one at a time. A message that moves to a run meanwhile is returned once."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._newest: Run | None = None
        self._group()

    def _group(self) -> None:
        """Group the contents of the memory by partition. They are valid until they become a run."""
        timeline = self._timeline
        self._newest = timeline.runs[-1] if timeline.runs else None
        self._held: dict[int, list[Pending]] = {}
        self._ended: dict[int, list[Key]] = {}
        for entry in (*timeline.held_messages, *timeline.taken_messages):
            self._held.setdefault(entry.partition, []).append(entry)
        for due_ms, identity, partition in timeline.ended_entries:
            self._ended.setdefault(partition, []).append((due_ms, identity))

    def read(self, partition: int) -> _Contents:
        """Return the contents of a partition."""
        if (self._timeline.runs[-1] if self._timeline.runs else None) is not self._newest:
            self._group()
        return _Contents(
            self._timeline,
            partition,
            self._timeline.ranges(partition),
            self._held.get(partition, ()),
            self._ended.get(partition, ()),
        )


# Counts.


def latest_due_times(timeline: Timeline, partitions: Iterable[int]) -> Iterator[int | None]:
    """Yield the latest due time of each partition; None if it is empty. OSError, TimelineDamagedError."""
    reader = _Reader(timeline)
    for partition in partitions:
        contents = reader.read(partition)
        dues = [entry.due_ms for entry in contents.held]
        dues += [run.key_at(end - 1)[0] for run, _, end in contents.ranges]
        yield max(dues, default=None)


def count_by_due(
    timeline: Timeline, partitions: Iterable[int], buckets: DueCounts, begin: Key = FIRST_KEY, end: Key = END_KEY
) -> Iterator[None]:
    """Count the pending messages of partitions in short steps, by bisection. OSError, TimelineDamagedError.

    Only messages with keys from `begin` to before `end` are counted. The first due time of a bucket may be that of a
    message that has ended.
    """
    return count_each_by_due(timeline, ((partition, buckets) for partition in partitions), begin, end)


def count_each_by_due(
    timeline: Timeline, counts: Iterable[tuple[int, DueCounts]], begin: Key = FIRST_KEY, end: Key = END_KEY
) -> Iterator[None]:
    """Count the pending messages of each partition with counts of its own, like `count_by_due`."""
    reader = _Reader(timeline)
    for partition, buckets in counts:
        contents = _between(reader.read(partition), begin, end)
        for entry in contents.held:
            buckets.add(entry.due_ms)
        yield
        for part in contents.ranges:
            yield from _add_range(part, buckets)
        for key in _uncounted(contents):
            if key is not None:
                buckets.add(key[0], -1)
            else:
                yield


def due_count(timeline: Timeline, now_ms: int) -> int:
    """Return the number of messages due at `now_ms`, except taken and paced ones. OSError, TimelineDamagedError."""
    queues = timeline.queues
    fresh = sum(entry.due_ms <= now_ms and not queues.is_paced(entry) for entry in timeline.held_messages)
    counts = [
        cursor.run.find(cursor.head, cursor.end, (now_ms + 1, 0)) - cursor.head
        for partition in timeline.partitions.pending()
        for cursor in timeline.open_cursors(partition)
        if cursor.queue is not queues.paced
    ]
    return fresh + sum(counts)


def _add_range(part: Range, buckets: DueCounts) -> Iterator[None]:
    run, index, end = part
    while end - index > _READ_ENTRIES:
        due_ms = run.key_at(index)[0]
        bound = buckets.end_of(buckets.index_of(due_ms))
        following = end if bound is None else run.find(index, end, (bound, 0))
        buckets.add(due_ms, following - index)
        index = following
        yield
    if index < end:
        buckets.add_sorted(_due_times(run.read(index, end - index)))
        yield


def _due_times(data: bytes) -> array[int]:
    dues = array("q", data)[::_NUMBERS]
    if sys.byteorder == "little":
        dues.byteswap()
    return dues


def _uncounted(contents: _Contents) -> Iterator[Key | None]:
    """Yield the key of each entry in a run that does not count, and None where the caller may interrupt.

    Such an entry ends an older one, or a newer one with the same key ends or replaces it. Only entries that another run
    made necessary have an older one: their record differs from their identity, or their group was moved.
    """
    ranges = contents.ranges
    for number, part in enumerate(ranges):
        for rows in _later_rows(part) if not part.run.is_plain else ():
            yield from (row[:2] for row in rows if row[2] == NO_RECORD)
            keys = [row[:2] for row in rows]
            yield None
            for row in newest_rows(ranges[number + 1 :], keys):
                # An end does not count anyway.
                yield None if row is None or row[2] == NO_RECORD else row[:2]
    replaced = {entry[:2] for entry in contents.held if entry.record != entry.identity or entry.owner & MOVED}
    for row in newest_rows(ranges, sorted({*replaced, *contents.ended})):
        if row is None:
            yield None
        elif row[2] != NO_RECORD:
            yield row[:2]


def _later_rows(part: Range) -> Iterator[list[Row]]:
    """Yield the rows that may replace or end rows of older runs, from STEP_ENTRIES entries at a time."""
    run, first, end = part
    for at in range(first, end, STEP_ENTRIES):
        data = run.read(at, min(STEP_ENTRIES, end - at))
        numbers = array("q", data)
        is_first = numbers[1::_NUMBERS] == numbers[2::_NUMBERS]
        if is_first and max(owners_of(data)) < MOVED:
            yield []
        else:
            yield [row for row in unpacked(data) if row[1] != row[2] or row[4] & MOVED]


# Messages.


def find_first(
    timeline: Timeline,
    partitions: Iterable[int],
    count: int,
    found: list[Pending],
    begin: Key = FIRST_KEY,
    end: Key = END_KEY,
) -> Iterator[None]:
    """Find the `count` messages of partitions that are due first, in short steps. OSError, TimelineDamagedError.

    Only messages with keys from `begin` to before `end` are considered. At the end, `found` contains them in the order
    of due times.
    """
    reader = _Reader(timeline)
    waiting: list[tuple[Key, int, _Contents | None]] = []
    for partition in partitions:
        contents = _between(reader.read(partition), begin, END_KEY)
        if (first := _first_key(contents, end)) < end:
            waiting.append((first, partition, contents if len(waiting) < _KEPT_CONTENTS else None))
        yield
    waiting.sort(key=itemgetter(0, 1), reverse=True)
    heads: list[tuple[Pending, Iterator[Pending | None]]] = []
    while len(found) < count:
        while waiting and (not heads or waiting[-1][0] <= heads[0][0][:2]):
            _, partition, kept = waiting.pop()
            yield from _advance(heads, _in_order(kept or _between(reader.read(partition), begin, END_KEY)))
        if not heads or heads[0][0][:2] >= end:
            break
        entry, rest = heappop(heads)
        found.append(entry)
        yield from _advance(heads, rest)
        if len(found) % _ROWS_AT_ONCE == 0:
            yield


def _advance(
    heads: list[tuple[Pending, Iterator[Pending | None]]], messages: Iterator[Pending | None]
) -> Iterator[None]:
    """Add the next one of the messages of a partition to the heap."""
    for entry in messages:
        if entry is not None:
            heappush(heads, (entry, messages))
            return
        yield


def find_next_due_times(timeline: Timeline, partitions: Iterable[int], found: dict[str, int]) -> Iterator[None]:
    """Find the earliest due time of each topic of these partitions, in short steps. OSError, TimelineDamagedError.

    At the end, `found` contains those of the topics that have pending messages in them.
    """
    reader = _Reader(timeline)
    for partition, topic in [(partition, timeline.partitions.key(partition).topic) for partition in partitions]:
        for entry in _in_order(reader.read(partition)):
            if entry is not None:
                found[topic] = min(entry.due_ms, found.get(topic, entry.due_ms))
                break
            yield
        yield


def next_due_by_level(timeline: Timeline) -> dict[int, int]:
    """Return the earliest due time by delay level (0: timed) of the messages that are not taken. OSError, damage.

    It may be that of a message in a run that has ended.
    """
    found: dict[int, int] = {}
    for partition in timeline.partitions.pending():
        level = timeline.partitions.key(partition).level
        for run, first, _ in timeline.ranges(partition):
            due_ms = run.key_at(first)[0]
            found[level] = min(due_ms, found.get(level, due_ms))
    for entry in timeline.held_messages:
        level = timeline.partitions.key(entry.partition).level
        found[level] = min(entry.due_ms, found.get(level, entry.due_ms))
    return found


def unused_due_ms(timeline: Timeline, entry: Pending, due_ms: int) -> int:
    """Return the first time from `due_ms` on that no older entry of a pending message states. OSError, damage."""
    # A held message returns to the partition of its topic.
    partitions = {entry.partition, timeline.holding.at_home(entry).partition}
    cursors = [cursor for partition in partitions for cursor in timeline.open_cursors(partition)]
    while due_ms != entry.due_ms and any(cursor.contains((due_ms, entry.identity)) for cursor in cursors):
        due_ms += 1
    return due_ms


def held_at(timeline: Timeline, record: int, due_ms: int) -> Pending | None:
    """Return the pending message that is due then and held by the record at an offset. OSError, damage."""
    entries = [*timeline.taken_messages, *timeline.held_messages]
    for partition in timeline.partitions.pending():
        entries += timeline.due_at(due_ms, partition)
    return next((entry for entry in entries if entry.record == record and entry.due_ms == due_ms), None)


def find_identities(timeline: Timeline, wanted: Collection[int]) -> dict[int, Pending]:
    """Return the pending messages with these identities, for which all messages are read. OSError, damage."""
    return {entry.identity: entry for entry in _all(timeline) if entry.identity in wanted}


def find_held_at(timeline: Timeline, record: int) -> Iterator[Pending | None]:
    """Yield the pending message that the record at an offset holds, and None after each other one. OSError, damage."""
    return (entry if entry.record == record else None for entry in _all(timeline))


def _all(timeline: Timeline) -> Iterator[Pending]:
    reader = _Reader(timeline)
    for partition in timeline.partitions.pending():
        yield from (entry for entry in _in_order(reader.read(partition)) if entry is not None)


def _between(contents: _Contents, begin: Key, end: Key) -> _Contents:
    """Return the entries of the contents with keys from `begin` to before `end`."""
    if (begin, end) == (FIRST_KEY, END_KEY):
        return contents
    ranges = []
    for run, first, after in contents.ranges:
        at = first if begin == FIRST_KEY else run.find(first, after, begin)
        ranges.append(Range(run, at, _find(run, at, after, end)))
    return contents._replace(
        ranges=ranges,
        held=[entry for entry in contents.held if begin <= entry[:2] < end],
        ended=[key for key in contents.ended if begin <= key < end],
    )


def _first_key(contents: _Contents, default: Key) -> Key:
    keys = [entry[:2] for entry in contents.held]
    keys += [run.key_at(first) for run, first, end in contents.ranges if first < end]
    return min(keys, default=default)


def _in_order(contents: _Contents) -> Iterator[Pending | None]:
    """Yield the pending messages of a partition by due time, and None where the caller may interrupt.

    Messages to which an order is to be applied are missing.
    """
    sweep = contents.timeline.sweep
    sources: list[Iterable[_RankedRow]] = [_ranked_rows(part, rank) for rank, part in enumerate(contents.ranges)]
    sources.append((*entry[:2], -1, *entry[2:5]) for entry in sorted(contents.held))
    ended, previous = set(contents.ended), None
    for due_ms, identity, rank, record, size, owner in merge(*sources):
        key = due_ms, identity
        entry: Pending | None = None
        if key != previous and record != NO_RECORD and (rank < 0 or key not in ended):
            entry = Pending(due_ms, identity, record, size, owner, contents.partition)
            if sweep and rank >= 0 and sweep.applied(entry) is not entry:
                entry = None
        yield entry
        previous = key


def _ranked_rows(part: Range, rank: int) -> Iterator[_RankedRow]:
    run, first, end = part
    for at in range(first, end, _ROWS_AT_ONCE):
        for due_ms, identity, record, size, owner in unpacked(run.read(at, min(_ROWS_AT_ONCE, end - at))):
            yield due_ms, identity, rank, record, size, owner


# Messages of groups.


class OwnedSearch:
    """Search for the messages of owners that are due first, with keys from `begin` to before `end`.

    Only the owners of most entries are read, so that a group with few messages is found among millions.
    """

    def __init__(
        self,
        timeline: Timeline,
        partitions: Collection[int],
        owners: Collection[int],
        count: int,
        *,
        begin: Key = FIRST_KEY,
        end: Key = END_KEY,
    ) -> None:
        reader = _Reader(timeline)
        self._parts = [_OwnedPart(reader.read(partition), owners, begin, end) for partition in partitions]
        self._count = count
        self._end = end
        self.found: list[Pending] = []
        """Messages in the order of due times, possibly more than `count`."""
        self.examined = 0
        """Number of entries that were examined."""
        self.following: Key | None = begin
        """Key from which the search has to continue; None if everything was examined."""

    def steps(self, most: int) -> Iterator[None]:
        """Search in short steps, until `count` messages are found or `most` entries were examined. OSError, damage."""
        size = _FIRST_ROUND
        while self.following is not None and len(self.found) < self._count and self.examined < most:
            bounds = [bound for part in self._parts for bound in part.bounds(size)]
            bound = min(bounds, default=self._end)
            round_of: list[Pending] = []
            for part in self._parts:
                for examined in part.take_up_to(bound, round_of):
                    self.examined += examined
                    yield
            self.found += sorted(round_of)
            self.following = bound if bounds else None
            size = min(2 * size, _LAST_ROUND)


class _OwnedPart:
    """Entries of one partition that have not been examined."""

    def __init__(self, contents: _Contents, owners: Collection[int], begin: Key, end: Key) -> None:
        self._owners = frozenset(owners)
        self._partition = contents.partition
        self._held = [entry for entry in contents.held if entry.owner in self._owners and begin <= entry[:2] < end]
        self._replaced = {*contents.ended, *(entry[:2] for entry in contents.held)}
        """Keys of entries in runs that do not count any more."""
        self._ranges: list[Range] = []
        for run, first, after in contents.ranges:
            at = run.find(first, after, begin)
            self._ranges.append(Range(run, at, _find(run, at, after, end)))
        self._next = [part.first for part in self._ranges]

    def bounds(self, size: int) -> Iterator[Key]:
        """Yield the key after `size` further entries of each run that has more."""
        for (run, _, end), at in zip(self._ranges, self._next, strict=True):
            if at + size < end:
                yield run.key_at(at + size)

    def take_up_to(self, bound: Key, found: list[Pending]) -> Iterator[int]:
        """Add the messages before a key to `found`; yield the number of entries that each step examined."""
        found += (entry for entry in self._held if entry[:2] < bound)
        self._held = [entry for entry in self._held if entry[:2] >= bound]
        for number, (run, _, end) in enumerate(self._ranges):
            at, after = self._next[number], _find(run, self._next[number], end, bound)
            self._next[number] = after
            wanted: list[Row] = []
            for start in range(at, after, STEP_ENTRIES):
                examined = min(STEP_ENTRIES, after - start)
                wanted += self._owned(run.read(start, examined))
                yield examined
            if wanted:
                for _ in self._add_newest(wanted, number, found):
                    yield 0

    def _owned(self, data: bytes) -> list[Row]:
        owners = owners_of(data)
        if self._owners.isdisjoint(owners):
            return []
        rows: list[Row] = []
        for index, owner in enumerate(owners):
            if owner in self._owners:
                (row,) = unpacked(data[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES])
                if row[2] != NO_RECORD and row[:2] not in self._replaced:
                    rows.append(row)
        return rows

    def _add_newest(self, rows: list[Row], number: int, found: list[Pending]) -> Iterator[None]:
        """Add rows of a run, without those that newer runs replace or end."""
        newer = set[Key]()
        for row in newest_rows(self._ranges[:number], [row[:2] for row in rows]):
            if row is None:
                yield
            else:
                newer.add(row[:2])
        found += (Pending(*row, self._partition) for row in rows if row[:2] not in newer)


def _find(run: Run, first: int, end: int, key: Key) -> int:
    return end if key >= END_KEY else run.find(first, end, key)
