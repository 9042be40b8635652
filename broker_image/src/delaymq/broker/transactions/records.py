"""Records and requests of transactions in RocketMQ's format."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from delaymq.broker.delivery.delay_rewrite import (
    MARK_ROOM_BYTES,
    TIMED_ROOM_BYTES,
    more_room_bytes,
    requested_level,
    strip_own,
)
from delaymq.broker.delivery.settlement import real_queue_id
from delaymq.broker.requests.errors import message_illegal
from delaymq.message import names
from delaymq.message.flags import HOST_MASK, TRANSACTION_COMMIT, TRANSACTION_MASK
from delaymq.message.marks import DUE_WIDTH
from delaymq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from delaymq.message.record import Record
from delaymq.message.timed_marks import MAX_FIRST_DUE_BYTES, Statement
from delaymq.store.model import NewRecord

CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
"""Number of checks of the message. Producers read it in check requests."""
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
"""Property of a half message that RocketMQ appended again during its immunity: the first one's queue offset."""
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
COPIED: Final = names.OWN_PREFIX + "COPIED"
"""Property of the op mark of a half message that a copy settled. A loss of power may remove the copy alone, and without
it the mark proves nothing. The mark of a rollback does not have this property."""
REMOVE_TAG: Final = "d"
"""Tag of an op mark. The half message whose queue offset is the mark's body is settled."""
CHECK_ROOM_BYTES: Final = 1 + len(CHECK_TIMES) + 1 + 5 + 1 + len(names.WAIT) + 1 + 5
"""Name, value and separators of CHECK_TIMES, which the committed copy may have in addition, and of WAIT=false in a
check.
"""
DELAY_ROOM_BYTES: Final = 1 + len(names.DUE) + 1 + DUE_WIDTH + 16 + MARK_ROOM_BYTES
"""Bytes that a delay level adds at the commit: due time with its name, a level of maximum length, the mark of the
delivered copy.
"""
TIME_ROOM_BYTES: Final = MAX_FIRST_DUE_BYTES + 1 + len(names.TIMER_OUT_MS) + 1 + 19 + TIMED_ROOM_BYTES
"""Bytes that a due time adds at the commit: due time twice, and what the delivered copy has in addition."""
MAX_HALF_PROPERTIES_BYTES: Final = MAX_PROPERTIES_BYTES - CHECK_ROOM_BYTES
"""Limit of the properties of a half message without a delay."""
RULED_IN_HALF: Final = (CHECK_TIMES, PREPARED_QUEUE_OFFSET, IMMUNITY)
"""Properties of half messages that need rules besides those that need them in all messages."""
_MARK: Final = {names.TAGS: REMOVE_TAG, names.WAIT: "true"}
ROLLED_BACK_MARK: Final = _MARK, encode_properties(_MARK)
"""Properties of the op mark of a rollback, also encoded."""
COPIED_MARK: Final = {**_MARK, COPIED: "true"}, encode_properties({**_MARK, COPIED: "true"})
"""The same for the op mark of a copy."""
_SCHEDULES: Final = names.REPEATING.union(names.TIMER_PROPERTIES)
_WIDEST_CHARACTER_BYTES: Final = 4
"""Maximum UTF-8 bytes of a character."""


def delay_room_bytes(properties: dict[str, str]) -> int:
    """Return the bytes that the delay of a half message may add at the commit. IllegalMessageError."""
    if requested_level(properties) > 0:
        return DELAY_ROOM_BYTES
    return 0 if _SCHEDULES.isdisjoint(properties) else TIME_ROOM_BYTES + more_room_bytes(properties)


def make_half(properties: dict[str, str], topic: str, queue_id: int) -> None:
    """Add the properties of a half message. Raises RequestError 13 if it could not be checked or committed."""
    if not properties.get(names.PRODUCER_GROUP):
        raise message_illegal("a transaction needs the property PGROUP: name the producer group that receives checks")
    properties.pop(CHECK_TIMES, None)
    properties.pop(PREPARED_QUEUE_OFFSET, None)
    properties[names.REAL_TOPIC] = topic
    properties[names.REAL_QUEUE_ID] = str(queue_id)
    limit = MAX_PROPERTIES_BYTES - CHECK_ROOM_BYTES - delay_room_bytes(properties)
    characters = sum(map(len, properties)) + sum(map(len, properties.values())) + 2 * len(properties)
    if characters * _WIDEST_CHARACTER_BYTES > limit:
        bytes_used = len(encode_properties(properties))
        if bytes_used > limit:
            raise message_illegal(
                f"the properties of this transaction take {bytes_used} bytes (limit: {limit}, because its commit adds "
                "more): send fewer or shorter ones"
            )


