"""Model of the timeline's index: random operations on an index and on a dictionary, which must agree."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from delaymq.schedule import Entry
from delaymq.schedule.buckets import Buckets
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.inspection import (
    END_KEY,
    FIRST_KEY,
    OwnedSearch,
    count_by_due,
    find_first,
    find_next_due_times,
    latest_due_times,
    unused_due_ms,
)
from delaymq.schedule.timeline.partitions import Owner
from delaymq.schedule.timeline.queues import Shift
from delaymq.schedule.timeline.runs import Sizes
from delaymq.schedule.timeline.state import Capture, empty, restore

from delaymq_testing.schedule.memory_files import MemoryFiles

SMALL = Sizes(memory=6, run_in_memory=30, merged_runs=3, step=4)
_TOPICS = ("orders", "invoices", "mails")
_GROUPS = ("", "spring", "summer")
_LEVELS = (0, 0, 1, 3)
_SEGMENT_BYTES = 8
"""Size of a segment of the log, in which the records have the offsets 1, 2, 3 and so on."""


class ModelError(AssertionError):
    """The index differs from the model."""


class IndexModel:
    """`step` performs one operation on both and compares the results; a crash returns both to the last snapshot."""

    def __init__(self, seed: int, sizes: Sizes = SMALL) -> None:
        self._random = random.Random(seed)
        self._sizes = sizes
        self.files = MemoryFiles()
        self.index: Timeline = empty(self.files, sizes, _SEGMENT_BYTES)
        self._now_ms = 1_000
        self._place = 0
        self._pending: dict[int, Pending] = {}
        """Pending messages by identity, including taken ones."""
        self._taken: dict[int, Pending] = {}
        self._paced_up_to_ms: int | None = None
        self._shifts: dict[str, Shift] = {}
        self._paused: set[tuple[str, str]] = set()
        """Paused topics (with an empty group) and groups."""
        self._owners: dict[int, Owner] = {}
        """Account and group by identity."""
        self._names_of: dict[int, tuple[str, int]] = {}
        """Topic and delay level by identity."""
        self._earlier_dues: dict[int, list[int]] = {}
        """Due times by identity from which groups were moved."""
        self._saved: tuple[dict[str, object], dict[int, Pending], int] | None = None
        self.counts: dict[str, int] = {}

    def step(self) -> None:
        """Perform one operation. Raises ModelError."""
        operations: dict[Any, int] = {
            self._add: 40, self._end: 8, self._move: 4, self._carry: 4, self._take: 12, self._settle: 14,
            self._give_back: 4,
            self._maintain: 30, self._capture: 5, self._crash: 2, self._tick: 10, self._pace: 2, self._take_paced: 8,
            self._shift: 4,
            self._fill_disk: 1, self._find: 5, self._change_group: 2, self._pause: 2, self._resume: 2,
        }  # fmt: skip
        (operation,) = self._random.choices(list(operations), list(operations.values()))
        if operation():
            name = operation.__name__.lstrip("_")
            self.counts[name] = self.counts.get(name, 0) + 1
        self._check()

    def _names(self, entry: Pending) -> tuple[str, int]:
        """Return topic and delay level of an entry of the index."""
        key = self.index.partitions.key(entry.partition)
        return key.topic, key.level

    def _home(self, entry: Pending) -> int:
        """Return the present number of the partition of a message; its number in the model may be out of date."""
        topic, level = self._names_of[entry.identity]
        return self.index.partitions.number(topic, level=level)

    def _is_paused(self, entry: Pending) -> bool:
        topic = self._names_of[entry.identity][0]
        return not self._paused.isdisjoint({(topic, ""), (topic, self._owners[entry.identity].group)})

    def _add(self) -> bool:
        if len(self._pending) > 400:
            return False
        self._place += 1
        topic = self._random.choice(_TOPICS)
        # A later due time than the paced ones, as for messages that are sent.
        due_ms = self._now_ms + self._random.choice((0, 1, 5, 5, 50, 400))
        level = self._random.choice(_LEVELS)
        group = "" if level else self._random.choice(_GROUPS)
        partition, account = self.index.partitions.number(topic, "", level), self._random.choice(("", "ann", "ben"))
        owner = self._owners[self._place] = Owner(account, topic if group else "", group)
        number = self.index.partitions.owner_number(*owner)
        entry = Pending(due_ms, self._place, self._place, self._random.randint(100, 200), number, partition)
        self._names_of[self._place] = topic, level
        self._pending[self._place] = entry
        self.index.add(entry)
        return True

    def _present(self, entry: Pending) -> Pending | None:
        """Return what the index says about a message, which may not know yet that its group was moved."""
        found = self.index.taken(entry.identity)
        for due_ms in (entry.due_ms, *self._earlier_dues.get(entry.identity, ())):
            found = found or self.index.find(due_ms, entry.identity, self._home(entry))
        return found

    def _is_same(self, found: Pending | None, entry: Pending | None) -> bool:
        """Whether an entry of the index is that of the model, in which no message is in another partition."""
        if found is None or entry is None:
            return found is entry
        return found[:4] == entry[:4] and self._names(found) == self._names_of[entry.identity]

    def _waiting(self) -> list[Pending]:
        return [entry for identity, entry in self._pending.items() if identity not in self._taken]

    def _end(self) -> bool:
        if not self._pending:
            return False
        entry = self._random.choice(list(self._pending.values()))
        missing = self.index.end(entry.due_ms + 10_000, entry.identity + 100_000, self._home(entry))
        present = self._present(entry)
        ended = None if present is None else self.index.end(present.due_ms, present.identity, present.partition)
        if not self._is_same(ended, entry) or missing is not None:
            raise ModelError(f"ended {ended} and {missing} instead of {entry}")
        if self.index.end(entry.due_ms, entry.identity, self._home(entry)) is not None:
            raise ModelError(f"{entry} ended twice")
        del self._pending[entry.identity]
        self._taken.pop(entry.identity, None)
        return True

    def _move(self) -> bool:
        """Move a message, often to a time at which it was due before."""
        if not self._pending:
            return False
        entry = self._random.choice(list(self._pending.values()))
        present = self._present(entry)
        if present is None or not self._is_same(present, entry):
            raise ModelError(f"{present} is in place of {entry}")
        wanted_ms = self._now_ms // 20 * 20 + self._random.choice((0, 20, 40, 400))
        due_ms = unused_due_ms(self.index, present, wanted_ms)
        if not wanted_ms <= due_ms < wanted_ms + 50:
            raise ModelError(f"{entry} was moved to {due_ms} instead of {wanted_ms}")
        self.index.move(present, due_ms)
        if due_ms != entry.due_ms:
            self._pending[entry.identity] = entry._replace(due_ms=due_ms)
            self._taken.pop(entry.identity, None)
        return True

    def _find(self) -> bool:
        waiting = self._waiting()
        if not waiting:
            return False
        entry = self._random.choice(waiting)
        if not self._is_same(self._present(entry), entry):
            raise ModelError(f"{entry} is not found")
        return True

    def _carry(self) -> bool:
        if not self._pending:
            return False
        self._place += 1
        entry = self._random.choice(list(self._pending.values()))
        present = self._present(entry)
        if present is None or not self._is_same(present, entry):
            raise ModelError(f"{present} is in place of {entry}")
        entry = entry._replace(record=self._place, partition=self._home(entry))
        entry = entry._replace(owner=self.index.partitions.owner_number(*self._owners[entry.identity]))
        self._pending[entry.identity] = entry
        if entry.identity in self._taken:
            self._taken[entry.identity] = entry
        self.index.add(entry)
        return True

    def _holds(self) -> bool:
        """Whether the index may hold messages of paused groups."""
        return any(key.group for key in self.index.partitions.names().values())

    def _take(self) -> bool:
        count = self._random.randint(1, 9)
        due = [
            entry
            for entry in self._waiting()
            if self._time_ms(entry) <= self._now_ms
            and (self._paced_up_to_ms is None or entry.due_ms > self._paced_up_to_ms)
        ]
        if self._shifts or self._paused or self.index.sweep or self._holds():
            return self._take_all(due, lambda: self.index.take(self._now_ms, 5), self.index.next_due_ms)
        found = [self._take_one(entry) for entry in self.index.take(self._now_ms, count)]
        if len(found) != min(len(due), count):
            raise ModelError(f"{len(found)} of {len(due)} due messages were taken (limit {count})")
        for topic in _TOPICS:
            expected = sorted(entry for entry in due if self._names_of[entry.identity][0] == topic)
            taken = [entry for entry in found if self._names(entry)[0] == topic]
            order = [entry[:2] for entry in taken]
            if order != sorted(order) or order != [entry[:2] for entry in expected][: len(order)]:
                raise ModelError(f"of topic {topic}, {taken} were taken; the first ones are {expected}")
        if len(due) > count > 3:
            shares = {topic: sum(self._names(entry)[0] == topic for entry in found) for topic in _TOPICS}
            waiting = {topic: sum(self._names_of[entry.identity][0] == topic for entry in due) for topic in _TOPICS}
            fair = count // 3
            if any(shares[topic] < min(waiting[topic], fair) for topic in _TOPICS):
                raise ModelError(f"shares of the topics are {shares}; waiting are {waiting}")
        return bool(found)

    def _take_all(
        self, due: list[Pending], take: Callable[[], list[Entry]], next_due_ms: Callable[[], int | None]
    ) -> bool:
        """Take everything that is due and not paused, whatever the order."""
        found: set[int] = set()
        for _ in range(1_000):
            for entry in take():
                taken = self.index.taken(entry[2])
                if taken is not None and self.index.holding.hold_if_paused(taken):
                    if not self._is_paused(self._pending[entry[2]]):
                        raise ModelError(f"{taken} is held")
                else:
                    found.add(self._take_one(entry).identity)
            next_ms = next_due_ms()
            if next_ms is None or next_ms > self._now_ms:
                break
        expected = {entry.identity for entry in due if not self._is_paused(entry)}
        missing = expected - found
        if self._holds():  # what was held is not shifted
            of_found = [self._taken[identity] for identity in found]
            expected |= {each.identity for each in of_found if each.due_ms <= self._now_ms < self._time_ms(each)}
        if self.index.sweep:
            missing -= self._earlier_dues.keys()  # their groups were moved
            expected |= found & self._earlier_dues.keys()  # the same, to a time that would be paced
        if missing or not found <= expected:
            raise ModelError(f"{sorted(found)} were taken; due and not paused are {sorted(expected)}")
        return bool(found)

    def _take_one(self, entry: tuple[int, int, int, int]) -> Pending:
        taken = self.index.taken(entry[2])
        expected = self._pending.get(entry[2])
        if taken is None or not self._is_same(taken, expected) or entry[2] in self._taken:
            raise ModelError(f"{taken} was taken instead of {self._pending.get(entry[2])}")
        self._taken[taken.identity] = taken
        return taken

    def _settle(self) -> bool:
        if not self._taken:
            return False
        identity = self._random.choice(list(self._taken))
        del self._taken[identity], self._pending[identity]
        self.index.settle([identity])
        return True

    def _give_back(self) -> bool:
        if not self._taken:
            return False
        entry = self._taken.pop(self._random.choice(list(self._taken)))
        self.index.give_back([(entry.due_ms, -1, entry.identity, 0)])
        return True

    def _tick(self) -> bool:
        self._now_ms += self._random.randint(0, 30)
        return True

    def _maintain(self) -> bool:
        try:
            return self.index.sweep.step() | self.index.maintain()
        except OSError:
            return False

    def _fill_disk(self) -> bool:
        self.files.room = None if self.files.room is not None else self._random.randint(0, 2_000)
        return True

    def _change_group(self) -> bool:
        topic, group = self._random.choice(_TOPICS), self._random.choice(_GROUPS[1:])
        members = [entry for entry in self._pending.values() if self._owners[entry.identity][1:] == (topic, group)]
        due_ms: int | None = None
        if self._random.random() < 0.6:
            due_ms = self._now_ms // 20 * 20 + self._random.choice((0, 20, 40, 400))
        totals, forgotten = self.index.sweep.change(topic, group, due_ms)
        if totals != (len(members), sum(entry.size for entry in members)):
            raise ModelError(f"{totals} were changed instead of {members}")
        taken = {entry.identity for entry in members if entry.identity in self._taken}
        if set(forgotten) != taken:
            raise ModelError(f"{forgotten} are to be forgotten instead of {taken}")
        for entry in members:
            if due_ms is None:
                del self._pending[entry.identity]
            else:
                self._pending[entry.identity] = entry._replace(due_ms=due_ms)
                self._earlier_dues.setdefault(entry.identity, []).append(entry.due_ms)
        for identity in taken:
            del self._taken[identity]
        return bool(members)

    def _pause(self) -> bool:
        names = self._random.choice(_TOPICS), self._random.choice(_GROUPS)
        self._paused.add(names)
        self.index.pause(*names)
        return True

    def _resume(self) -> bool:
        if not self._paused:
            return False
        names = self._random.choice(sorted(self._paused))
        self._paused.remove(names)
        self.index.resume(*names)
        return True

    def _pace(self) -> bool:
        if self._paced_up_to_ms is None:
            self._paced_up_to_ms = self._now_ms
            self.index.begin_pacing(self._now_ms)
        else:
            self._paced_up_to_ms = None
            self.index.end_pacing()
        return True

    def _shift(self) -> bool:
        topic = self._random.choice((*_TOPICS, *self._shifts, *self._shifts))
        if self._shifts.pop(topic, None) is None:
            after_ms, up_to_ms = self._now_ms - self._random.randint(1, 40), self._now_ms + self._random.randint(0, 40)
            self._shifts[topic] = Shift(after_ms, up_to_ms, self._random.randint(1, 60))
        self.index.shift(topic, self._shifts.get(topic))
        return True

    def _time_ms(self, entry: Pending) -> int:
        """Return the time at which a message may be taken unless it is paced."""
        shift = self._shifts.get(self._names_of[entry.identity][0])
        is_shifted = shift is not None and shift.after_ms < entry.due_ms <= shift.up_to_ms
        return entry.due_ms + (shift.by_ms if shift is not None and is_shifted else 0)

    def _take_paced(self) -> bool:
        if self._paced_up_to_ms is None:
            return False
        due = sorted(entry for entry in self._waiting() if entry.due_ms <= self._paced_up_to_ms)
        if self._paused or self.index.sweep or self._holds():
            return self._take_all(due, lambda: self.index.take_paced(self._now_ms, 3), self.index.paced_due_ms)
        found = [self._take_one(entry) for entry in self.index.take_paced(self._now_ms, 3)]
        if [entry[:2] for entry in found] != [entry[:2] for entry in due[:3]]:
            raise ModelError(f"{found} were taken; the first paced ones are {due[:3]}")
        return bool(found)

    def _capture(self) -> bool:
        capture = Capture(self.index)
        pending = dict(self._pending)
        place = self._place
        for _ in range(self._random.randint(0, 5)):
            self._maintain()
        try:
            capture.write()
        except OSError:
            capture.finish(is_published=False)
            return False
        is_published = self._random.random() < 0.9
        capture.finish(is_published=is_published)
        if is_published:
            self._saved = capture.reference, pending, place
        return is_published

    def _crash(self) -> bool:
        self.files.lose_power()
        self.files.room = None
        self._taken.clear()
        self._paced_up_to_ms = None
        self._shifts.clear()
        if self._saved is None:
            self.index, self._pending = empty(self.files, self._sizes, _SEGMENT_BYTES), {}
            for names in self._paused:
                self.index.pause(*names)
            return True
        reference, self._pending, self._place = self._saved[0], dict(self._saved[1]), self._saved[2]
        self.index = restore(self.files, reference, self._sizes, _SEGMENT_BYTES)
        for names in self._paused:
            self.index.pause(*names)
        if not all(self._is_same(self._present(entry), entry) for entry in self._pending.values()):
            raise ModelError("messages are in other partitions after the restart")
        return True

    def check_inspection(self) -> None:
        """Compare the counts by due time and the first messages, of all partitions and of one topic. ModelError."""
        if self.index.sweep:
            return  # counts and lists lag behind until orders have been applied
        topic = self._random.choice(_TOPICS)
        for partitions in (self.index.partitions.pending(), self.index.partitions.of_topic(topic)):
            is_all = partitions == self.index.partitions.pending()
            expected = sorted(
                entry for entry in self._pending.values() if is_all or self._names_of[entry.identity][0] == topic
            )
            width_ms, until_ms = self._random.choice((1, 7, 60)), self._random.choice((None, self._now_ms + 40))
            begin, end = FIRST_KEY, END_KEY
            if expected and self._random.random() < 0.5:
                begin, end = (self._random.choice(expected)[:2] for _ in range(2))
            within = [entry for entry in expected if begin <= entry[:2] < end]
            buckets, counted = (Buckets(self._now_ms, width_ms, 6, until_ms) for _ in range(2))
            for entry in within:
                counted.add(entry.due_ms)
            for _ in count_by_due(self.index, partitions, buckets, begin, end):
                continue
            if buckets.counts != counted.counts:
                raise ModelError(f"counts by due time are {buckets.counts} instead of {counted.counts}")
            count = self._random.choice((1, 3, 1_000))
            found: list[Pending] = []
            for _ in find_first(self.index, partitions, count, found, begin, end):
                continue
            del within[count:]
            if not all(map(self._is_same, found, within)) or len(found) != len(within):
                raise ModelError(f"the first {count} messages from {begin} to {end} are {found} instead of {within}")
            self._check_group(topic, begin, end, count)
            next_due_ms: dict[str, int] = {}
            for _ in find_next_due_times(self.index, partitions, next_due_ms):
                continue
            first = {self._names_of[entry.identity][0]: entry.due_ms for entry in reversed(expected)}
            if next_due_ms != first:
                raise ModelError(f"the next due times are {next_due_ms} instead of {first}")
            latest = [due_ms for due_ms in latest_due_times(self.index, partitions) if due_ms is not None]
            if expected and max(latest) < expected[-1].due_ms:
                raise ModelError(f"the latest due time is {max(latest)} instead of {expected[-1].due_ms}")

    def _check_group(self, topic: str, begin: tuple[int, int], end: tuple[int, int], count: int) -> None:
        group = self._random.choice(_GROUPS[1:])
        expected = sorted(
            entry
            for entry in self._pending.values()
            if self._owners[entry.identity][1:] == (topic, group) and begin <= entry[:2] < end
        )
        partitions, found, at = self.index.partitions, list[Pending](), begin
        while True:
            search = OwnedSearch(
                self.index, partitions.of_topic(topic), partitions.of_group(topic, group), count, begin=at, end=end
            )
            for _ in search.steps(self._random.choice((1, 1_000))):
                continue
            found += search.found
            if search.following is None:
                break
            at = search.following
        if not all(map(self._is_same, found, expected)) or len(found) != len(expected):
            raise ModelError(f"the messages of {topic} {group} from {begin} to {end} are {found} instead of {expected}")

    def _check(self) -> None:
        partitions = self.index.partitions
        expected: dict[tuple[str, int, Owner], list[int]] = {}
        for entry in self._pending.values():
            counts = expected.setdefault((*self._names_of[entry.identity], self._owners[entry.identity]), [0, 0])
            counts[0] += 1
            counts[1] += entry.size
        found: dict[tuple[str, int, Owner], list[int]] = {}
        for key, owner, totals in partitions.classes():
            counts = found.setdefault((key.topic, key.level, owner), [0, 0])
            counts[0] += totals.messages
            counts[1] += totals.bytes
        if found != expected or partitions.messages != len(self._pending):
            raise ModelError(f"counts are {found} instead of {expected}")
        for level in _LEVELS:
            of_level = [entry.size for entry in self._pending.values() if self._names_of[entry.identity][1] == level]
            if partitions.of_level(level) != (len(of_level), sum(of_level)):
                raise ModelError(f"level {level} has {partitions.of_level(level)} instead of {of_level}")
        for topic in _TOPICS:
            for group in _GROUPS[1:]:
                sizes = [e.size for e in self._pending.values() if self._owners[e.identity][1:] == (topic, group)]
                if partitions.totals_of_group(topic, group) != (len(sizes), sum(sizes)):
                    raise ModelError(f"group {group} of {topic} has {partitions.totals_of_group(topic, group)}")
                if partitions.has_group(topic, group) != bool(sizes):
                    raise ModelError(f"group {group} of {topic} is known although no message is pending, or unknown")
            of_topic = [e.size for e in self._pending.values() if self._names_of[e.identity][0] == topic]
            if partitions.totals(topic) != (len(of_topic), sum(of_topic)):
                raise ModelError(f"topic {topic} has {partitions.totals(topic)} instead of {of_topic}")
        for account in ("", "ann", "ben"):
            owned = [entry.size for entry in self._pending.values() if self._owners[entry.identity][0] == account]
            if partitions.of_account(account) != (len(owned), sum(owned)):
                raise ModelError(f"account {account} has {partitions.of_account(account)} instead of {owned}")
        segments = sorted(entry.record // _SEGMENT_BYTES for entry in self._pending.values())
        holders = self.index.holders
        middle = segments[len(segments) // 2] if segments else 0
        first = segments[0] * _SEGMENT_BYTES if segments else None
        below = sum(segment < middle for segment in segments)
        # Those of ended messages are counted until orders have been applied.
        if not self.index.sweep and (holders.first(), holders.below(middle * _SEGMENT_BYTES)) != (first, below):
            raise ModelError(f"records are counted in other segments than {segments}")
        earliest = self.index.next_due_ms()
        due = [
            self._time_ms(entry)
            for entry in self._waiting()
            if (self._paced_up_to_ms is None or entry.due_ms > self._paced_up_to_ms) and not self._is_paused(entry)
        ]
        if due and not self.index.sweep and (earliest is None or earliest > min(due)):
            raise ModelError(f"the index wakes up at {earliest}, after {min(due)}")
        if len(self.index.runs) > max(40, 160 // self._sizes.step):
            raise ModelError(f"there are {len(self.index.runs)} runs")
