"""Order in which due messages are taken: a queue for each topic, in turn, without the paused ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from delaymq.schedule.timeline.cursors import Cursor, EndedKey, EntryQueue
from delaymq.schedule.timeline.entries import Pending
from delaymq.schedule.timeline.partitions import Partitions
from delaymq.schedule.timeline.rates import Rate, Smoothing
from delaymq.schedule.timeline.wakeups import Wakeups

_SHARE: Final = 8
"""Entries of a topic that are taken before those of the next one, unless few are wanted."""
_Names: TypeAlias = tuple[str, str]
"""Topic of a queue, and the group whose held messages it contains; empty for all others."""


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
        self._rates: dict[str, Rate] = {}
        """Limits by topic."""
        self._queues: dict[_Names, EntryQueue] = {}
        self._of_partition: dict[int, EntryQueue] = {}
        """The same by partition, as far as they are known."""
        self._wakeups = Wakeups()
        self._ready_dues = Wakeups()
        self._ready: deque[EntryQueue] = deque()

    def of(self, partition: int) -> EntryQueue:
        """Return the queue of a partition, which is created if it does not exist."""
        queue = self._of_partition.get(partition)
        if queue is None:
            topic, group, _ = self.partitions.key(partition)
            queue = self._queues.get((topic, group))
            if queue is None:
                queue = self._queues[topic, group] = EntryQueue()
                queue.is_parked = self.is_paused(topic, group)
                queue.rate = self._rates.get(topic)
            self._of_partition[partition] = queue
        return queue

    def __iter__(self) -> Iterator[EntryQueue]:
        return iter((*self._queues.values(), self.paced))

    def hold(self, entry: Pending) -> None:
        """Add an entry that is in memory."""
        queue = self.of(entry.partition)
        if self.paced_up_to_ms is not None and self.is_paced(entry.due_ms) and not queue.is_parked:
            self.paced.add(entry)
        elif queue.add(entry):
            self.wait(queue, entry.due_ms)

    def open(self, cursor: Cursor) -> Cursor | None:
        """Add a cursor; return the part of it that was split off because it is paced."""
        part, queue = None, self.of(cursor.partition)
        if self.paced_up_to_ms is not None and not queue.is_parked:
            part = cursor.split(self.paced_up_to_ms)
            if part is not None:
                self.paced.open(part, part.run.key_at(part.head))
        if cursor.left:
            key = cursor.run.key_at(cursor.head)
            queue.open(cursor, key)
            self.wait(queue, key[0])
        return part

    def wait(self, queue: EntryQueue, due_ms: int) -> None:
        """Let a queue wait for an entry that is due then, unless it waits for an earlier one."""
        if not queue.is_parked and queue is not self.paced:
            (self._ready_dues if queue.is_ready else self._wakeups).add(queue, due_ms)

    def is_paced(self, due_ms: int) -> bool:
        """Whether a message due then is paced."""
        return self.paced_up_to_ms is not None and due_ms <= self.paced_up_to_ms

    def forget_fresh(self, partitions: Iterable[int]) -> None:
        """Remove the entries in memory of these partitions, and the paced ones: a run now contains them."""
        for queue in {id(queue): queue for partition in partitions if (queue := self.of(partition))}.values():
            queue.forget_fresh()
        self.paced.forget_fresh()

    def drop_empty(self) -> None:
        """Remove queues without entries."""
        self._queues = {
            names: queue
            for names, queue in self._queues.items()
            if queue.is_ready or queue in self._wakeups or queue.next_due_ms() is not None
        }
        self._of_partition.clear()

    def empty(self, memory: dict[int, Pending], *, only_paced: bool) -> tuple[list[Cursor], list[Pending]]:
        """Remove and return the cursors, and the entries in memory, of the paced queue or of all others."""
        cursors: list[Cursor] = []
        entries: list[Pending] = []
        for queue in [self.paced] if only_paced else list(self._queues.values()):
            of_queue = queue.empty(memory)
            cursors += of_queue[0]
            entries += of_queue[1]
        return cursors, entries

    # Taking.

    def next_due_ms(self) -> int | None:
        """Return the earliest due time at which `take` may return an entry; None without entries."""
        dues = self._ready_dues.first_ms(), self._wakeups.first_ms()
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    def take(
        self,
        now_ms: int,
        count: int,
        memory: dict[int, Pending],
        ended: set[EndedKey],
        taken: list[Pending],
    ) -> None:
        """Move at most `count` entries due at `now_ms` to `taken`, from each topic in turn. OSError, damage.

        The other arguments are those of `EntryQueue.take`.
        """
        for queue in self._wakeups.pop_due(now_ms):
            queue.is_ready = True
            self._ready.append(queue)
            if (first_ms := queue.next_due_ms()) is not None:
                self._ready_dues.add(queue, first_ms)
        ready = self._ready
        while ready and len(taken) < count:
            share = max((count - len(taken)) // len(ready), min(count // 8, _SHARE), 1)
            for _ in range(min(len(ready), count - len(taken))):
                queue = ready[0]
                if queue.rate is None:
                    queue.take(now_ms, min(share, count - len(taken)), memory, ended, taken)
                    due_ms = queue.next_due_ms()
                else:
                    due_ms = _take_at_rate(
                        queue, queue.rate, now_ms, min(share, count - len(taken)), memory, ended, taken
                    )
                ready.rotate(-1)
                if due_ms is not None and due_ms <= now_ms:
                    self._ready_dues.replace(queue, due_ms)
                    continue
                ready.pop()
                self._ready_dues.remove(queue)
                queue.is_ready = False
                if due_ms is not None:
                    self.wait(queue, due_ms)

    def set_rate(self, topic: str, smoothing: Smoothing | None) -> None:
        """Limit the rate at which messages of a topic are taken; None removes the limit."""
        if smoothing is None:
            self._rates.pop(topic, None)
        elif (known := self._rates.get(topic)) is None or known.smoothing != smoothing:
            self._rates[topic] = Rate(smoothing)
        for (of_topic, _), queue in self._queues.items():
            if of_topic == topic:
                queue.rate = self._rates.get(topic)
                if not queue.is_ready and (due_ms := queue.next_due_ms()) is not None:
                    self.wait(queue, due_ms)  # it may wait for its former rate

    def give_back_to_rate(self, partition: int) -> None:
        """Let another message of a topic be taken instead of one that was held."""
        queue = self.of(partition)
        if queue.rate is not None:
            queue.rate.take(-1)
            if (due_ms := queue.next_due_ms()) is not None:
                self.wait(queue, due_ms)

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
        for (of_topic, group), queue in self._queues.items():
            if of_topic != topic or queue.is_parked == (is_parked := self.is_paused(topic, group)):
                continue
            queue.is_parked = is_parked
            if is_parked:
                self._wakeups.remove(queue)
                self._ready_dues.remove(queue)
                if queue.is_ready:
                    queue.is_ready = False
                    self._ready.remove(queue)
            elif (due_ms := queue.next_due_ms()) is not None:
                self.wait(queue, due_ms)


def _take_at_rate(
    queue: EntryQueue,
    rate: Rate,
    now_ms: int,
    count: int,
    memory: dict[int, Pending],
    ended: set[EndedKey],
    taken: list[Pending],
) -> int | None:
    """Take from a queue with a limited rate; return the time at which it may be taken from again. OSError, damage."""
    if rate.must_count(now_ms):
        rate.spread(queue.count_due(now_ms, memory), now_ms)
    allowed = min(count, rate.allowance(now_ms))
    if allowed > 0:
        before = len(taken)
        queue.take(now_ms, allowed, memory, ended, taken)
        rate.take(len(taken) - before)
    due_ms = queue.next_due_ms()
    if due_ms is None or due_ms > now_ms:
        rate.end_burst()
        return due_ms
    return max(due_ms, rate.next_ms(now_ms))
