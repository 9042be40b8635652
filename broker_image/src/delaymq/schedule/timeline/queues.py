"""Order in which due messages are taken: a queue for each topic, in turn, without the paused ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from delaymq.schedule.timeline.cursors import NO_TIMES, Cursor, EndedKey, EntryQueue, Times
from delaymq.schedule.timeline.entries import Pending
from delaymq.schedule.timeline.partitions import Partitions
from delaymq.schedule.timeline.rates import Rate, Smoothing
from delaymq.schedule.timeline.wakeups import Wakeups

_SHARE: Final = 8
"""Entries of a topic that are taken before those of the next one, unless few are wanted."""
_LATEST_MS: Final = 1 << 62
_Names: TypeAlias = tuple[str, str]
"""A paused topic, and a group of it; an empty name stands for the topic."""


class Shift(NamedTuple):
    """Messages of a topic that are taken later than they are due."""

    after_ms: int
    """Messages due after this time are shifted."""
    up_to_ms: int
    """Messages due after this time are not."""
    by_ms: int
    """Time in ms by which each of them is taken later than it is due."""


class Queues:
    """Queues of due messages by topic, and one of overdue messages that are paced.

    A paused topic, or a paused group of one, has a parked queue, from which nothing is taken.
    """

    def __init__(self, partitions: Partitions) -> None:
        self.partitions = partitions
        self.paced = EntryQueue()
        self.paced_up_to_ms: int | None = None
        """Messages due at or before this time are paced."""
        self._paused: set[_Names] = set()
        self.unlimited_up_to_ms = 0
        """The rates of topics do not apply to messages due at or before this time, because they are not delivered."""
        self._rates: dict[str, Rate] = {}
        """Limits by topic."""
        self._spreads: dict[str, Rate] = {}
        """By topic: limits that apply until its present backlog has been taken, except to held messages of groups."""
        self._unlimited: dict[str, Times] = {}
        """By topic: due times of messages to which its rates do not apply, except held messages of groups."""
        self._shifts: dict[str, Shift] = {}
        """By topic; held messages of groups are not shifted."""
        self._queues: dict[str, dict[str | None, EntryQueue]] = {}
        """By topic, and by the group whose held messages they contain; its name is empty for all other messages, and
        None for those that are shifted."""
        self._of_partition: dict[int, EntryQueue] = {}
        """The same by partition, as far as they are known."""
        self._wakeups = Wakeups()
        self._ready_dues = Wakeups()
        self._ready: deque[EntryQueue] = deque()
        self._overdue = EntryQueue()
        """The queue that `has_due` found last: most calls look at no other one."""

    def of(self, partition: int) -> EntryQueue:
        """Return the queue of a partition, which is created if it does not exist."""
        queue = self._of_partition.get(partition)
        if queue is None:
            topic, group, _ = self.partitions.key(partition)
            queue = self._of_partition[partition] = self._of_names(topic, group)
        return queue

    def _of_names(self, topic: str, group: str | None) -> EntryQueue:
        of_topic = self._queues.setdefault(topic, {})
        queue = of_topic.get(group)
        if queue is None:
            queue = of_topic[group] = EntryQueue()
            queue.is_parked = self.is_paused(topic, group or "")
            self._limit(queue, topic, group)
        return queue

    def parts(self, partition: int) -> list[tuple[EntryQueue, int]]:
        """Return the queues of the entries of a partition, by due time, each with the latest due time in ms.

        A queue that occurs twice contains the entries of both parts.
        """
        queue = self.of(partition)
        found: list[tuple[EntryQueue, int]] = []
        if self.paced_up_to_ms is not None and _can_be_paced(queue):
            found.append((self.paced, self.paced_up_to_ms))
        if self._shifts:
            topic, group, _ = self.partitions.key(partition)
            shift = None if group else self._shifts.get(topic)
            if shift is not None:
                found += [(queue, shift.after_ms), (self._of_names(topic, None), shift.up_to_ms)]
        found.append((queue, _LATEST_MS))
        return found

    def of_topic(self, topic: str) -> list[EntryQueue]:
        """Return the queues of a topic."""
        return list(self._queues.get(topic, {}).values())

    def __iter__(self) -> Iterator[EntryQueue]:
        yield from (queue for of_topic in self._queues.values() for queue in of_topic.values())
        yield self.paced

    def hold(self, entry: Pending) -> None:
        """Add an entry that is in memory."""
        queue = self._of_entry(entry)
        if queue.add(entry):
            self.wait(queue, entry.due_ms + queue.shift_ms)

    def _of_entry(self, entry: Pending) -> EntryQueue:
        if self.paced_up_to_ms is None and not self._shifts:
            return self.of(entry.partition)
        return next(queue for queue, up_to_ms in self.parts(entry.partition) if entry.due_ms <= up_to_ms)

    def open(self, cursor: Cursor) -> list[Cursor]:
        """Add a cursor; return what was split off it, because its entries belong to several queues."""
        found = []
        for queue, up_to_ms in self.parts(cursor.partition):
            part = cursor if up_to_ms == _LATEST_MS else cursor.split(up_to_ms)
            if part is not None and part.left:
                self.open_in(queue, part)
                if part is not cursor:
                    found.append(part)
        return found

    def open_in(self, queue: EntryQueue, cursor: Cursor) -> None:
        """Add a cursor with entries to a queue."""
        key = cursor.run.key_at(cursor.head)
        queue.open(cursor, key)
        self.wait(queue, key[0] + queue.shift_ms)

    def wait(self, queue: EntryQueue, time_ms: int) -> None:
        """Let a queue wait for this time, unless it waits for an earlier one."""
        if not queue.is_parked and queue is not self.paced:
            (self._ready_dues if queue.is_ready else self._wakeups).add(queue, time_ms)

    def is_paced(self, entry: Pending) -> bool:
        """Whether an entry is paced."""
        up_to_ms = self.paced_up_to_ms
        return up_to_ms is not None and entry.due_ms <= up_to_ms and _can_be_paced(self.of(entry.partition))

    def forget_fresh(self, partitions: Iterable[int]) -> None:
        """Remove the entries in memory of these partitions, and the paced ones: a run now contains them."""
        for queue in {id(queue): queue for partition in partitions for queue, _ in self.parts(partition)}.values():
            queue.forget_fresh()
        self.paced.forget_fresh()

    def drop_empty(self) -> None:
        """Remove queues without entries."""
        for topic, of_topic in list(self._queues.items()):
            kept = {
                group: queue
                for group, queue in of_topic.items()
                if queue.is_ready or queue in self._wakeups or queue.next_due_ms() is not None
            }
            if kept:
                self._queues[topic] = kept
            else:
                del self._queues[topic]
        self._of_partition.clear()

    # Taking.

    def next_due_ms(self) -> int | None:
        """Return the earliest time at which `take` may return an entry; None without entries."""
        times = self._ready_dues.first_ms(), self._wakeups.first_ms()
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def earliest_due_ms(self) -> int | None:
        """Return the earliest due time of all entries, whenever they may be taken. Those that have ended may count."""
        return min((due_ms for queue in self if (due_ms := queue.next_due_ms()) is not None), default=None)

    def has_due(self, up_to_ms: int) -> bool:
        """Whether a queue has an entry due at or before this time, even if nothing may be taken from it now.

        Paced entries count, and those that have ended may count.
        """
        for queue in chain((self._overdue,), self):
            due_ms = queue.next_due_ms()
            if due_ms is not None and due_ms <= up_to_ms:
                self._overdue = queue
                return True
        return False

    def take(
        self,
        now_ms: int,
        count: int,
        memory: dict[int, Pending],
        ended: set[EndedKey],
        taken: list[Pending],
    ) -> None:
        """Move at most `count` entries that may be taken at `now_ms` to `taken`, from each topic in turn.

        OSError, TimelineDamagedError.

        The other arguments are those of `EntryQueue.take`.
        """
        for queue in self._wakeups.pop_due(now_ms):
            queue.is_ready = True
            self._ready.append(queue)
            if (first_ms := queue.next_ms()) is not None:
                self._ready_dues.add(queue, first_ms)
        ready = self._ready
        while ready and len(taken) < count:
            share = max((count - len(taken)) // len(ready), min(count // 8, _SHARE), 1)
            for _ in range(min(len(ready), count - len(taken))):
                queue = ready[0]
                wanted = min(share, count - len(taken))
                if queue.rates:
                    next_ms = self._take_limited(queue, now_ms, wanted, memory, ended, taken)
                else:
                    queue.take(now_ms, wanted, memory, ended, taken)
                    next_ms = queue.next_ms()
                ready.rotate(-1)
                if next_ms is not None and next_ms <= now_ms:
                    self._ready_dues.replace(queue, next_ms)
                    continue
                ready.pop()
                self._ready_dues.remove(queue)
                queue.is_ready = False
                if next_ms is not None:
                    self.wait(queue, next_ms)

    def _take_limited(
        self,
        queue: EntryQueue,
        now_ms: int,
        count: int,
        memory: dict[int, Pending],
        ended: set[EndedKey],
        taken: list[Pending],
    ) -> int | None:
        """Take from a queue with limited rates; return when it may be taken from again. OSError, damage."""
        due_ms = queue.next_due_ms()
        unlimited_ms = None if due_ms is None else self._unlimited_up_to(queue, due_ms)
        if unlimited_ms is not None:
            queue.take(min(now_ms, unlimited_ms), count, memory, ended, taken)
            return queue.next_ms()
        for rate in queue.rates:
            if rate.must_count(now_ms):
                rate.spread(self._due_at(rate, now_ms, memory), now_ms)
        before, allowed = len(taken), min(rate.allowance(now_ms) for rate in queue.rates)
        if allowed > 0:
            queue.take(now_ms, min(count, allowed), memory, ended, taken)
            for rate in queue.rates:
                rate.take(len(taken) - before)
        due_ms, next_ms = queue.next_due_ms(), queue.next_ms()
        self._end_bursts(queue, now_ms)
        if due_ms is None or next_ms is None or next_ms > now_ms or self._unlimited_up_to(queue, due_ms) is not None:
            return next_ms
        return max((rate.next_ms(now_ms) for rate in queue.rates), default=next_ms)

    def _unlimited_up_to(self, queue: EntryQueue, due_ms: int) -> int | None:
        """Return the time up to which no rates apply to the entries of a queue, of which this is the first one."""
        if due_ms <= self.unlimited_up_to_ms:
            return self.unlimited_up_to_ms
        after_ms, up_to_ms = queue.unlimited
        return up_to_ms if after_ms < due_ms <= up_to_ms else None

    def _limited_by(self, rate: Rate) -> list[EntryQueue]:
        """Return the queues to which a rate applies, without the paused ones."""
        queues = self._queues[rate.topic]
        limited = queues.values() if rate.until_ms is None else [queues[""]]
        return [queue for queue in limited if not queue.is_parked]

    def _due_at(self, rate: Rate, now_ms: int, memory: dict[int, Pending]) -> int:
        return sum(queue.count_due(now_ms, memory) for queue in self._limited_by(rate))

    def _end_bursts(self, queue: EntryQueue, now_ms: int) -> None:
        """Note which limits of a queue have nothing to limit any more."""
        for rate in queue.rates:
            times = (each.next_ms() for each in self._limited_by(rate))
            if all(next_ms is None or next_ms > now_ms for next_ms in times):
                rate.end_burst()
                if rate.until_ms is not None:
                    self.end_spread(rate.topic)
            elif rate.until_ms is not None and now_ms >= rate.until_ms:
                self.end_spread(rate.topic)

    # Rates.

    def set_rate(self, topic: str, smoothing: Smoothing | None) -> None:
        """Limit the rate at which messages of a topic are taken; None removes the limit."""
        if smoothing is None:
            self._rates.pop(topic, None)
        elif (known := self._rates.get(topic)) is None or known.smoothing != smoothing:
            self._rates[topic] = Rate(topic, smoothing)
        self._limit_again(topic)

    def spread(self, topic: str, until_ms: int) -> None:
        """Let the messages of a topic that are due now or until then be taken evenly until then."""
        self._spreads[topic] = Rate(topic, Smoothing(), until_ms)
        self._limit_again(topic)

    def end_spread(self, topic: str) -> None:
        """End the result of `spread`."""
        if self._spreads.pop(topic, None) is not None:
            self._limit_again(topic)

    def is_spread(self, topic: str) -> bool:
        """Whether the messages of a topic are still taken as `spread` requested."""
        return topic in self._spreads

    def set_unlimited(self, topic: str, times: Times | None) -> None:
        """Apply no rates to messages of a topic that are due in this time, because they are not delivered."""
        if times is None:
            self._unlimited.pop(topic, None)
        else:
            self._unlimited[topic] = times
        self._limit_again(topic)

    def shift(self, topic: str, shift: Shift | None) -> list[EntryQueue]:
        """Shift messages of a topic, or end that; return the queues whose entries are to be held and opened again."""
        if shift is None:
            self._shifts.pop(topic, None)
        else:
            self._shifts[topic] = shift
            self._of_names(topic, None).shift_ms = shift.by_ms
        return self.of_topic(topic)

    def is_shifted(self, topic: str) -> bool:
        """Whether shifted messages of a topic have not been taken."""
        queue = self._queues.get(topic, {}).get(None) if topic in self._shifts else None
        return queue is not None and queue.next_due_ms() is not None

    def next_due_of(self, topic: str) -> int | None:
        """Return the earliest due time of a topic, without held messages of groups; None if there are none."""
        queue = self._queues.get(topic, {}).get("")
        return None if queue is None else queue.next_due_ms()

    def _limit(self, queue: EntryQueue, topic: str, group: str | None) -> None:
        found = self._rates.get(topic), self._spreads.get(topic) if group == "" else None
        queue.rates = tuple(rate for rate in found if rate is not None)
        queue.unlimited = self._unlimited.get(topic, NO_TIMES) if group == "" else NO_TIMES
        shift = self._shifts.get(topic) if group is None else None
        queue.shift_ms = 0 if shift is None else shift.by_ms

    def _limit_again(self, topic: str) -> None:
        for group, queue in self._queues.get(topic, {}).items():
            self._limit(queue, topic, group)
            if not queue.is_ready and (next_ms := queue.next_ms()) is not None:
                self.wait(queue, next_ms)  # it may wait for its former rate

    def give_back_to_rate(self, entry: Pending) -> None:
        """Let another message of a topic be taken instead of one that was held."""
        queue = self._of_entry(entry)
        if queue.rates and self._unlimited_up_to(queue, entry.due_ms) is None:
            for rate in queue.rates:
                rate.take(-1)
            if (next_ms := queue.next_ms()) is not None:
                self.wait(queue, next_ms)

    # Pauses.

    def is_paused(self, topic: str, group: str) -> bool:
        """Whether a topic is paused, or a group of it."""
        return (topic, "") in self._paused or (group != "" and (topic, group) in self._paused)

    def is_paused_group(self, topic: str, group: str) -> bool:
        """Whether a group itself is paused."""
        return (topic, group) in self._paused

    @property
    def has_pauses(self) -> bool:
        """Whether anything is paused."""
        return bool(self._paused)

    def pause(self, topic: str, group: str) -> None:
        """Take nothing from the queue of a topic, or of the held messages of a group, until `resume`."""
        self._paused.add((topic, group))
        self._park_or_not(topic)

    def resume(self, topic: str, group: str) -> None:
        """End a pause."""
        self._paused.discard((topic, group))
        self._park_or_not(topic)

    def _park_or_not(self, topic: str) -> None:
        for group, queue in self._queues.get(topic, {}).items():
            if queue.is_parked == (is_parked := self.is_paused(topic, group or "")):
                continue
            queue.is_parked = is_parked
            if is_parked:
                self._wakeups.remove(queue)
                self._ready_dues.remove(queue)
                if queue.is_ready:
                    queue.is_ready = False
                    self._ready.remove(queue)
            elif (next_ms := queue.next_ms()) is not None:
                self.wait(queue, next_ms)


def _can_be_paced(queue: EntryQueue) -> bool:
    """Whether overdue entries of a queue are paced with those of other topics, without exceeding its rate."""
    return not queue.is_parked and all(rate.smoothing.per_second is None for rate in queue.rates)
