"""The record codec: golden bytes in both directions, arbitrary records, arbitrary bytes.

DELAYMQ_FUZZ_INPUTS (default 20,000) says how many broken inputs are tried.
"""

from __future__ import annotations

import random
import tarfile
from pathlib import Path
from zlib import crc32

import pytest
from delaymq.message.errors import IllegalMessageError, RecordError
from delaymq.message.flags import BORN_HOST_IPV6, HOST_MASK, STORE_HOST_IPV6
from delaymq.message.properties import (
    MAX_PROPERTIES_BYTES,
    decode_properties,
    encode_properties,
    is_storable,
)
from delaymq.message.record import (
    BLANK_MAGIC,
    MAX_HEAD_BYTES,
    SIZE_AND_MAGIC,
    Record,
    decode_record,
    decode_transaction,
    encode_record,
    record_bytes,
)
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from hypothesis import given, settings
from hypothesis import strategies as st

GOLDEN = Path(__file__).parent.parent / "golden"


def golden_log(name: str) -> bytes:
    """The log of a golden store in one piece."""
    with tarfile.open(GOLDEN / f"store-{name}.tar.gz") as archive:
        members = sorted(m.name for m in archive.getmembers() if "commitlog/0" in m.name)
        return b"".join(archive.extractfile(member).read() for member in members)  # type: ignore[union-attr]


def golden_records(name: str) -> list[bytes]:
    log, position, records = golden_log(name), 0, []
    while position < 31_699:
        size, magic = SIZE_AND_MAGIC.unpack_from(log, position)
        if magic != BLANK_MAGIC:
            records.append(log[position : position + size])
        position += size
    return records


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_golden_records_decode_and_encode_to_the_same_bytes(name: str) -> None:
    records = golden_records(name)
    assert len(records) == 107
    for data in records:
        record = decode_record(data)
        assert record.encoded() == data
        assert decode_record(memoryview(data)) == record
        assert decode_record(b"front" + data + b"behind", 5) == record
        properties = decode_properties(record.raw_properties)
        assert decode_properties(encode_properties(properties)) == properties


def test_first_golden_record_has_its_known_fields() -> None:
    record = decode_record(golden_records("clean")[0])
    assert (record.topic, record.queue_id, record.queue_offset, record.physical_offset) == ("GoldenNormal", 1, 0, 0)
    assert (record.flag, record.sys_flag, record.reconsume_times, record.prepared_transaction_offset) == (0, 0, 0, 0)
    assert record.store_timestamp_ms == 1_795_222_277_663
    assert record.store_host == bytes([127, 0, 0, 1]) + (20_911).to_bytes(4, "big")
    assert record.properties["UNIQ_KEY"] == "FD00000000000000000000000000000231AD30946E09672E25D40000"
    assert record.body_crc == crc32(record.body) & 0x7FFFFFFF


hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
records = st.fixed_dictionaries(
    {
        "topic": st.binary(max_size=127),
        "queue_id": int32,
        "queue_offset": int64,
        "physical_offset": int64,
        "flag": int32,
        "sys_flag": st.integers(0, 0x7FF),
        "born_timestamp_ms": int64,
        "born_host": hosts,
        "store_timestamp_ms": int64,
        "store_host": hosts,
        "reconsume_times": int32,
        "prepared_transaction_offset": int64,
        "body": st.binary(max_size=3_000),
        "properties": st.binary(max_size=2_000),
    }
)


@given(records)
def test_any_record_survives_a_round_trip(fields: dict[str, object]) -> None:
    data = encode_record(**fields)  # type: ignore[arg-type]
    record = decode_record(data)
    assert record.size == len(data)
    born, store = fields["born_host"], fields["store_host"]
    assert isinstance(born, bytes)
    assert isinstance(store, bytes)
    assert record.sys_flag & HOST_MASK == (len(born) == 20) * BORN_HOST_IPV6 | (len(store) == 20) * STORE_HOST_IPV6
    assert record.topic.encode("utf-8", "surrogateescape") == fields["topic"]
    assert (record.body, record.raw_properties) == (fields["body"], fields["properties"])
    for name in ("queue_id", "queue_offset", "physical_offset", "flag", "born_timestamp_ms", "born_host",
                 "store_timestamp_ms", "store_host", "reconsume_times", "prepared_transaction_offset"):  # fmt: skip
        assert getattr(record, name) == fields[name]
    told = record.body_crc, record.sys_flag, record.prepared_transaction_offset
    assert decode_transaction(data[:MAX_HEAD_BYTES]) == told


