"""The index: adds pending messages, ends them, and returns those that are due, topic by topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from delaymq.schedule.scheduler import Entry, Lane
from delaymq.schedule.timeline.compaction import Compaction
from delaymq.schedule.timeline.cursors import Cursor, EndedKey, EntryQueue, ended_key
from delaymq.schedule.timeline.entries import NO_RECORD, Pending, packed_end, unpacked
from delaymq.schedule.timeline.files import RunFiles
from delaymq.schedule.timeline.holders import Holders
from delaymq.schedule.timeline.holding import Holding
from delaymq.schedule.timeline.merging import Range
from delaymq.schedule.timeline.partitions import MOVED, Partitions
from delaymq.schedule.timeline.queues import Queues, Shift
from delaymq.schedule.timeline.runs import Run, RunWriter, Section, Sizes
from delaymq.schedule.timeline.searching import newest_row
from delaymq.schedule.timeline.sweeping import Sweep

TIMELINE_QUEUE: Final = -1
"""In place of the queue of the schedule topic in an `Entry`, whose offset is then the identity of the message."""


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
        self.sweep = Sweep(self)
        """Changes of groups."""
        self.holding = Holding(self)
        """Messages that came due while their groups were paused."""
        self.queues = Queues(self.partitions)
        """Order of taking, and pauses."""
        self._memory: dict[int, Pending] = {}
        self._released = 0
        self._replaces = False
        self._ended: set[EndedKey] = set()
        self._taken: dict[int, Pending] = {}
        self._cursors: dict[int, list[Cursor]] = {}

    # Changes.

    def add(self, entry: Pending) -> None:
        """Add a message, or replace the record of the pending one with this due time and identity. OSError, damage."""
        due_ms, identity = entry.due_ms, entry.identity
        if entry.record != identity:
            taken = self._taken.get(identity)
            known = taken if taken is not None else self.find(due_ms, identity, entry.partition)
            if known is not None:
                entry = entry._replace(partition=known.partition)
                self.recount(known, entry)
            else:
                self.count(entry, 1)
            if taken is not None:
                self._taken[identity] = entry
                return
            self._replaces = True
        else:
            self.count(entry, 1)
        self.hold(entry)
        self.freeze_if_full()

    def freeze_if_full(self) -> None:
        """Turn the entries in memory into a run if there are enough of them."""
        if len(self._memory) + len(self._ended) >= self.sizes.memory:
            self.freeze()

    def count(self, entry: Pending, messages: int) -> None:
        """Count a message as pending (1) or not any more (-1)."""
        self.partitions.count(entry.partition, entry.owner, messages, messages * entry.size)
        self.holders.count(entry.record, messages)

    def recount(self, entry: Pending, state: Pending) -> None:
        """Count a message in its new state. It is never uncounted in between: its group would be forgotten."""
        self.count(state, 1)
        self.count(entry, -1)

    def hold(self, entry: Pending) -> None:
        """Add a message that is counted already."""
        self._memory[entry.identity] = entry
        self.queues.hold(entry)

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
            for queue in self.queues:
                queue.drop_stale(self._memory)
        return entry

    def remove(self, entry: Pending) -> None:
        """Remove a pending message, whose present state is `entry`. OSError, TimelineDamagedError."""
        if self._taken.pop(entry.identity, None) is None:
            if self._memory.get(entry.identity) == entry:
                self._release(entry.identity)
                if entry.record != entry.identity or entry.owner & MOVED:
                    self._ended.add(ended_key(entry))  # older runs may contain an earlier entry
            else:
                self._ended.add(ended_key(entry))
        self.count(entry, -1)
        self.freeze_if_full()

    def move(self, entry: Pending, due_ms: int) -> None:
        """Let a pending message, whose present state is `entry`, be due at an unused time. OSError, damage."""
        if due_ms != entry.due_ms:
            moved = self.holding.at_home(entry)._replace(due_ms=due_ms)
            self.count(moved, 1)
            self.remove(entry)
            self.hold(moved)
            self.freeze_if_full()

    def find(self, due_ms: int, identity: int, partition: int) -> Pending | None:
        """Return a pending message; None if it is taken, not pending, or not due then. OSError, damage.

        It may be in a partition of messages that are held because their group is paused. If an order applies to it, its
        due time may be another one.
        """
        found = self._find_in(due_ms, identity, partition)
        if found is None:
            for each in self.holding.of(partition):
                found = found or self._find_in(due_ms, identity, each)
        return found

    def _find_in(self, due_ms: int, identity: int, partition: int) -> Pending | None:
        key, held = (due_ms, identity), self._memory.get(identity)
        if held is not None and held.due_ms == due_ms:
            return held
        if (due_ms, identity, partition) in self._ended:
            return None
        row = newest_row(self.open_cursors(partition), key)
        if row is None or row[2] == NO_RECORD:
            return None
        return self.sweep.apply(Pending(*row, partition))

    def due_at(self, due_ms: int, partition: int) -> list[Pending]:
        """Return the pending messages of a partition that are due then and not taken. OSError, TimelineDamagedError."""
        partitions = {partition, *self.holding.of(partition)}
        found = {
            entry.identity: entry
            for entry in self._memory.values()
            if entry.due_ms == due_ms and entry.partition in partitions
        }
        cursors = [cursor for each in partitions for cursor in self.open_cursors(each)]
        for cursor in sorted(cursors, key=lambda each: each.run.age, reverse=True):
            run = cursor.run
            first = run.find(cursor.head, cursor.end, (due_ms, 0))
            end = run.find(first, cursor.end, (due_ms + 1, 0))
            for row in unpacked(run.read(first, end - first) if first < end else b""):
                if (due_ms, row[1], cursor.partition) not in self._ended:
                    found.setdefault(row[1], Pending(*row, cursor.partition))
        return sorted(entry for entry in found.values() if entry.record != NO_RECORD)

    def is_replaced(self, entry: Pending) -> bool:
        """Whether an entry of a run is replaced by one in memory, or has ended since the newest run was made."""
        held = self._memory.get(entry.identity)
        return ended_key(entry) in self._ended or (held is not None and held.due_ms == entry.due_ms)

    def replace_in_run(self, entry: Pending, state: Pending | None) -> None:
        """Replace an entry of a run because of an order; with None, because its message has ended.

        The order has changed the counts. The caller calls `freeze_if_full`.
        """
        self._ended.add(ended_key(entry))
        if state is None:
            self.holders.count(entry.record, -1)
        else:
            self.hold_moved(state)

    def replace_in_memory(self, entry: Pending, state: Pending | None) -> None:
        """Replace a message that is taken or in memory, like `replace_in_run`."""
        if self._taken.pop(entry.identity, None) is None:
            self._release(entry.identity)
            if entry.record != entry.identity or entry.owner & MOVED:
                self._ended.add(ended_key(entry))  # older runs may contain an earlier entry
        if state is None:
            self.holders.count(entry.record, -1)
        else:
            self.hold_moved(state)

    def hold_moved(self, entry: Pending) -> None:
        """Add the new state of a message that was in the index before; older runs may contain its key."""
        self._replaces = True
        self.hold(entry)

    def put_back(self, entry: Pending, state: Pending) -> None:
        """Put a taken message back in a new state. OSError, TimelineDamagedError."""
        del self._taken[entry.identity]
        self.recount(entry, state)
        self.hold_moved(state)
        self.freeze_if_full()

    # Source of due entries.

    def next_due_ms(self) -> int | None:
        """Return the earliest due time at which `take` may return an entry; None without entries."""
        return self.queues.next_due_ms()

    def take(self, now_ms: int, count: int) -> list[Entry]:
        """Remove and return at most `count` entries due at `now_ms`, from each topic in turn.

        Entries name the timeline (`TIMELINE_QUEUE`) and the identity; `taken` returns the message. OSError and
        TimelineDamagedError if nothing can be taken.
        """
        taken: list[Pending] = []
        try:
            self.queues.take(now_ms, count, self._memory, self._ended, taken)
        except OSError:
            if not taken:
                raise
        return self._out(taken, now_ms)

    def _out(self, taken: list[Pending], now_ms: int) -> list[Entry]:
        if self.sweep:
            taken = self.sweep.apply_to_taken(taken, now_ms)
        for entry in taken:
            self._taken[entry.identity] = entry
        return [(entry.due_ms, TIMELINE_QUEUE, entry.identity, 0) for entry in taken]

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
            if entry is not None and due_ms != entry.due_ms:
                self.hold_moved(entry._replace(due_ms=due_ms))
            elif entry is not None:
                self.hold(entry)

    @property
    def taken_messages(self) -> list[Pending]:
        """Messages that have been taken and neither settled nor given back."""
        return list(self._taken.values())

    # Pauses.

    def pause(self, topic: str, group: str = "") -> None:
        """Deliver no messages of a topic, or of a group of it, until `resume`. OSError, TimelineDamagedError."""
        self.queues.pause(topic, group)
        self.sort_out_paced()

    def resume(self, topic: str, group: str = "") -> None:
        """End a pause. OSError, TimelineDamagedError."""
        self.queues.resume(topic, group)
        self.sort_out_paced()

    def sort_out_paced(self) -> None:
        """Pace exactly the overdue messages that are not paused and have no rate. OSError, TimelineDamagedError."""
        if self.queues.paced_up_to_ms is not None:
            self._redistribute(list(self.queues))

    # Overdue messages that are spread over a period.

    def begin_pacing(self, up_to_ms: int) -> None:
        """Move what is due at or before `up_to_ms` to `take_paced`. OSError, TimelineDamagedError."""
        self.queues.paced_up_to_ms = up_to_ms
        self._redistribute(list(self.queues))

    def end_pacing(self) -> None:
        """Return the rest to the topics. OSError, TimelineDamagedError."""
        self.queues.paced_up_to_ms = None
        self._redistribute([self.queues.paced])

    @property
    def paced_left(self) -> int:
        """Number of entries that `take_paced` has not returned yet."""
        return self.queues.paced.count(self._memory)

    def paced_due_ms(self) -> int | None:
        """Return the earliest due time of the paced messages; None without any."""
        return self.queues.paced.next_due_ms()

    def take_paced(self, now_ms: int, count: int) -> list[Entry]:
        """Remove and return paced entries due at `now_ms`, whatever their topics. OSError, TimelineDamagedError."""
        taken: list[Pending] = []
        up_to_ms = min(self.queues.paced_up_to_ms or 0, now_ms)
        try:
            self.queues.paced.take(up_to_ms, count, self._memory, self._ended, taken)
        except OSError:
            if not taken:
                raise
        return self._out(taken, now_ms)

    def shift(self, topic: str, shift: Shift | None) -> None:
        """Shift messages of a topic that are due in a time; with None, take the rest when due. OSError, damage."""
        self._redistribute(self.queues.shift(topic, shift))

    def _redistribute(self, queues: Iterable[EntryQueue]) -> None:
        """Take the entries out of queues, and put each into the queue in which it belongs now."""
        # The results of merges would contain entries that were taken although earlier ones, of other queues, were not.
        self.compaction.abandon()
        self.sweep.restart()
        emptied = [queue.empty(self._memory) for queue in queues]
        for cursors, entries in emptied:
            for entry in entries:
                self.hold(entry)
            for cursor in cursors:
                self._open(cursor)

    # Runs.

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
        for due_ms, identity, partition in self._ended:
            held = self._memory.get(identity)
            if held is None or ended_key(held) != (due_ms, identity, partition):
                rows.setdefault(partition, []).append(packed_end(due_ms, identity))
        if not rows:
            return
        is_plain = not self._ended and not self._replaces
        self.queues.forget_fresh(rows)
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
        """Open a cursor in the queues in which its entries belong."""
        self._cursors[cursor.partition] += self.queues.open(cursor)

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
        self.partitions.drop_unused([*used, *(partition for _, _, partition in self._ended)])
        self.holding.drop_unused()
        self.queues.drop_empty()
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
        run.left = sum(cursor.left for cursor, _ in opened)
        for cursor, queue in opened:
            self._cursors[cursor.partition] = [*self.open_cursors(cursor.partition), cursor]
            self.queues.open_in(queue, cursor)

    def _continued(
        self, run: Run, section: Section, merged: dict[int, list[Cursor]]
    ) -> Iterator[tuple[Cursor, EntryQueue]]:
        """Yield the cursors of a section of a merged run, with their queues."""
        low = section.first
        heads = [(cursor.run.key_at(cursor.head), cursor.queue) for cursor in merged[section.partition]]
        for queue, up_to_ms in self.queues.parts(section.partition):
            high = run.find(low, section.end, (up_to_ms + 1, 0))
            first = min((key for key, of in heads if of is queue), default=None)
            if first is not None and (head := run.find(low, high, first)) < high:
                yield Cursor(run, section.partition, head, high), queue
            low = high

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
    def ended_entries(self) -> list[EndedKey]:
        """Keys and partitions of entries in runs that have ended since the newest run was made."""
        return list(self._ended)

    # Snapshots.

    @property
    def removable(self) -> frozenset[str]:
        """Names of files that neither this index nor the snapshot needs."""
        return frozenset(self.garbage - self.referenced)

    def published(self, names: set[str]) -> None:
        """Note the files to which the snapshot now refers."""
        self.garbage |= self.referenced - names
        self.referenced = names
