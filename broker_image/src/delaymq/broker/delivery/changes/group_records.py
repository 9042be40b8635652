"""Records of statements about many messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delaymq.message import names
from delaymq.message.group_marks import GroupMark, indexed_group_key
from delaymq.store.layout import MANAGED_VERSION
from delaymq.store.model import NewRecord, Reserve

if TYPE_CHECKING:
    from delaymq.broker.delivery.changes.changes import Requester
    from delaymq.broker.delivery.reader import DeliveryStore


class Stated(NamedTuple):
    """A statement in the log."""

    place: int
    """Physical offset of its record."""
    end: int
    """Physical offset of the end of the record."""


def group_record(mark: GroupMark, now_ms: int, requester: Requester, reserve: Reserve = Reserve.MARKS) -> NewRecord:
    """Return the record of a statement about many messages. IllegalMessageError."""
    properties = {names.KEYS: indexed_group_key(mark.topic, mark.group)}
    if mark.topic:
        properties[names.REAL_TOPIC] = mark.topic
    if mark.group:
        properties[names.DELAY_GROUP] = mark.group
    if requester.account:
        properties[names.BY] = requester.account
    host, statement = requester.host, mark.statement()
    return NewRecord(
        names.MARKS_TOPIC,
        0,
        b"",
        properties,
        0,
        0,
        now_ms,
        host,
        host,
        statement=statement,
        reserve=reserve,
    )


def append_statement(store: DeliveryStore, record: NewRecord) -> Stated:
    """Append a statement about many messages.

    If it raises StoreError, nothing is in the log.
    """
    if store.format_version < MANAGED_VERSION:
        store.raise_format_version(MANAGED_VERSION)
    last_before = store.last_offset
    try:
        appended = store.append(record)
    except Exception:
        if store.last_offset == last_before:
            raise
        return Stated(store.last_offset, store.end_offset)  # the log decides, and only a later step has failed
    return Stated(appended.physical_offset, appended.physical_offset + appended.size)
