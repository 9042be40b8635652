"""The compiled kernel splits the body of a pull response as its twin does, whatever the body contains."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import pytest
from delaymq.client.decoding import stored_messages
from delaymq.client.plain_records import PlainRecord, split_plain, split_plain_twin
from delaymq.message import flags
from delaymq.message.errors import RecordError
from delaymq.message.ids import pack_host
from delaymq.message.record import encode_record, encoded_topic
from delaymq.protocol.bodies import MessageQueue
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

Split: TypeAlias = Callable[[bytes, int, bytes, int], tuple[list[PlainRecord], int]]

TOPIC, OTHER = "Orders", "Ordersé"


def record(chance: Random, *, topic: str = TOPIC, queue_id: int = 1, sys_flag: int = 0) -> bytes:
    """Return a valid record with a random body and random properties."""
    born = pack_host("::1" if sys_flag & flags.BORN_HOST_IPV6 else "10.0.0.1", 4000)
    offset = chance.choice([0, 1, 2**40, 2**63 - 1])
    properties = chance.choice([b"", b"TAGS\x01a", b"TAGS\x01a\x02", chance.randbytes(chance.randrange(300))])
    return encode_record(
        topic.encode(), queue_id, offset, offset, 0, sys_flag, 1, born, 2, pack_host("10.0.0.2", 10911), 0, 0,
        chance.randbytes(chance.choice([0, 1, 100, 5_000])), properties, None,
    )  # fmt: skip


def body(chance: Random) -> bytes:
    """Return the body of a response: mostly records of one queue, with damage, other queues and a torn end."""
    parts = []
    for _ in range(chance.randrange(6)):
        kind = chance.randrange(12)
        if kind == 0:
            part = record(chance, topic=OTHER)
        elif kind == 1:
            part = record(chance, queue_id=chance.choice([0, 2, -1]))
        elif kind == 2:
            part = record(chance, sys_flag=flags.BORN_HOST_IPV6)
        else:
            part = record(chance, sys_flag=chance.choice([0, 0, flags.TRANSACTION_COMMIT, flags.COMPRESSED]))
        if chance.randrange(6) == 0:
            damaged = bytearray(part)
            for _ in range(chance.randrange(1, 4)):
                # Lengths and flags are at the beginning: most damage is there.
                at = chance.randrange(len(part)) if chance.randrange(3) else chance.randrange(min(96, len(part)))
                damaged[at] = chance.choice([0, 0x7F, 0xFF, damaged[at] ^ 1 << chance.randrange(8)])
            part = bytes(damaged)
        parts.append(part)
    data = b"".join(parts)
    return data[: chance.randrange(len(data) + 1)] if chance.randrange(4) == 0 else data


@NEEDS_KERNELS
def test_kernel_splits_random_and_damaged_bodies_as_its_twin_does() -> None:
    chance, split = Random(SEED), 0
    assert split_plain is not split_plain_twin
    for number in range(FUZZ_INPUTS):
        data, topic = body(chance), encoded_topic(chance.choice([TOPIC, TOPIC, TOPIC, OTHER, ""]))
        at = chance.choice([0, 0, 0, 0, len(data), chance.randrange(len(data) + 1)])
        found = split_plain(data, at, topic, 1)
        assert found == split_plain_twin(data, at, topic, 1), (SEED, number)
        split += len(found[0])
    assert split > FUZZ_INPUTS // 10


@pytest.mark.parametrize("split", [split_plain, split_plain_twin])
def test_records_of_other_queues_and_incomplete_ones_end_the_plain_records(split: Split) -> None:
    chance = Random(1)
    plain = b"".join(record(chance) for _ in range(3))
    wide = record(chance, sys_flag=flags.BORN_HOST_IPV6)
    for odd in (record(chance, topic=OTHER), record(chance, queue_id=2), wide, record(chance)[:-1], b"\xff", b""):
        records, at = split(plain + odd, 0, encoded_topic(TOPIC), 1)
        assert (len(records), at) == (3, len(plain))
        assert b"".join(head + content for head, _, _, content, _ in records[:1]) == plain[: 88 + len(records[0][3])]


def test_response_with_records_of_several_queues_is_read_completely() -> None:
    chance = Random(2)
    queues = [(TOPIC, 1), (TOPIC, 1), (OTHER, 1), (TOPIC, 2), (TOPIC, 1), (TOPIC, 1)]
    data = b"".join(record(chance, topic=topic, queue_id=queue_id) for topic, queue_id in queues)
    messages = stored_messages(data, "b", source=MessageQueue("b", 1, TOPIC))
    assert [(each.topic, each.queue.queue_id) for each in messages] == queues
    with pytest.raises(RecordError):
        stored_messages(data[:-1], "b", source=MessageQueue("b", 1, TOPIC))
