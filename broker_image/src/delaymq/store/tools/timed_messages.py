"""States of timed messages, derived from the records of the log in their order.

The newest statement about a message decides, and an end is final (docs/formats/store.md, "Form 2 of due times and
marks"). Memory: about 40 bytes for each message whose record is in the log, and the names of groups.

A change of a group applies to all its messages of which a record is before it. Each message has the number of such
changes that have been applied to it; the others are applied when another statement about it, or its state, is read.

Timers that RocketMQ 5 stored have no statement. They are counted, but their states are not evaluated.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from delaymq.message.flags import TRANSACTION_COMMIT, transaction_type
from delaymq.message.group_marks import PAUSES, GroupMark, is_group_mark, parse_own_group_mark
from delaymq.message.names import (
    DELAY_GROUP,
    DUE,
    MARK,
    MARKS_TOPIC,
    OWN_PREFIX,
    REAL_TOPIC,
    REPEATING,
    TIMER_DELETE_UNIQUE_KEY,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
)
from delaymq.message.record import Record
from delaymq.message.timed_marks import (
    TimedDue,
    TimedMark,
    TimedMarkKind,
    corrected,
    parse_own_due,
    parse_own_mark,
    place_of,
    sound_statement,
)
from delaymq.store.dispatch import recorded_due_ms

_PENDING: Final = 0
_ENDS: Final = (None, *TimedMarkKind)
"""State of a message by the number that stands for it."""
_CANCELLED: Final = _ENDS.index(TimedMarkKind.CANCELLED)
_OWN_PREFIX: Final = OWN_PREFIX.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedMessage:
    """A timed message whose record is in the log."""

    identity: int
    """Physical offset of its first record."""
    physical_offset: int
    """Physical offset of the record that holds it."""
    queue_offset: int
    """Queue offset of that record."""
    due_ms: int
    ended: str | None
    """Kind of the mark that ended it; None: pending."""


class TimedMessages:
    """Collector of the states; pass all records to `take`, in the order of the log."""

    def __init__(self) -> None:
        # One item for each first record, in the order of the log and thus of identities:
        self._identities = array("q")
        self._due_ms = array("q")
        self._queue_offsets = array("q")
        self._ends = bytearray()
        self._groups = array("I")
        """Number of the group; 0 without one."""
        self._applied = array("I")
        """Number of changes of the group that have been applied."""
        self._carried: dict[int, _Carried] = {}
        """Messages whose record was stored again, by identity."""
        self._foreign: set[int] = set()
        self._group_numbers: dict[tuple[str, str], int] = {}
        """By topic and group."""
        self._changes: list[list[int | None]] = [[]]
        """Changes by number of the group: new due times; None: the messages were cancelled."""

    def take(self, record: Record) -> None:
        """Apply a record. NewerFormError: it states a form that only a newer program knows."""
        if record.topic == TIMER_TOPIC:
            self._take_holder(record)
        elif _OWN_PREFIX in record.raw_properties:
            mark = own_mark(record)
            if record.topic == MARKS_TOPIC and (of_group := own_group_mark(record)) is not None:
                self._change_group(of_group)
            elif mark is not None and mark.queue is None:
                self._change(mark.identity, mark.next_due_ms, mark.kind)
            elif (identity := delivered_by_rocketmq(record)) is not None and REPEATING.isdisjoint(record.properties):
                self._change(identity, None, TimedMarkKind.DELIVERED)

    def counts(self) -> dict[str, int]:
        """Return the number of messages by state: `pending`, or the kind of the mark that ended them.

        `foreign` is the number of RocketMQ 5's timers that no record of DelayMQ carries forward.
        """
        found = Counter(message.ended or "pending" for message in self)
        foreign = {"foreign": len(self._foreign)} if self._foreign else {}
        return {"pending": found.pop("pending", 0), **dict(sorted(found.items())), **foreign}

    def __iter__(self) -> Iterator[TimedMessage]:
        for number, identity in enumerate(self._identities):
            if identity not in self._carried:
                self._apply_changes(number)
                yield TimedMessage(
                    identity=identity,
                    physical_offset=identity,
                    queue_offset=self._queue_offsets[number],
                    due_ms=self._due_ms[number],
                    ended=_ENDS[self._ends[number]],
                )
        for identity, held in self._carried.items():
            self._apply_to_carried(held)
            yield TimedMessage(
                identity=identity,
                physical_offset=held.physical_offset,
                queue_offset=held.queue_offset,
                due_ms=held.due_ms,
                ended=_ENDS[held.end],
            )

    def _take_holder(self, record: Record) -> None:
        if transaction_type(record.sys_flag) not in (0, TRANSACTION_COMMIT):
            return
        properties, place = record.properties, record.physical_offset
        text = properties.get(DUE)
        if text is None:
            if TIMER_ROLL_TIMES not in properties and TIMER_DELETE_UNIQUE_KEY not in properties:
                self._foreign.add(place)
            return
        due = own_due(record)
        if due is None and place_of(text) is not None:
            return  # RocketMQ 5 stored the record again, which is neither a new message nor a delivery
        due_ms = recorded_due_ms(properties, place) if due is None else due.due_ms
        if due_ms is None:
            return
        if due is not None and (replaced := due.replaced) is not None:
            self._change(replaced, None, TimedMarkKind.CANCELLED)
        group = self._group_number(properties.get(REAL_TOPIC, ""), properties.get(DELAY_GROUP, ""))
        if due is None or due.identity == place:
            self._identities.append(place)
            self._due_ms.append(due_ms)
            self._queue_offsets.append(record.queue_offset)
            self._ends.append(_PENDING)
            self._groups.append(group)
            self._applied.append(len(self._changes[group]))
            return
        self._foreign.discard(due.identity)
        number = self._number_of(due.identity)
        known = self._carried.get(due.identity)
        if number is not None:
            self._apply_changes(number)
        if known is not None:
            self._apply_to_carried(known)
        end = known.end if known is not None else _PENDING if number is None else self._ends[number]
        self._carried[due.identity] = _Carried(
            place, record.queue_offset, due_ms, end, group, len(self._changes[group])
        )

    def _change(self, identity: int, next_due_ms: int | None, kind: TimedMarkKind) -> None:
        end = _ENDS.index(kind) if next_due_ms is None else _PENDING
        held = self._carried.get(identity)
        if held is not None:
            self._apply_to_carried(held)
            if held.end == _PENDING:
                held.end, held.due_ms = end, held.due_ms if next_due_ms is None else next_due_ms
            return
        number = self._number_of(identity)
        if number is not None:
            self._apply_changes(number)
        if number is not None and self._ends[number] == _PENDING:
            self._ends[number] = end
            if next_due_ms is not None:
                self._due_ms[number] = next_due_ms

    def _group_number(self, topic: str, group: str) -> int:
        if not group:
            return 0
        number = self._group_numbers.setdefault((topic, group), len(self._changes))
        if number == len(self._changes):
            self._changes.append([])
        return number

    def _change_group(self, mark: GroupMark) -> None:
        number = self._group_numbers.get((mark.topic, mark.group))
        if number is not None and mark.kind not in PAUSES:
            self._changes[number].append(mark.next_due_ms)

    def _apply_changes(self, number: int) -> None:
        """Apply the changes of its group to a message that has only a first record."""
        changes = self._changes[self._groups[number]]
        for next_due_ms in changes[self._applied[number] :]:
            if self._ends[number] == _PENDING:
                if next_due_ms is None:
                    self._ends[number] = _CANCELLED
                else:
                    self._due_ms[number] = next_due_ms
        self._applied[number] = len(changes)

    def _apply_to_carried(self, held: _Carried) -> None:
        changes = self._changes[held.group]
        for next_due_ms in changes[held.applied :]:
            if held.end == _PENDING:
                held.end = _CANCELLED if next_due_ms is None else _PENDING
                held.due_ms = held.due_ms if next_due_ms is None else next_due_ms
        held.applied = len(changes)

    def _number_of(self, identity: int) -> int | None:
        number = bisect_left(self._identities, identity)
        return number if number < len(self._identities) and self._identities[number] == identity else None


@dataclass(slots=True)
class _Carried:
    physical_offset: int
    queue_offset: int
    due_ms: int
    end: int
    group: int
    """Number of its group."""
    applied: int
    """Number of changes of the group that have been applied."""


def own_due(record: Record) -> TimedDue | None:
    """Return the due time of form 2 that a record states, with one flipped bit corrected; None without one.

    NewerFormError: only a newer program knows its form.
    """
    text, place = record.properties.get(DUE), record.physical_offset
    if text is None:
        return None
    due = parse_own_due(text, place)
    if due is None and (mended := corrected(text, place)) is not None:
        due = parse_own_due(mended, place)
    return due


def own_mark(record: Record) -> TimedMark | None:
    """Return the mark of form 2 that a record states, with one flipped bit corrected; None without one.

    NewerFormError: only a newer program knows its form.
    """
    text, place = record.properties.get(MARK), record.physical_offset
    if text is None:
        return None
    mark = parse_own_mark(text, place)
    if mark is None and (mended := corrected(text, place)) is not None:
        mark = parse_own_mark(mended, place)
    return mark


def own_group_mark(record: Record) -> GroupMark | None:
    """Return the statement about many messages that a record makes, with one flipped bit corrected; None without one.

    NewerFormError: only a newer program knows its form.
    """
    place = record.physical_offset
    text = sound_statement(record.properties.get(MARK, ""), place)
    return parse_own_group_mark(text, place) if text is not None and is_group_mark(text) else None


def delivered_by_rocketmq(record: Record) -> int | None:
    """Return the identity of the timed message of which RocketMQ 5 stored this copy; None if it is no such copy.

    Its copies keep the due time of the pending record, which names another place, and have no mark.
    """
    text = record.properties.get(DUE, "")
    if record.topic == TIMER_TOPIC or MARK in record.properties or (place := place_of(text)) is None:
        return None
    due = parse_own_due(text, place) if place != record.physical_offset else None
    return None if due is None else due.identity
