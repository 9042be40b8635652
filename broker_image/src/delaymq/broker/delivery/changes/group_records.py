"""Records of statements about many messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaymq.message import names
from delaymq.message.group_marks import GroupMark, indexed_group_key
from delaymq.store.model import NewRecord, Reserve

if TYPE_CHECKING:
    from delaymq.broker.delivery.changes.changes import Requester


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