@given(records)
def test_size_is_known_before_encoding(fields: dict[str, bytes]) -> None:
    size = record_bytes(
        len(fields["topic"]), len(fields["body"]), len(fields["properties"]), fields["born_host"], fields["store_host"]
    )
    assert size == len(encode_record(**fields))  # type: ignore[arg-type]


names = st.text(st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.dictionaries(names, names, max_size=20))
def test_any_properties_survive_a_round_trip(pairs: dict[str, str]) -> None:
    assert all(is_storable(*pair) for pair in pairs.items())
    assert decode_properties(encode_properties(pairs)) == pairs


@given(st.binary(max_size=300))
def test_invalid_utf8_properties_survive(data: bytes) -> None:
    pairs = decode_properties(data)
    assert decode_properties(encode_properties(pairs)) == pairs


def test_last_duplicate_property_wins_and_empty_ones_are_dropped() -> None:
    assert decode_properties(b"WAIT\x01true\x02a\x01b\x02WAIT\x01false\x02empty\x01\x02\x01x\x02bare\x02") == {
        "WAIT": "false",
        "a": "b",
    }


def plain(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "topic": b"Orders", "queue_id": 0, "queue_offset": 0, "physical_offset": 0, "flag": 0, "sys_flag": 0,
        "born_timestamp_ms": 0, "born_host": bytes(8), "store_timestamp_ms": 0, "store_host": bytes(8),
        "reconsume_times": 0, "prepared_transaction_offset": 0, "body": b"body", "properties": b"a\x01b",
    }  # fmt: skip
    return encode_record(**(fields | changes))  # type: ignore[arg-type]


def test_unencodable_values_are_rejected() -> None:
    with pytest.raises(IllegalMessageError, match="use a shorter name"):
        plain(topic=b"t" * 128)
    with pytest.raises(IllegalMessageError, match="fewer or shorter"):
        plain(properties=b"p" * (MAX_PROPERTIES_BYTES + 1))
    assert decode_record(plain(topic=b"t" * 127, properties=b"p" * MAX_PROPERTIES_BYTES)).topic == "t" * 127


@pytest.mark.parametrize("cut", [0, 1, 8, 90, 91, 103])
def test_truncated_record_is_an_error(cut: int) -> None:
    with pytest.raises(RecordError):
        decode_record(plain()[:cut])


@pytest.mark.parametrize("head", [b"", bytes(MAX_HEAD_BYTES), b"\0\0\0\x70\xda\xa3\x20\xa7" + b"\xff" * 80])
def test_invalid_header_is_an_error(head: bytes) -> None:
    with pytest.raises(RecordError):
        decode_transaction(head)


def test_flipped_bit_in_the_body_is_an_error() -> None:
    data = bytearray(plain())
    data[89] ^= 1
    with pytest.raises(RecordError, match="checksum"):
        decode_record(bytes(data))
    assert decode_record(bytes(data), check_crc=False).size == len(data)


def decode_or_refuse(data: bytes) -> Record | None:
    try:
        return decode_record(data)
    except RecordError:
        return None


def test_corrupt_bytes_raise_only_the_documented_error() -> None:
    chance = random.Random(SEED)
    samples = [*golden_records("clean"), plain(born_host=bytes(20)), plain(store_host=bytes(20)), plain(body=b"")]
    accepted = 0
    for number in range(FUZZ_INPUTS):
        if number % 10 == 0:
            data = bytearray(chance.randbytes(chance.randint(0, 300)))
            if len(data) >= 8 and number % 20 == 0:
                SIZE_AND_MAGIC.pack_into(data, 0, len(data), 0xDAA320A7)
        else:
            data = bytearray(chance.choice(samples))
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(data))
                match chance.randrange(4):
                    case 0:
                        data[at] ^= 1 << chance.randrange(8)
                    case 1:
                        data[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)])
                    case 2:
                        del data[at:]
                        data.append(0)
                    case _:
                        data[at:at] = chance.randbytes(chance.randint(1, 5))
        record = decode_or_refuse(bytes(data))
        if record is not None:
            accepted += 1
            assert record.size <= len(data)
            assert decode_record(record.encoded()) == record
    assert 0 < accepted < FUZZ_INPUTS


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_record_or_rejected(data: bytes) -> None:
    decode_or_refuse(data)
