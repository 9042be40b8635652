"""What happened to a message that is no longer pending, as the log tells it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from delaymq.broker.delivery.changes.lookup import Lookup, identity_of, mark_in
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
        what = _VERBS.get(self.kind, f"was {self.kind}")
        return f"the message {what}{to} at {utc_time(self.at_ms)}{by}"


UNKNOWN = Fate(kind=FateKind.UNKNOWN)


def fate_of(lookup: Lookup, record: Record) -> Fate:
    """Return the end of the message that a record of one of the delayed topics holds. KeysUnknownError."""
    identity = identity_of(record)
    ended = _marked(lookup, identity) or _delivered(lookup, record, identity) or _replaced(lookup, record, identity)
    return ended or _cancelled_with_group(lookup, record) or UNKNOWN


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


def _delivered(lookup: Lookup, record: Record, identity: int) -> Fate | None:
    properties = record.properties
    topic, unique_id = properties.get(names.REAL_TOPIC, ""), properties.get(names.UNIQUE_KEY)
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
            return Fate(kind=FateKind.DELIVERED, at_ms=copy.store_timestamp_ms, topic=topic)
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


def _cancelled_with_group(lookup: Lookup, record: Record) -> Fate | None:
    properties = record.properties
    group = group_in(properties)
    if not group:
        return None
    fate = None
    for changed, mark in lookup.group_marks(properties.get(names.REAL_TOPIC, ""), group, record.physical_offset):
        if mark.kind is GroupMarkKind.CANCELLED:
            fate = Fate(kind=FateKind.CANCELLED, at_ms=mark.decided_ms, by=who(changed))  # the first one counts
    return fate


def _address(host: bytes) -> str:
    return unpack_host(host)[0]