def committed_copy(
    record: Record,
    properties: dict[str, str],
    topic: str,
    queue_id: int,
    statement: Statement | None,
    property_bytes: bytes | None,
) -> NewRecord:
    """Return the record that a commit appends. Its commit bit and its prepared offset prove the commit.

    `property_bytes` are the encoded `properties`, if the caller has them.
    """
    return NewRecord(
        topic,
        queue_id,
        record.body,
        properties,
        record.flag,
        record.sys_flag & ~(TRANSACTION_MASK | HOST_MASK) | TRANSACTION_COMMIT,
        record.born_timestamp_ms,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.physical_offset,
        is_copy=True,
        statement=statement,
        property_bytes=property_bytes,
        body_crc=record.body_crc,
    )


def make_committed(properties: dict[str, str], checks: int) -> bool:
    """Turn the properties of a half message into those of its committed copy: remove DelayMQ's marks, add the checks.

    Returns whether they have changed.
    """
    count = len(properties)
    strip_own(properties)
    if checks:
        properties[CHECK_TIMES] = str(checks)
    return checks > 0 or len(properties) != count


def op_mark(offset: int, physical_offset: int, now_ms: int, host: bytes, *, copied: bool) -> NewRecord:
    """Return the op mark of a half message. RocketMQ reads its body (queue offset), DelayMQ its prepared offset."""
    properties, property_bytes = COPIED_MARK if copied else ROLLED_BACK_MARK
    return NewRecord(
        names.OP_HALF_TOPIC,
        0,
        b"%d" % offset,
        properties,
        0,
        0,
        now_ms,
        host,
        host,
        0,
        physical_offset,
        property_bytes=property_bytes,
    )


def given_up_copy(record: Record, checks: int) -> NewRecord:
    """Return the copy of a half message that is no longer checked."""
    properties = _stored_properties(record)
    properties[CHECK_TIMES] = str(checks)
    return _new_record(record, names.TRANS_CHECK_MAX_TOPIC, properties)


def resumed_half(record: Record, predecessor: int) -> NewRecord:
    """Return a half message that is checked again, from a given-up copy or the first half message."""
    properties = _stored_properties(record)
    properties[CHECK_TIMES] = "0"
    properties.pop(PREPARED_QUEUE_OFFSET, None)
    return _new_record(record, names.HALF_TOPIC, properties)._replace(prepared_transaction_offset=predecessor)


def _stored_properties(record: Record) -> dict[str, str]:
    """Return the properties of a half message without DelayMQ's marks, but with the account of its producer."""
    properties = record.properties
    account = properties.get(names.ACCOUNT)
    strip_own(properties)
    if account is not None:
        properties[names.ACCOUNT] = account
    return properties


def _new_record(record: Record, topic: str, properties: dict[str, str]) -> NewRecord:
    return NewRecord(
        topic,
        0,
        record.body,
        properties,
        record.flag,
        record.sys_flag & ~(TRANSACTION_MASK | HOST_MASK),
        record.born_timestamp_ms,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.physical_offset,
        is_copy=True,
    )


def check_body(record: Record, checks: int) -> bytes:
    """Return the body of a check request: the message as it would be committed, with the number of checks."""
    properties = record.properties
    strip_own(properties)
    properties[CHECK_TIMES] = str(checks)
    properties[names.WAIT] = "false"
    return replace(
        record,
        topic=properties.get(names.REAL_TOPIC, ""),
        queue_id=max(real_queue_id(properties), 0),
        raw_properties=encode_properties(properties),
    ).encoded()


def checks_of(properties: dict[str, str]) -> int:
    """Return the number of checks that a half message states, 0 if it states none."""
    text = properties.get(CHECK_TIMES, "")
    return min(int(text), 65_535) if len(text) <= 9 and text.isascii() and text.isdigit() else 0


def immunity_ms(properties: dict[str, str], timeout_ms: int) -> int:
    """Return the time in ms after its birth in which a half message is not checked: its own, or transactionTimeOut."""
    text = properties.get(IMMUNITY)
    if text is None or len(text) > 9 or not (text.isascii() and text.isdigit()):
        return timeout_ms
    return int(text) * 1_000
