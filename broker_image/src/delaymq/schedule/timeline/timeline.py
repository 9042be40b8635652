"""The index: adds pending messages, ends them, and returns those that are due, topic by topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from delaymq.schedule.scheduler import Entry, Lane
from delaymq.schedule.timeline.compaction import Compaction
from delaymq.schedule.timeline.cursors import Cursor, EntryQueue, Key
from delaymq.schedule.timeline.entries import ENTRY, NO_RECORD, Pending, Row, packed_end, unpacked
from delaymq.schedule.timeline.files import RunFiles
from delaymq.schedule.timeline.holders import Holders
from delaymq.schedule.timeline.merging import Range
from delaymq.schedule.timeline.partitions import Partitions
from delaymq.schedule.timeline.runs import Run, RunWriter, Section, Sizes
from delaymq.schedule.timeline.wakeups import Wakeups

TIMELINE_QUEUE: Final = -1
"""In place of the queue of the schedule topic in an `Entry`, whose offset is then the identity of the message."""
_SHARE: Final = 8
"""Entries of a topic that are taken before those of the next one, unless few are wanted."""


class Timeline:
    """Index of pending messages, and a source of due entries. Its files are described by `state.Capture`."""

    lane = Lane.USERS

    def __init__(self, files: RunFiles, sizes: Sizes, segment_bytes: int) -> None:
        self.files = files
        self.sizes = sizes
        self.partitions = Partitions()
        """Partitions, accounts and counts."""
        self.runs: list[Run] = []
        """Runs from the oldest to the newest one."""
        self.file_number = 0
        """Number of the next file."""
        self.garbage: set[str] = set()
        """Names of files that this index no longer uses."""
        self.referenced: set[str] = set()
        """Names of files to which the snapshot refers."""
        self.holders = Holders(segment_bytes)
        """Number of records that hold pending messages, by segment of the log."""
        self.compaction = Compaction(self)
        """Merges of runs."""
        self._memory: dict[int, Pending] = {}
        self._released = 0
        self._replaces = False
        self._ended: dict[Key, int] = {}
        self._taken: dict[int, Pending] = {}
        self._cursors: dict[int, list[Cursor]] = {}
        self._queues: dict[str, EntryQueue] = {}
        self._queue_of: dict[int, EntryQueue] = {}
        """The same by partition, as far as they are known."""
        self._wakeups = Wakeups()
        self._ready_dues = Wakeups()
        self._ready: deque[EntryQueue] = deque()
        self._paced = EntryQueue()
        self._paced_up_to_ms: int | None = None

    # Changes.

    def add(self, entry: Pending) -> None:
        """Add a message, or replace the record of the pending one with this due time and identity. OSError, damage."""
        due_ms, identity = entry.due_ms, entry.identity
        if entry.record != identity:
            taken = self._taken.get(identity)
            known = taken if taken is not None else self.find(due_ms, identity, entry.partition)
            if known is not None:
                self.count(known, -1)
            if taken is not None:
                self.count(entry, 1)
                self._taken[identity] = entry
                return
            self._replaces = True
        self.count(entry, 1)
        self._hold(entry)
        self._freeze_if_full()

    def _freeze_if_full(self) -> None:
        if len(self._memory) + len(self._ended) >= self.sizes.memory:
            self.freeze()

    def count(self, entry: Pending, messages: int) -> None:
        """Count a message as pending (1) or not any more (-1)."""
        self.partitions.count(entry.partition, entry.account, messages, messages * entry.size)
        self.holders.count(entry.record, messages)

    def _hold(self, entry: Pending) -> None:
        self._memory[entry.identity] = entry
        if self._paced_up_to_ms is not None and self._is_paced(entry.due_ms):
            self._paced.add(entry)
        else:
            queue = self._queue(entry.partition)
            if queue.add(entry):
                self._wait(queue, entry.due_ms)

    def end(self, due_ms: int, identity: int, partition: int | None) -> Pending | None:
        """Remove a pending message and return it; None if it is not pending, or not due then. OSError, damage."""
        entry = self._taken.get(identity)
        if entry is None:
            held = self._memory.get(identity)
            if held is not None and held.due_ms == due_ms:
                entry = held
            elif partition is not None:
                entry = self.find(due_ms, identity, partition)
        if entry is not None:
            self.remove(entry)
        return entry

    def _release(self, identity: int) -> Pending:
        """Remove a message from memory. Its queue releases it later, together with others."""
        self._released += 1
        entry = self._memory.pop(identity)
        if self._released >= self.sizes.memory:
            self._released = 0
            for queue in (*self._queues.values(), self._paced):
                queue.drop_stale(self._memory)
        return entry

    def remove(self, entry: Pending) -> None:
        """Remove a pending message, whose present state is `entry`. OSError, TimelineDamagedError."""
        if self._taken.pop(entry.identity, None) is None:
            if self._memory.get(entry.identity) == entry:
                self._release(entry.identity)
                if entry.record != entry.identity:
                    self._ended[entry[:2]] = entry.partition  # older runs may contain an earlier record
            else:
                self._ended[entry[:2]] = entry.partition
        self.count(entry, -1)
        self._freeze_if_full()

    def move(self, entry: Pending, due_ms: int) -> None:
        """Let a pending message, whose present state is `entry`, be due at an unused time. OSError, damage."""
        if due_ms != entry.due_ms:
            self.remove(entry)
            moved = entry._replace(due_ms=due_ms)
            self.count(moved, 1)
            self._hold(moved)
            self._freeze_if_full()

    def find(self, due_ms: int, identity: int, partition: int) -> Pending | None:
        """Return a pending message; None if it is taken, not pending, or not due then. OSError, damage."""
        key, held = (due_ms, identity), self._memory.get(identity)
        if held is not None and held.due_ms == due_ms:
            return held
        if key in self._ended:
            return None
        for cursor in sorted(self.open_cursors(partition), key=lambda each: each.run.age, reverse=True):
            index = cursor.run.find(cursor.head, cursor.end, key)
            if index < cursor.end:
                row: Row = ENTRY.unpack(cursor.run.read(index, 1))
                if row[:2] == key:
                    return Pending(*row, partition) if row[2] != NO_RECORD else None
        return None

    def due_at(self, due_ms: int, partition: int) -> list[Pending]:
        """Return the pending messages of a partition that are due then and not taken. OSError, TimelineDamagedError."""
        found = {
            entry.identity: entry
            for entry in self._memory.values()
            if entry.due_ms == due_ms and entry.partition == partition
        }
        for cursor in sorted(self.open_cursors(partition), key=lambda each: each.run.age, reverse=True):
            run = cursor.run
            first = run.find(cursor.head, cursor.end, (due_ms, 0))
            end = run.find(first, cursor.end, (due_ms + 1, 0))
            for row in unpacked(run.read(first, end - first) if first < end else b""):
                if (due_ms, row[1]) not in self._ended:
                    found.setdefault(row[1], Pending(*row, partition))
        return sorted(entry for entry in found.values() if entry.record != NO_RECORD)

    # Source of due entries.

    def next_due_ms(self) -> int | None:
        """Return the earliest due time at which `take` may return an entry; None without entries."""
        dues = self._ready_dues.first_ms(), self._wakeups.first_ms()
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    def due_count(self, now_ms: int) -> int:
        """Return the number of messages due at `now_ms`, except taken and paced ones. OSError, TimelineDamagedError."""
        fresh = sum(entry.due_ms <= now_ms and not self._is_paced(entry.due_ms) for entry in self._memory.values())
        counts = [
            cursor.run.find(cursor.head, cursor.end, (now_ms + 1, 0)) - cursor.head
            for partition in list(self._cursors)
            for cursor in self.open_cursors(partition)
            if cursor.queue is not self._paced
        ]
        return fresh + sum(counts)

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Remove and return at most `count` entries due at `now_ms`, from each topic in turn.

        Entries name the timeline (`TIMELINE_QUEUE`) and the identity; `taken` returns the message. OSError and
        TimelineDamagedError if nothing can be taken.
        """
        for queue in self._wakeups.pop_due(now_ms):
            queue.is_ready = True
            self._ready.append(queue)
            if (first_ms := queue.next_due_ms()) is not None:
                self._ready_dues.add(queue, first_ms)
        taken: list[Pending] = []
        ready = self._ready
        try:
            while ready and len(taken) < count:
                share = max((count - len(taken)) // len(ready), min(count // 8, _SHARE), 1)
                for _ in range(min(len(ready), count - len(taken))):
                    queue = ready[0]
                    queue.take(now_ms, min(share, count - len(taken)), self._memory, self._ended, taken)
                    due_ms = queue.next_due_ms()
                    ready.rotate(-1)
                    if due_ms is not None and due_ms <= now_ms:
                        self._ready_dues.replace(queue, due_ms)
                        continue
                    ready.pop()
                    self._ready_dues.remove(queue)
                    queue.is_ready = False
                    if due_ms is not None:
                        self._wait(queue, due_ms)
        except OSError:
            if not taken:
                raise
        return self._out(taken)

    def _out(self, taken: list[Pending]) -> list[Entry]:
        for entry in taken:
            self._taken[entry.identity] = entry
        return [(entry.due_ms, TIMELINE_QUEUE, entry.identity, 0) for entry in taken]

    def _wait(self, queue: EntryQueue, due_ms: int) -> None:
        """Let a queue wait for an entry that is due then, unless it waits for an earlier one."""
        (self._ready_dues if queue.is_ready else self._wakeups).add(queue, due_ms)

    def taken(self, identity: int) -> Pending | None:
        """Return a taken message that has neither been settled nor given back."""
        return self._taken.get(identity)

    def settle(self, identities: Iterable[int]) -> None:
        """End taken messages."""
        ended = [entry for identity in identities if (entry := self._taken.pop(identity, None)) is not None]
        self.partitions.remove(ended)
        self.holders.remove(ended)

    def give_back(self, entries: list[Entry]) -> None:
        """Put taken messages back. An entry may have a later due time than before, which then applies."""
        for due_ms, _, identity, _ in entries:
            entry = self._taken.pop(identity, None)
            if entry is not None:
                self._hold(entry._replace(due_ms=due_ms))

    @property
    def taken_messages(self) -> list[Pending]:
        """Messages that have been taken and neither settled nor given back."""
        return list(self._taken.values())

    # Overdue messages that are spread over a period.

    def begin_pacing(self, up_to_ms: int) -> int:
        """Move what is due at or before `up_to_ms` to `take_paced`; return its number. OSError, damage."""
        self._paced_up_to_ms = up_to_ms
        self._redistribute(list(self._queues.values()))
        return self.paced_left

    def end_pacing(self) -> None:
        """Return the rest to the topics. OSError, TimelineDamagedError."""
        self._paced_up_to_ms = None
        # Their results would contain entries that were taken although earlier ones, the paced ones, were not.
        self.compaction.abandon()
        self._redistribute([self._paced])

    @property
    def paced_left(self) -> int:
        """Number of entries that `take_paced` has not returned yet."""
        return self._paced.count(self._memory)

    def paced_due_ms(self) -> int | None:
        """Return the earliest due time of the paced messages; None without any."""
        return self._paced.next_due_ms()

    def take_paced(self, count: int) -> list[Entry]:
        """Remove and return paced entries by due time, whatever their topics. OSError, TimelineDamagedError."""
        taken: list[Pending] = []
        try:
            self._paced.take(self._paced_up_to_ms or 0, count, self._memory, self._ended, taken)
        except OSError:
            if not taken:
                raise
        return self._out(taken)

    def _is_paced(self, due_ms: int) -> bool:
        return self._paced_up_to_ms is not None and due_ms <= self._paced_up_to_ms

    def _redistribute(self, queues: list[EntryQueue]) -> None:
        for queue in queues:
            cursors, entries = queue.empty(self._memory)
            for entry in entries:
                self._hold(entry)
            for cursor in cursors:
                self._open(cursor)

    # Runs.

    def _queue(self, partition: int) -> EntryQueue:
        queue = self._queue_of.get(partition)
        if queue is None:
            topic = self.partitions.key(partition).topic
            queue = self._queues.get(topic)
            if queue is None:
                queue = self._queues[topic] = EntryQueue()
            self._queue_of[partition] = queue
        return queue

    def open_cursors(self, partition: int) -> list[Cursor]:
        """Return the positions in the runs that contain pending messages of a partition."""
        cursors = self._cursors.get(partition, [])
        for cursor in cursors:
            if cursor.is_closed or cursor.head >= cursor.end:
                break
        else:
            return cursors
        cursors = [cursor for cursor in cursors if cursor.left and not cursor.is_closed]
        self._cursors[partition] = cursors
        return cursors

    def freeze(self) -> None:
        """Turn the entries in memory into a run."""
        rows: dict[int, list[bytes]] = {}
        for entry in self._memory.values():
            rows.setdefault(entry.partition, []).append(entry.packed())
        for (due_ms, identity), partition in self._ended.items():
            held = self._memory.get(identity)
            if held is None or held.due_ms != due_ms:
                rows.setdefault(partition, []).append(packed_end(due_ms, identity))
        if not rows:
            return
        is_plain = not self._ended and not self._replaces
        for queue in {id(queue): queue for partition in rows if (queue := self._queue(partition))}.values():
            queue.forget_fresh()
        self._paced.forget_fresh()
        self._memory.clear()
        self._ended.clear()
        self._replaces = False
        self.add_rows(rows, is_plain=is_plain)

    def add_rows(self, rows: dict[int, list[bytes]], *, is_plain: bool, in_file: bool = False) -> None:
        """Add packed entries by partition, which are sorted in place, as a run without counting them. OSError."""
        writer = RunWriter()
        if in_file:
            name = self.next_name("run")
            writer = RunWriter(name, self.files.create(name))
        for partition in sorted(rows):
            rows[partition].sort()
            writer.append(partition, b"".join(rows[partition]))
        run = writer.finish(is_plain=is_plain)
        run.age = self.runs[-1].age + 1 if self.runs else 1
        self.add_run(run, [Cursor(run, each.partition, each.first, each.end) for each in run.sections])

    def add_run(self, run: Run, cursors: list[Cursor]) -> None:
        """Add the newest run with the positions of what is pending in it. OSError, TimelineDamagedError."""
        run.left = sum(cursor.left for cursor in cursors)
        self.runs.append(run)
        self.compaction.is_planned = False
        for cursor in cursors:
            self._cursors[cursor.partition] = [*self.open_cursors(cursor.partition), cursor]
            self._open(cursor)

    def _open(self, cursor: Cursor) -> None:
        """Open a cursor in the queue of its topic, and what is to be paced in the paced queue."""
        if self._paced_up_to_ms is not None and (part := cursor.split(self._paced_up_to_ms)) is not None:
            self._cursors[cursor.partition].append(part)
            self._paced.open(part, part.run.key_at(part.head))
        if cursor.left:
            key = cursor.run.key_at(cursor.head)
            queue = self._queue(cursor.partition)
            queue.open(cursor, key)
            self._wait(queue, key[0])

    def maintain(self) -> bool:
        """Merge some entries; return whether there is more to merge. OSError, TimelineDamagedError."""
        return self.compaction.step()

    def drop_consumed(self) -> None:
        """Remove runs of which everything was taken, and what only they needed."""
        for run in [run for run in self.runs if not run.left]:
            self.runs.remove(run)
            self.discard(run.name)
        used = {section.partition for run in self.runs for section in run.sections}
        used.update(entry.partition for entry in (*self._memory.values(), *self._taken.values()))
        self.partitions.drop_unused([*used, *self._ended.values()])
        self._queues = {
            topic: queue
            for topic, queue in self._queues.items()
            if queue.is_ready or queue in self._wakeups or queue.next_due_ms() is not None
        }
        self._queue_of.clear()
        self._cursors = {partition: cursors for partition in self._cursors if (cursors := self.open_cursors(partition))}

    def discard(self, name: str) -> None:
        """Let a file be removed that is no longer used; the name is empty for a run in memory."""
        if name:
            self.garbage.add(name)

    def next_name(self, suffix: str) -> str:
        """Return a name for a new file."""
        self.file_number += 1
        return f"{self.file_number:020d}.{suffix}"

    def replace(self, inputs: Sequence[Run], run: Run) -> None:
        """Use a merged run instead of its inputs, from the positions that they have by now. OSError, damage."""
        merged_runs = {id(each) for each in inputs}
        merged = {
            partition: [cursor for cursor in self.open_cursors(partition) if id(cursor.run) in merged_runs]
            for partition in {section.partition for each in inputs for section in each.sections}
        }
        opened = [found for section in run.sections for found in self._continued(run, section, merged)]
        at = self.runs.index(inputs[0])
        self.runs[at : at + len(inputs)] = [run]
        for each in inputs:
            self.discard(each.name)
        for cursors in merged.values():
            for cursor in cursors:
                if cursor.queue is not None:
                    cursor.queue.close(cursor)
        run.left = sum(cursor.left for cursor, _, _ in opened)
        for cursor, queue, key in opened:
            self._cursors[cursor.partition] = [*self.open_cursors(cursor.partition), cursor]
            queue.open(cursor, key)
            if queue is not self._paced:
                self._wait(queue, key[0])

    def _continued(
        self, run: Run, section: Section, merged: dict[int, list[Cursor]]
    ) -> Iterator[tuple[Cursor, EntryQueue, Key]]:
        """Yield the cursors of a section of a merged run, with their queues and first keys."""
        first, end, split = section.first, section.end, section.first
        if self._paced_up_to_ms is not None:
            split = run.find(first, end, (self._paced_up_to_ms + 1, 0))
        of_topic = self._queue(section.partition)
        for queue, low, high in ((self._paced, first, split), (of_topic, split, end)):
            heads = [cursor.run.key_at(cursor.head) for cursor in merged[section.partition] if cursor.queue is queue]
            if heads and (head := run.find(low, high, min(heads))) < high:
                yield Cursor(run, section.partition, head, high), queue, run.key_at(head)

    def positions(self, runs: Sequence[Run]) -> list[list[tuple[int, int, int]]]:
        """Return, for each run, partition, first and end index of its entries that have not been taken, in order."""
        found: dict[int, list[tuple[int, int, int]]] = {id(run): [] for run in runs}
        for partition in sorted({section.partition for run in runs for section in run.sections}):
            for cursor in self.open_cursors(partition):
                positions = found.get(id(cursor.run))
                if positions is not None:
                    positions.append((partition, cursor.head, cursor.end))
        return [sorted(positions) for positions in found.values()]

    # Inspection.

    def ranges(self, partition: int) -> list[Range]:
        """Return the entries of a partition in runs that have not been taken, those of the newest run first."""
        cursors = sorted(self.open_cursors(partition), key=lambda each: each.run.age, reverse=True)
        return [Range(cursor.run, cursor.head, cursor.end) for cursor in cursors]

    @property
    def held_messages(self) -> list[Pending]:
        """Messages that are in memory, and not in runs."""
        return list(self._memory.values())

    @property
    def ended_entries(self) -> list[tuple[Key, int]]:
        """Keys and partitions of entries in runs that have ended since the newest run was made."""
        return list(self._ended.items())

    @property
    def merging_entries(self) -> int:
        """Number of entries that are being merged."""
        return self.compaction.entries

    # Snapshots.

    @property
    def removable(self) -> frozenset[str]:
        """Names of files that neither this index nor the snapshot needs."""
        return frozenset(self.garbage - self.referenced)

    def published(self, names: set[str]) -> None:
        """Note the files to which the snapshot now refers."""
        self.garbage |= self.referenced - names
        self.referenced = names

    def restore_taken(self, taken: Iterable[tuple[int, Row]]) -> None:
        """Add what had been taken when the state was captured, by partition; the counts include it already."""
        for partition, row in taken:
            self._hold(Pending(*row, partition))
