"""What happened to a message that is no longer pending, as the log tells it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from delaymq.broker.delivery.changes.lookup import Lookup, identity_of, mark_in, stated_by
from delaymq.broker.delivery.timed.replay import own_due
from delaymq.broker.delivery.timed.requests import group_in
from delaymq.clock import utc_time
from delaymq.message import names
from delaymq.message.errors import NewerFormError
from delaymq.message.ids import unpack_host
from delaymq.message.marks import parse_mark
from delaymq.message.record import Record
from delaymq.message.timed_marks import GroupMarkKind, TimedMarkKind
from delaymq.store.index.key_index import indexed_delay_key


class FateKind(StrEnum):
    """Ends of a message."""

    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    REPLACED = "replaced"
    """A message with the same DELAY_KEY was sent."""
    EXPIRED = "expired"
    DROPPED = "dropped"
    """It could not be delivered, and may be among the dead letters, or it was overdue and not to be delivered."""
    UNKNOWN = "unknown"
    """The log contains no record of it, or none of its end."""


_VERBS = {FateKind.EXPIRED: "was dropped as too late"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """End of a message."""

    kind: FateKind
    at_ms: int | None = None
    by: str = ""
    """Account and address of the client that requested it; empty if the broker decided."""
    topic: str = ""
    """Topic of the copy."""

    def __str__(self) -> str:
        """Return a clause for a response, such as "it was delivered at 2026-11-27T09:00:00.000Z"."""
        if self.at_ms is None:
            return "no pending message with this name is known"
        by = f" by {self.by}" if self.by else ""
        to = f" to topic {self.topic}" if self.kind is FateKind.DELIVERED else ""
        if self.kind is FateKind.DROPPED and self.topic:
            to = f" and stored in topic {self.topic}"
        what = _VERBS.get(self.kind, f"was {self.kind}")
        return f"the message {what}{to} at {utc_time(self.at_ms)}{by}"


UNKNOWN = Fate(kind=FateKind.UNKNOWN)


def fate_of(lookup: Lookup, record: Record) -> Fate:
    """Return the end of the message that a record of one of the delayed topics holds. KeysUnknownError."""
    identity = identity_of(record)
    ended = _marked(lookup, identity) or _copied(lookup, record, identity) or _replaced(lookup, record, identity)
    return ended or _cancelled_with_group(lookup, record, identity) or UNKNOWN


def _marked(lookup: Lookup, identity: int) -> Fate | None:
    found = lookup.newest_mark_record(identity)
    if found is None or found[1].next_due_ms is not None:
        return None
    record, mark = found
    kind = _KINDS.get(mark.kind, FateKind.DROPPED)
    by = who(record) if kind is FateKind.CANCELLED else ""
    topic = record.properties.get(names.REAL_TOPIC, "") if kind is FateKind.DELIVERED else ""
    return Fate(kind=kind, at_ms=mark.decided_ms, by=by, topic=topic)


def who(record: Record) -> str:
    """Return account and address of the client that requested what a mark states."""
    account, address = record.properties.get(names.BY, ""), _address(record.born_host)
    return f"{account} ({address})" if account else address


_KINDS = {
    TimedMarkKind.CANCELLED: FateKind.CANCELLED,
    TimedMarkKind.EXPIRED: FateKind.EXPIRED,
    TimedMarkKind.DELIVERED: FateKind.DELIVERED,
}


def _copied(lookup: Lookup, record: Record, identity: int) -> Fate | None:
    """Return the end of a message with a copy in its topic or among the dead letters."""
    topic = record.properties.get(names.REAL_TOPIC, "")
    copy = _copy_in(lookup, topic, record, identity)
    if copy is not None:
        return Fate(kind=FateKind.DELIVERED, at_ms=copy.store_timestamp_ms, topic=topic)
    copy = _copy_in(lookup, names.SCHEDULE_DLQ_TOPIC, record, identity)
    if copy is not None:
        return Fate(kind=FateKind.DROPPED, at_ms=copy.store_timestamp_ms, topic=names.SCHEDULE_DLQ_TOPIC)
    return None


def _copy_in(lookup: Lookup, topic: str, record: Record, identity: int) -> Record | None:
    unique_id = record.properties.get(names.UNIQUE_KEY)
    if unique_id is None:
        return None
    for copy in lookup.records(topic, unique_id):
        mark = mark_in(copy.properties, copy.physical_offset)
        if mark is not None:
            is_copy = mark.identity == identity and mark.next_due_ms is None
        else:
            level_mark = parse_mark(copy.properties.get(names.MARK, ""))
            is_copy = (
                level_mark is not None
                and record.topic == names.SCHEDULE_TOPIC
                and level_mark.physical_offset == record.physical_offset
            )
        if is_copy:
            return copy
    return None


def _replaced(lookup: Lookup, record: Record, identity: int) -> Fate | None:
    properties = record.properties
    key = properties.get(names.DELAY_KEY)
    if key is None:
        return None
    for later in lookup.records(names.TIMER_TOPIC, indexed_delay_key(properties.get(names.REAL_TOPIC, ""), key)):
        if later.physical_offset <= record.physical_offset:
            break
        try:
            due = own_due(later.properties.get(names.DUE, ""), later.physical_offset)
        except NewerFormError:
            continue
        if due is not None and due.replaced == identity:
            return Fate(kind=FateKind.REPLACED, at_ms=later.store_timestamp_ms, by=_address(later.born_host))
    return None


def _cancelled_with_group(lookup: Lookup, record: Record, identity: int) -> Fate | None:
    """Return the end of a message by the first cancel of its group; None without one, or if it may have ended before.

    A message without a unique id may have a copy that the index of keys does not contain. It has none if it was due
    after the cancel: nothing is delivered early, and store times never decrease.
    """
    properties = record.properties
    group = group_in(properties)
    if not group or record.topic != names.TIMER_TOPIC:
        return None
    cancel, moved = None, None
    for statement in lookup.group_marks(properties.get(names.REAL_TOPIC, ""), group, record.physical_offset):
        if statement[1].kind is GroupMarkKind.CANCELLED:
            cancel, moved = statement, None  # the first one counts
        elif moved is None:
            moved = statement[1]
    if cancel is None:
        return None
    cancelled, mark = cancel
    if names.UNIQUE_KEY not in properties:
        marks = [each for each in (moved, lookup.newest_mark(identity)) if each is not None and each.place < mark.place]
        newest = max(marks, key=lambda each: each.place, default=None)
        due_ms = stated_by(properties, record.physical_offset)[1] if newest is None else newest.next_due_ms or 0
        if due_ms <= cancelled.store_timestamp_ms:
            return None
    return Fate(kind=FateKind.CANCELLED, at_ms=mark.decided_ms, by=who(cancelled))


def _address(host: bytes) -> str:
    return unpack_host(host)[0]
