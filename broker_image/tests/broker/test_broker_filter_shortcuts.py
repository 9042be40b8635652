"""Shortcuts of filtering pulls do not change their result."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.broker.filters import SQL_TYPE, Filter, compile_expression
from delaymq.broker.filters.sql.prefilter import MAX_NEEDLE_BYTES
from delaymq.broker.pull.property_reader import LARGE_RECORD_BYTES, MAX_SEARCHED_BYTES
from delaymq.broker.pull.queue_reader import Pulled, read_queue
from delaymq.message.hashing import java_hash
from delaymq.message.record import decode_record
from delaymq_testing.broker.harness import Harness
from hypothesis import given, settings
from hypothesis import strategies as st

EXPRESSIONS = [
    "kind = '3'",
    "'3' = kind AND number >= 0",
    "number >= 0 AND kind IN ('3')",
    "kind = '3' AND (number = 1 OR number = 13)",
    "kind = '3' AND kind = '4'",
    "kind = ''",
    "kind = 'none'",
    "kind IN ('3', '4')",
    "number BETWEEN 3 AND 5",
]
BODIES = [
    b"",
    b"\x02kind\x013\x02" * 3,
    b"x" * (LARGE_RECORD_BYTES - 300),
    b"x" * LARGE_RECORD_BYTES,
    b"kind\x013" * 900,
]


@pytest.mark.parametrize(
    ("expression", "needle"),
    [
        ("kind = '3'", b"kind\x013"),
        ("'3' = kind", b"kind\x013"),
        ("kind IN ('3')", b"kind\x013"),
        ("n > 1 AND (kind = '3' AND m = 'long one')", b"m\x01long one"),
        (
            "kind = 'a long, long, very long value'",
            "kind\x01a long, long, very long value"[-MAX_NEEDLE_BYTES:].encode(),
        ),
        ("kind = 'ü'", b"kind\x01\xc3\xbc"),
        ("kind IN ('3', '4')", b""),
        ("kind NOT IN ('3')", b""),
        ("kind <> '3'", b""),
        ("NOT (kind = '3')", b""),
        ("kind = '3' OR n > 1", b""),
        ("kind = other", b""),
        ("kind = 3", b""),
        ("kind IS NULL", b""),
    ],
)
def test_required_property_text_is_derived_from_the_expression(expression: str, needle: bytes) -> None:
    assert compile_expression(SQL_TYPE, expression).needle == needle


@given(
    st.sampled_from([text for text in EXPRESSIONS if "'" in text]),
    st.lists(st.sampled_from([b"kind", b"number", b"kin", b"d", b"\1", b"\1", b"\2", b"3", b"4", b"none", b"\0"])),
)
@settings(max_examples=2_000)
def test_properties_without_required_text_never_match(expression: str, pieces: list[bytes]) -> None:
    wanted = compile_expression(SQL_TYPE, expression)
    properties = b"".join(pieces)
    assert wanted.properties is not None
    assert wanted.needle in properties or not wanted.properties(properties)


def fill(harness: Harness, count: int = 120) -> None:
    for number in range(count):
        properties = {"kind": str(number % 5), "number": str(number), "TAGS": f"T{number % 5}"}
        if number % 7 == 0:
            del properties["kind"]
        if number % 11 == 0:
            properties["note"] = "n" * MAX_SEARCHED_BYTES
        harness.send(body=BODIES[number % len(BODIES)], properties=properties)
        if number % 3 == 0:
            harness.send(body=b"between", e=1)


def seen(harness: Harness, wanted: Filter, offset: int = 0, limit: int = 32) -> Pulled:
    return read_queue(harness.broker, "Orders", 0, offset, limit, wanted)


def all_seen(harness: Harness, wanted: Filter, limit: int) -> bytes:
    """What a consumer gets that goes on where each pull says."""
    found, offset = b"", 0
    while offset < 120:
        pulled = seen(harness, wanted, offset, limit)
        assert pulled.next_offset > offset
        assert pulled.messages <= limit
        found, offset = found + pulled.records, pulled.next_offset
    return found


def assert_same(harness: Harness, wanted: Filter) -> None:
    in_full = replace(wanted, codes=b"", needle=b"")
    for limit in (1, 2, 32):
        assert all_seen(harness, wanted, limit) == all_seen(harness, in_full, limit)
        for offset in (0, 1, 50, 119):
            quick, thorough = seen(harness, wanted, offset, limit), seen(harness, in_full, offset, limit)
            # In addition to the messages that it returns, a shortcut may find more that do not match.
            assert quick.next_offset >= thorough.next_offset
            assert quick._replace(next_offset=0, behind_bytes=0) == thorough._replace(next_offset=0, behind_bytes=0)


@pytest.fixture
def harness(open_harness: Callable[..., Harness]) -> Harness:
    return open_harness(enable_property_filter=True)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_pull_equals_a_full_evaluation_of_every_message(harness: Harness, expression: str) -> None:
    fill(harness)
    assert_same(harness, compile_expression(SQL_TYPE, expression))


@pytest.mark.parametrize("tags", ["T3", "T3||T4", "none"])
def test_tag_pull_equals_a_full_evaluation_of_every_message(harness: Harness, tags: str) -> None:
    fill(harness)
    assert_same(harness, compile_expression(None, tags))


def test_tag_is_not_confused_with_bytes_of_offsets_and_sizes(harness: Harness) -> None:
    fill(harness)
    for tag in (bytes(4), b"\0\0\0\1", b"\0\0\0\x8a"):
        code = int.from_bytes(tag, "big")
        wanted = Filter(tags=lambda tags_code, code=code: tags_code & 0xFFFFFFFF == code, codes=tag)
        assert_same(harness, wanted)
    codes = [(java_hash(tag) & 0xFFFFFFFF).to_bytes(4, "big") for tag in ("T2", "T3")]
    assert compile_expression(None, "T2").codes == codes[0]
    assert compile_expression(None, "T3||T2").codes == b"".join(sorted(codes))
    assert compile_expression(None, "*").codes == b""


def test_damaged_record_is_skipped_and_its_neighbours_are_found(harness: Harness) -> None:
    fill(harness)
    wanted = compile_expression(SQL_TYPE, "kind = '3'")
    whole = all_seen(harness, wanted, 32)
    record = decode_record(whole)
    with (Path(harness.broker.store.path) / "commitlog" / f"{0:020d}").open("r+b") as segment:
        segment.seek(record.physical_offset)
        segment.write(bytes(record.size))
    assert_same(harness, wanted)
    assert all_seen(harness, wanted, 32) == whole[record.size :]
