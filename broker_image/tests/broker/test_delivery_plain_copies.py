"""Copies made by the short path are those of the general one, which decides every unusual case."""

from __future__ import annotations

from random import Random

import pytest
from delaymq.broker.delivery.copying.copies import Fate, copy_of, timed_copy_of
from delaymq.broker.delivery.copying.plain_copies import plain_copy
from delaymq.message.errors import RecordError
from delaymq.message.marks import format_due
from delaymq.message.names import ACCOUNT, SCHEDULE_TOPIC, TIMER_TOPIC
from delaymq.message.properties import decode_properties, encode_properties
from delaymq.message.record import decode_record, encode_record
from delaymq.message.timed_marks import first_due
from delaymq.schedule.timeline import Pending
from delaymq.store.model import NewRecord
from delaymq_testing.repetitions import SEED

NOW_MS = 1_700_000_000_000
HOST = bytes([10, 0, 0, 1, 0, 0, 42, 159])
WIDE_HOST = bytes(20)


def due_record(chance: Random, level: int, topic: str, extra: dict[str, str]) -> tuple[bytes, Pending]:
    """A record as DelayMQ writes it for a message that is due, and what the index states of it."""
    place, offset = chance.randrange(1 << 40), chance.randrange(1 << 30)
    due_ms = NOW_MS - chance.randrange(1_000)
    properties = {"UNIQ_KEY": f"{chance.getrandbits(64):032X}", **extra, "REAL_TOPIC": topic, "REAL_QID": "3"}
    if level:
        properties |= {"DELAY": str(level), "__DMQ_DUE": format_due(due_ms, level - 1, offset)}
    else:
        stated_ms = due_ms - chance.choice([0, 0, 0, 1_000])  # it may have been moved
        properties |= {"TIMER_OUT_MS": str(stated_ms), "__DMQ_DUE": first_due(stated_ms).at(place)}
    data = encode_record(
        (SCHEDULE_TOPIC if level else TIMER_TOPIC).encode(), max(level - 1, 0), offset, place, chance.randrange(9), 0,
        NOW_MS - 5_000, chance.choice([HOST, HOST, HOST, WIDE_HOST]), NOW_MS - 4_000, HOST, chance.randrange(3), 0,
        chance.randbytes(chance.randrange(300)), encode_properties(properties),
    )  # fmt: skip
    return data, Pending(due_ms, place, place, len(data), 0, 0)


def general_copy(data: bytes, pending: Pending, level: int) -> tuple[Fate, NewRecord]:
    record = decode_record(data)
    properties = decode_properties(record.raw_properties)
    if level:
        return copy_of(record, properties, has_own_due=True)
    return timed_copy_of(record, properties, pending, NOW_MS)


def encoded(copy: NewRecord) -> bytes:
    return encode_properties(copy.properties) if copy.property_bytes is None else copy.property_bytes


EXTRA = [
    {},
    {"TAGS": "paid", "KEYS": "a b"},
    {"text": "Grüße", ACCOUNT: "ann"},
    {"__DMQ_MARK": "delivered:0:1:2"},
    {"REAL_QID": "1024"},
    {"REAL_QID": "-1"},
    {"DELAY_EXPIRE_MS": "5000"},
    {"DELAY_KEY": "order-1"},
]


@pytest.mark.parametrize("level", [0, 1, 18])
def test_plain_copy_is_the_general_one(level: int) -> None:
    chance = Random(SEED)
    plain_ones = 0
    for _ in range(400):
        topic = chance.choice(["orders", "orders", "payments", "no/topic", "RMQ_SYS_TRANS_HALF_TOPIC"])
        data, pending = due_record(chance, level, topic, chance.choice(EXTRA))
        found = plain_copy(data, pending, topic, level, NOW_MS)
        if found is None:
            continue
        copy, queue_offset = found
        fate, expected = general_copy(data, pending, level)
        assert fate is Fate.DELIVERED
        assert queue_offset == decode_record(data).queue_offset
        assert encoded(copy) == encoded(expected)
        assert copy == expected._replace(property_bytes=copy.property_bytes, is_copy=True)
        plain_ones += 1
    assert plain_ones > 20


@pytest.mark.parametrize("level", [0, 2])
def test_damaged_record_is_left_to_the_general_path_or_copied_as_there(level: int) -> None:
    """No checksum covers the head and the properties, so a damaged record may still be deliverable."""
    chance = Random(SEED)
    left = 0
    for _ in range(1_500):
        data, pending = due_record(chance, level, "orders", {"TAGS": "paid"})
        damaged = bytearray(data)
        if chance.random() < 0.1:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        found = plain_copy(bytes(damaged), pending, "orders", level, NOW_MS)
        if found is None:
            left += 1
            continue
        try:
            fate, expected = general_copy(bytes(damaged), pending, level)
        except RecordError as error:
            pytest.fail(f"an invalid record was copied: {error}")
        assert fate is Fate.DELIVERED
        assert (found[0].topic, found[0].queue_id, found[0].body) == (expected.topic, expected.queue_id, expected.body)
        assert encoded(found[0]) == encoded(expected)
    assert left > 500


def test_record_of_another_message_is_left_to_the_general_path() -> None:
    chance = Random(SEED)
    data, pending = due_record(chance, 2, "orders", {})
    while decode_record(data).born_host != HOST:
        data, pending = due_record(chance, 2, "orders", {})
    assert plain_copy(data, pending, "orders", 2, NOW_MS) is not None
    for other in (
        pending._replace(record=pending.record + 1),
        pending._replace(size=pending.size - 1),
        pending._replace(due_ms=pending.due_ms + 1),
    ):
        assert plain_copy(data, other, "orders", 2, NOW_MS) is None
    assert plain_copy(data, pending, "orders", 3, NOW_MS) is None
    assert plain_copy(data, pending, "orders", 0, NOW_MS) is None
    assert plain_copy(data, pending, "payments", 2, NOW_MS) is None
    assert plain_copy(b"", pending, "orders", 2, NOW_MS) is None
