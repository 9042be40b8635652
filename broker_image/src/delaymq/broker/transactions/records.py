"""What the broker writes and sends about a half message, in RocketMQ's format."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from delaymq.broker.delivery.delay_rewrite import MARK_ROOM_BYTES, strip_own
from delaymq.broker.delivery.settlement import real_queue_id
from delaymq.broker.requests.errors import message_illegal
from delaymq.message import names
from delaymq.message.flags import HOST_MASK, TRANSACTION_COMMIT, TRANSACTION_MASK
from delaymq.message.marks import DUE_WIDTH
from delaymq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from delaymq.message.record import Record
from delaymq.store.model import NewRecord

CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
"""How often the producer was asked; producers read it in what they are asked about."""
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
"""On a half message that RocketMQ stored anew within its immunity: the first one's queue offset."""
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
COPIED: Final = names.OWN_PREFIX + "COPIED"
"""On the op mark of a half message that a copy settled: without that copy, which a loss of power may take alone, the
mark proves nothing. A rollback's mark does not have it."""
REMOVE_TAG: Final = "d"
"""Tag of an op mark: the half message whose queue offset is its body is settled."""
# Name, value and separators of CHECK_TIMES, which the committed copy may have more, and of WAIT=false in a question.
CHECK_ROOM_BYTES: Final = 1 + len(CHECK_TIMES) + 1 + 5 + 1 + len(names.WAIT) + 1 + 5
# What delaying adds at the commit: the due time and its name, a level in full length, the mark of the delivered copy.
DELAY_ROOM_BYTES: Final = 1 + len(names.DUE) + 1 + DUE_WIDTH + 16 + MARK_ROOM_BYTES
# UTF-8 takes at most this many bytes a character.
_WIDEST_CHARACTER_BYTES: Final = 4


def make_half(properties: dict[str, str], topic: str, queue_id: int, *, delayed: bool) -> None:
    """Gives `properties` what a half message has; RequestError 13 when it could not be checked, or not committed."""
    if not properties.get(names.PRODUCER_GROUP):
        raise message_illegal("a transaction needs the property PGROUP: name the producer group to ask about it")
    properties.pop(CHECK_TIMES, None)
    properties.pop(PREPARED_QUEUE_OFFSET, None)
    properties[names.REAL_TOPIC] = topic
    properties[names.REAL_QUEUE_ID] = str(queue_id)
    limit = MAX_PROPERTIES_BYTES - CHECK_ROOM_BYTES - (DELAY_ROOM_BYTES if delayed else 0)
    characters = sum(map(len, properties)) + sum(map(len, properties.values())) + 2 * len(properties)
    if characters * _WIDEST_CHARACTER_BYTES > limit:
        bytes_used = len(encode_properties(properties))
        if bytes_used > limit:
            raise message_illegal(
                f"the properties of this transaction take {bytes_used} bytes, at most {limit} leave room for what its "
                "commit adds: send fewer or shorter ones"
            )


def committed_copy(record: Record, properties: dict[str, str], topic: str, queue_id: int) -> NewRecord:
    """What a commit appends: its commit bit and the half message's physical offset prove that it happened."""
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
    )


def committed_properties(record: Record, checks: int) -> dict[str, str]:
    """The properties of a committed copy: all of the half message's but our own marks."""
    properties = record.properties
    strip_own(properties)
    if checks:
        properties[CHECK_TIMES] = str(checks)
    return properties


def op_mark(offset: int, physical_offset: int, now_ms: int, host: bytes, *, copied: bool) -> NewRecord:
    """What says that the half message at a queue offset is settled; RocketMQ reads the body, we its prepared offset."""
    properties = {names.TAGS: REMOVE_TAG, names.WAIT: "true"}
    if copied:
        properties[COPIED] = "true"
    return NewRecord(
        names.OP_HALF_TOPIC,
        0,
        str(offset).encode("ascii"),
        properties,
        0,
        0,
        now_ms,
        host,
        host,
        0,
        physical_offset,
    )


def given_up_copy(record: Record, checks: int) -> NewRecord:
    """What is kept of a half message that nobody is asked about any more."""
    properties = record.properties
    strip_own(properties)
    properties[CHECK_TIMES] = str(checks)
    return _new_record(record, names.TRANS_CHECK_MAX_TOPIC, properties)


def resumed_half(record: Record, predecessor: int) -> NewRecord:
    """A half message that is asked about again, from a given-up copy or the first half message."""
    properties = record.properties
    strip_own(properties)
    properties[CHECK_TIMES] = "0"
    properties.pop(PREPARED_QUEUE_OFFSET, None)
    resumed = _new_record(record, names.HALF_TOPIC, properties)
    resumed.prepared_transaction_offset = predecessor
    return resumed


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
    """Body of the request to the producer: the half message as it will be, with the times that it was asked."""
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
    """How often a half message says that its producer was asked; 0 when it does not."""
    text = properties.get(CHECK_TIMES, "")
    return min(int(text), 65_535) if len(text) <= 9 and text.isascii() and text.isdigit() else 0


def immunity_ms(properties: dict[str, str], timeout_ms: int) -> int:
    """For how long after its birth a half message is not asked about: its own time, or transactionTimeOut."""
    text = properties.get(IMMUNITY)
    if text is None or len(text) > 9 or not (text.isascii() and text.isdigit()):
        return timeout_ms
    return int(text) * 1_000
