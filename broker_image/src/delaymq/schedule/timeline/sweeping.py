"""Changes of all messages of a group: valid immediately, and applied to the entries of runs in small steps.

A group may have millions of messages. Its change is therefore an order: entries with the present number of an owner
have ended, or are due at another time and have a new owner. Every access to an entry applies the order, and the sweep
replaces the entries one by one, like changes of single messages, until the order can be forgotten.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from delaymq.schedule.timeline.cursors import Cursor
from delaymq.schedule.timeline.entries import ENTRY_BYTES, NO_RECORD, Pending, unpacked
from delaymq.schedule.timeline.holders import Holders
from delaymq.schedule.timeline.holding import Holding
from delaymq.schedule.timeline.merging import Range
from delaymq.schedule.timeline.partitions import Partitions, Totals
from delaymq.schedule.timeline.runs import Run
from delaymq.schedule.timeline.searching import newest_rows

_SCANNED: Final = 4_096
"""Entries whose owners one step examines: about 0.2 ms."""
_APPLIED: Final = 128
"""Entries that one step replaces: about 1 ms."""
_NUMBERS: Final = ENTRY_BYTES // 4
"""Numbers of 4 bytes in a packed entry; the last one is the owner."""


class Order(NamedTuple):
    """Change of all entries of an owner."""

    topic: str
    owner: int
    """Their new owner."""
    due_ms: int | None
    """Their new due time; None: the messages have ended."""


class SweptIndex(Protocol):
    """The parts of the index to which orders are applied."""

    partitions: Partitions
    holders: Holders
    holding: Holding
    runs: list[Run]

    @property
    def taken_messages(self) -> Sequence[Pending]: ...
    @property
    def held_messages(self) -> Sequence[Pending]: ...
    def open_cursors(self, partition: int) -> list[Cursor]: ...
    def is_replaced(self, entry: Pending) -> bool: ...
    def replace_in_run(self, entry: Pending, state: Pending | None) -> None: ...
    def replace_in_memory(self, entry: Pending, state: Pending | None) -> None: ...
    def hold_moved(self, entry: Pending) -> None: ...
    def freeze_if_full(self) -> None: ...


class Sweep:
    """Orders that have not been applied to all entries yet."""

    def __init__(self, timeline: SweptIndex) -> None:
        self._timeline = timeline
        self._orders: dict[int, Order] = {}
        """By former owner."""
        self._topic: str | None = None
        """Topic that is being swept."""
        self._swept: dict[int, Order] = {}
        """Orders at the beginning of the sweep of the topic."""
        self._left: list[tuple[Cursor, int]] = []
        """Cursors that the sweep has not completed, and the next entries."""

    def __bool__(self) -> bool:
        return bool(self._orders)

    def change(self, topic: str, group: str, due_ms: int | None) -> tuple[Totals, list[int]]:
        """End all messages of a group or, with `due_ms`, let them be due then. OSError, TimelineDamagedError.

        Returns what was pending, and the identities of messages that were taken, for which no attempt is to be made.
        """
        timeline, partitions = self._timeline, self._timeline.partitions
        totals = partitions.totals_of_group(topic, group)
        replaced = partitions.replace_owners(topic, group, is_ended=due_ms is None)
        orders = {owner: Order(topic, new, due_ms) for owner, new in replaced.items()}
        for owner, order in self._orders.items():
            if order.due_ms is not None and order.owner in orders:
                self._orders[owner] = orders[order.owner]  # an earlier order, which has not been applied to all entries
        if timeline.runs:
            self._orders |= orders
        taken = [entry for entry in timeline.taken_messages if entry.owner in orders]
        for entry in [*taken, *(each for each in timeline.held_messages if each.owner in orders)]:
            timeline.replace_in_memory(entry, self._new_state(entry, orders[entry.owner]))
        timeline.freeze_if_full()
        return totals, [entry.identity for entry in taken]

    def _new_state(self, entry: Pending, order: Order) -> Pending | None:
        if order.due_ms is None:
            return None
        return self._timeline.holding.at_home(entry)._replace(due_ms=order.due_ms, owner=order.owner)

    def applied(self, entry: Pending) -> Pending | None:
        """Return the present state of an entry in a run; None if its message has ended."""
        order = self._orders.get(entry.owner)
        return entry if order is None else self._new_state(entry, order)

    def apply(self, entry: Pending) -> Pending | None:
        """Replace an entry in a run if an order applies to it; return its state."""
        state = self.applied(entry)
        if state is not entry:
            self._timeline.replace_in_run(entry, state)
        return state

    def apply_to_taken(self, entries: list[Pending], now_ms: int) -> list[Pending]:
        """Return the states of entries that are being taken from runs, without those that are not due any more."""
        found = []
        for entry in entries:
            state = self.applied(entry)
            if state is None:
                self._timeline.holders.count(entry.record, -1)
            elif state.due_ms > now_ms:
                self._timeline.hold_moved(state)
            else:
                found.append(state)
        return found

    # Sweep.

    def restart(self) -> None:
        """Sweep the topic again from the beginning, because its cursors have changed."""
        self._topic = None

    def step(self) -> bool:
        """Apply orders to some entries; return whether there are more. OSError, TimelineDamagedError."""
        if not self._orders:
            return False
        if self._topic is None or any(cursor.is_closed for cursor, _ in self._left):
            self._begin()
        if self._left:
            self._advance()
        else:
            self._end()
        return True

    def _begin(self) -> None:
        timeline, topic = self._timeline, next(iter(self._orders.values())).topic
        self._topic = topic
        self._swept = {owner: order for owner, order in self._orders.items() if order.topic == topic}
        self._left = [
            (cursor, cursor.head)
            for partition in timeline.partitions.of_topic(topic)
            if not timeline.partitions.key(partition).level
            for cursor in timeline.open_cursors(partition)
        ]

    def _end(self) -> None:
        """Forget the orders that this pass has applied completely."""
        self._orders = {owner: order for owner, order in self._orders.items() if owner not in self._swept}
        self._topic = None

    def _advance(self) -> None:
        cursor, at = self._left[-1]
        first = max(at, cursor.head)
        count = min(_SCANNED, cursor.end - first)
        if count <= 0:
            self._left.pop()
            return
        data = cursor.run.read(first, count)
        owners = owners_of(data)
        wanted: list[Pending] = []
        following = first + count
        if not self._orders.keys().isdisjoint(owners):
            for index, owner in enumerate(owners):
                if owner in self._orders:
                    if len(wanted) >= _APPLIED:
                        following = first + index
                        break
                    (row,) = unpacked(data[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES])
                    if row[2] != NO_RECORD:
                        wanted.append(Pending(*row, cursor.partition))
        self._left[-1] = cursor, following
        if wanted:
            self._apply(cursor, wanted)

    def _apply(self, cursor: Cursor, entries: list[Pending]) -> None:
        """Replace the entries of a run, without those that newer runs have replaced."""
        newer = [
            Range(each.run, each.head, each.end)
            for each in self._timeline.open_cursors(cursor.partition)
            if each.run.age > cursor.run.age
        ]
        replaced = {row[:2] for row in newest_rows(newer, [entry[:2] for entry in entries]) if row is not None}
        for entry in entries:
            if entry[:2] not in replaced and not self._timeline.is_replaced(entry):
                self.apply(entry)
        self._timeline.freeze_if_full()

    # State.

    def state(self) -> list[list[object]]:
        """Return the orders as JSON-compatible data."""
        return [[owner, *order] for owner, order in self._orders.items()]

    def restore(self, state: object) -> None:
        """Restore the orders. ValueError, TypeError if they are invalid."""
        if not isinstance(state, list):
            raise ValueError("the orders are a list")
        for former, topic, owner, due_ms in state:
            self._orders[int(former)] = Order(str(topic), int(owner), None if due_ms is None else int(due_ms))


def owners_of(data: bytes) -> array[int]:
    """Return the owners of packed entries."""
    owners = array("I", data)[_NUMBERS - 1 :: _NUMBERS]
    if sys.byteorder == "little":
        owners.byteswap()
    return owners
