"""Rows and skipped parts of the data source compared with the broker's own reader."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from delaymq.message.marks import format_due
from delaymq.message.names import DUE, MARK, SCHEDULE_TOPIC, TIMER_TOPIC
from delaymq.message.record import encode_record
from delaymq_spark import skipped
from delaymq_spark.planning.batch_ends import find_log_end
from delaymq_spark.planning.parts import plan
from delaymq_spark.scan import frames, walk
from delaymq_spark.store.segment_file import Skipped
from delaymq_spark_testing.store import comparable, reader_damage, reader_rows, source_rows, unpack_golden
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.core

SEGMENT_BYTES = 65_536
IPV4 = bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F])
IPV6 = bytes(15) + b"\x01" + bytes([0, 0, 0x2A, 0x9F])

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
NUMBERS = ("3", "0", "99", "Orders", "1", "-3", "+3", "--3", "007", "1_0", " 5", "²", "٣")
property_runs = st.one_of(
    st.dictionaries(
        st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "REAL_TOPIC", "REAL_QID", "a", "KEY", "\x7f"]),
        st.one_of(texts, st.sampled_from(NUMBERS)),
        max_size=6,
    ).map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs.items()).encode()),
    # Repeated names, pairs without a name or a value, separators at either end.
    st.lists(st.sampled_from(["KEYS", "x", "\x01", "\x02", "TAGS", "\x01v", "DELAY\x013"]), max_size=12).map(
        lambda words: "".join(words).encode()
    ),
)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, object]:
    topic = draw(
        st.sampled_from(
            [
                "Orders",
                "Zähler",
                SCHEDULE_TOPIC,
                TIMER_TOPIC,
                "RMQ_SYS_TRANS_HALF_TOPIC",
                "%RETRY%g",
                "%DLQ%g",
                "rmq_sys_x",
                "",
            ]
        )
    )
    queue_id, queue_offset = draw(st.integers(0, 17)), draw(st.integers(0, 1 << 40))
    properties = draw(property_runs)
    extra = draw(st.integers(0, 7))
    if extra == 0:
        properties += f"\x02{DUE}\x01{format_due(1_700_000_123_456, queue_id, queue_offset)}\x02DELAY\x015".encode()
    elif extra == 1:
        of_another = format_due(1_700_000_123_456, queue_id + 1, queue_offset)
        properties += f"\x02{DUE}\x01{of_another}\x02DELAY\x0118".encode()
    elif extra == 2:
        kind = draw(st.sampled_from(["delivered", "carried", "cancelled", "dropped", "nonsense"]))
        properties += f"\x02{MARK}\x01{kind}:{queue_id:04d}:{queue_offset:020d}:77".encode()
    return {
        "topic": topic.encode(),
        "queue_id": queue_id,
        "flag": draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        "queue_offset": queue_offset,
        "sys_flag": draw(st.sampled_from([0, 0, 0, 1, 4, 8, 12])),
        "born_timestamp_ms": draw(st.integers(0, 4_000_000_000_000)),
        "born_host": draw(st.sampled_from([IPV4, IPV4, IPV4, IPV6])),
        "store_host": draw(st.sampled_from([IPV4, IPV4, IPV4, IPV6])),
        "reconsume_times": draw(st.integers(0, 16)),
        "prepared_transaction_offset": draw(st.integers(0, 1 << 50)),
        "body": draw(st.binary(max_size=40)) * draw(st.sampled_from([0, 1, 1, 1, 30, 400])),
        "properties": properties,
    }


def write_log(path: Path, parts: list[dict[str, Any]], base: int = 0) -> list[Path]:
    """Write a log of these messages in files of SEGMENT_BYTES; return the files."""
    folder = path / "commitlog"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    data = bytearray()
    files: list[Path] = []

    def close_segment() -> None:
        file = folder / f"{base + len(files) * SEGMENT_BYTES:020d}"
        file.write_bytes(bytes(data).ljust(SEGMENT_BYTES, b"\0"))
        files.append(file)
        data.clear()

    for number, part in enumerate(parts):
        at = base + len(files) * SEGMENT_BYTES + len(data)
        record = encode_record(**part, physical_offset=at, store_timestamp_ms=1_700_000_000_000 + number)
        if len(record) + 8 > SEGMENT_BYTES - len(data):
            left = SEGMENT_BYTES - len(data)
            data += left.to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big")
            close_segment()
            at = base + len(files) * SEGMENT_BYTES
            record = encode_record(**part, physical_offset=at, store_timestamp_ms=1_700_000_000_000 + number)
        data += record
    close_segment()
    return files


def assert_same_as_reader(path: Path, split_bytes: int = 1 << 27) -> int:
    told: list[Skipped] = []
    rows = [comparable(row) for row in source_rows(path, split_bytes=split_bytes, told=told)]
    expected = list(reader_rows(path))
    assert [row["physical_offset"] for row in rows] == [row["physical_offset"] for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        assert row == wanted
    damage, (end, torn) = reader_damage(path)
    # Where a file was truncated, the reader names the file that should start there.
    expected_places = sorted((int(Path(file).name) + position, lost) for file, position, lost in damage)
    assert sorted((each.offset, each.lost_bytes) for each in told if not each.at_end) == expected_places
    assert all(each.offset == int(Path(each.file).name) + each.position for each in told)
    tails = [(each.offset, each.lost_bytes) for each in told if each.at_end]
    assert [tail for tail in tails if tail[0] == end] == ([(end, torn)] if torn else [])
    # The reader stops there; bytes in a later file that are not a record are worth reporting too.
    assert all(offset >= end for offset, _ in tails)
    return len(rows)


@pytest.fixture(params=["clean", "killed"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack_golden(request.param, tmp_path)


@pytest.mark.parametrize("split_bytes", [1 << 27, 4096])
def test_rows_of_a_store_of_the_real_broker_equal_those_of_the_reader(golden: Path, split_bytes: int) -> None:
    assert assert_same_as_reader(golden, split_bytes) == 107


def test_segment_is_split_only_at_records_named_by_a_queue(golden: Path) -> None:
    many = plan(str(golden), 4096)
    assert len(many.parts) > 4
    assert [part.end for part in many.parts[:-1]] == [part.start for part in many.parts[1:]]
    shutil.rmtree(golden / "consumequeue")
    assert [(part.start, part.end) for part in plan(str(golden), 4096).parts] == [(0, 16_384), (16_384, 31_699)]


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=st.lists(messages(), max_size=60), base=st.sampled_from([0, SEGMENT_BYTES * 3]))
def test_rows_of_arbitrary_records_equal_those_of_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[dict[str, Any]], base: int
) -> None:
    # Small stripes and windows, so that even a small log has many.
    monkeypatch.setattr(frames, "STRIPE_BYTES", 512)
    monkeypatch.setattr(walk, "WINDOW_BYTES", 8192)
    write_log(tmp_path, parts, base)
    assert assert_same_as_reader(tmp_path) == len(parts)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), manner=st.sampled_from(["zeros", "noise", "flip", "cut", "page"]))
@example(seed=43739, manner="cut")
@example(seed=1040158438, manner="zeros")  # no valid record follows the damaged end of a file, but a damaged one
@example(seed=2509225, manner="cut")  # the last file has three bytes, and the previous one ends within a record
def test_rows_and_skipped_parts_of_damaged_logs_equal_those_of_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, manner: str
) -> None:
    monkeypatch.setattr(frames, "STRIPE_BYTES", 512)
    monkeypatch.setattr(walk, "WINDOW_BYTES", 8192)
    source = random.Random(seed)
    parts = [_message(source.randbytes(source.choice([0, 20, 900, 5000]))) for _ in range(source.randrange(1, 60))]
    files = write_log(tmp_path, parts)
    for _ in range(source.randrange(1, 5)):
        file = source.choice(files)
        data = bytearray(file.read_bytes())
        if data:
            file.write_bytes(wounded(data, source, manner))
    assert_same_as_reader(tmp_path)


@pytest.mark.parametrize(("has_following", "end_is_damaged", "rows"), [
    (False, True, 1), (False, False, 3), (True, True, 4), (True, False, 5),
])  # fmt: skip
def test_damaged_record_behind_a_damaged_end_of_a_file_is_after_the_end_of_the_log(
    tmp_path: Path, has_following: bool, end_is_damaged: bool, rows: int
) -> None:
    """The record is only read if a valid one follows it, here in a third file."""
    large = _message(bytes([7]) * 60_000)
    parts = [large, _message(), large] + [large, _message()] * has_following
    files = write_log(tmp_path, parts)
    if end_is_damaged:
        data = bytearray(files[0].read_bytes())
        after_first = int.from_bytes(data[:4], "big")
        data[after_first:] = bytes(len(data) - after_first)
        files[0].write_bytes(data)
    data = bytearray(files[1].read_bytes())
    data[1_000:1_100] = bytes(100)  # within the body
    files[1].write_bytes(data)
    assert assert_same_as_reader(tmp_path) == rows
    assert find_log_end(str(tmp_path))[0] == reader_damage(tmp_path)[1][0]


@pytest.mark.parametrize("window_bytes", [512, 8192])
def test_damaged_store_time_before_a_hole_hides_no_later_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(walk, "WINDOW_BYTES", window_bytes)
    (file,) = write_log(tmp_path, [_message()] * 60)
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[30 * size + 57] = 1  # in the store time, which is then centuries in the future
    data[31 * size + 4] ^= 1  # in the magic number
    file.write_bytes(data)
    assert assert_same_as_reader(tmp_path) == 59


def wounded(data: bytearray, source: random.Random, manner: str) -> bytearray:
    """Return `data` with one damaged place, mostly where a record was written."""
    at = source.randrange(len(data) if source.random() < 0.2 else max(1, len(data.rstrip(b"\0"))))
    length = min(source.choice([1, 40, 3000]), len(data) - at)
    if manner == "zeros":
        data[at : at + length] = bytes(length)
    elif manner == "noise":
        data[at : at + length] = source.randbytes(length)
    elif manner == "flip":
        data[at] ^= 1 << source.randrange(8)
    elif manner == "page":
        at -= at % 4096
        data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    else:
        del data[at:]
    return data


def _message(body: bytes = b"body", **changes: object) -> dict[str, Any]:
    return {
        "topic": b"Orders", "queue_id": 0, "flag": 0, "queue_offset": 0, "sys_flag": 0, "born_timestamp_ms": 1,
        "born_host": IPV4, "store_host": IPV4, "reconsume_times": 0, "prepared_transaction_offset": 0, "body": body,
        "properties": b"KEYS\x01k", **changes,
    }  # fmt: skip


def test_body_that_contains_valid_records_gives_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "STRIPE_BYTES", 256)
    outer, body = _message(b""), bytearray()
    first_body_byte = 88
    while len(body) < 40_000:
        body += encode_record(
            **_message(b"inner"), physical_offset=first_body_byte + len(body), store_timestamp_ms=1_700_000_000_000
        )
    write_log(tmp_path, [_message(bytes(body)), outer, outer])
    assert assert_same_as_reader(tmp_path) == 3
    # No part starts within that body either: no queue refers to the records in it.
    assert len(plan(str(tmp_path), 4096).parts) == 1


def test_record_larger_than_a_window_gives_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "WINDOW_BYTES", 1024)
    write_log(tmp_path, [_message(), _message(bytes(30_000)), _message(), _message(bytes(50_000)), _message()])
    assert assert_same_as_reader(tmp_path) == 5


def test_time_out_of_range_is_null(tmp_path: Path) -> None:
    write_log(tmp_path, [_message(born_timestamp_ms=(1 << 63) - 1), _message(born_timestamp_ms=-(1 << 63))])
    assert [row["born_time"] for row in source_rows(tmp_path)] == [None, None]


def test_invalid_utf8_becomes_replacement_characters(tmp_path: Path) -> None:
    write_log(tmp_path, [_message(properties=b"KEYS\x01\xff\xfe\x02TAGS\x01\xc3\xa4"), _message()])
    assert [(row["keys"], row["tags"]) for row in source_rows(tmp_path)] == [("\ufffd\ufffd", "ä"), ("k", None)]


def test_altered_body_gives_a_row_with_a_checksum_mismatch(tmp_path: Path) -> None:
    (file,) = write_log(tmp_path, [_message(), _message(b"change me"), _message()])
    data = file.read_bytes()
    file.write_bytes(data.replace(b"change me", b"changed ?"))
    assert [row["crc_ok"] for row in source_rows(tmp_path)] == [True, False, True]
    assert [row["crc_ok"] for row in source_rows(tmp_path, verify="false")] == [None, None, None]


def test_skipped_parts_have_file_position_length_and_reason(tmp_path: Path) -> None:
    files = write_log(tmp_path, [_message(bytes(3000)) for _ in range(60)])
    data = bytearray(files[0].read_bytes())
    data[9000:9050] = b"\xee" * 50
    size = int.from_bytes(data[:4], "big")
    data[2 * size : 2 * size + 4] = b"\xff\xff\xff\xff"
    files[0].write_bytes(data)
    os.remove(files[1])
    (tmp_path / "commitlog" / "notes.txt").write_text("mine")
    (tmp_path / "commitlog" / f"{SEGMENT_BYTES * 40:020d}").mkdir()
    (tmp_path / "delaymq").mkdir()
    (tmp_path / "delaymq" / "state.json").write_text('{"formatVersion":7}')
    told = skipped(tmp_path)
    log = tmp_path / "commitlog"
    assert [(each.file, each.position, each.lost_bytes) for each in told if each.offset >= 0] == [
        (str(files[0]), 2 * size, size),
        (str(files[1]), 0, SEGMENT_BYTES),
        (str(log / f"{SEGMENT_BYTES * 40:020d}"), 0, SEGMENT_BYTES),
    ]
    assert [each.reason.split(":")[0] for each in told if each.offset < 0] == [
        "its name is not that of a segment",
        "the store has format version 7, but this program supports 4",
    ]
    assert str(told[2]).startswith(f"{files[0]}, byte {2 * size} (offset {2 * size}): {size} bytes skipped: size -1")


def test_record_of_rocketmq_5_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    (file,) = write_log(tmp_path, [_message(), _message(), _message()])
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[size + 4 : size + 8] = (0xDAA320AB).to_bytes(4, "big")
    file.write_bytes(data)
    assert len(source_rows(tmp_path)) == 2
    (told,) = skipped(tmp_path)
    assert (told.position, told.lost_bytes) == (size, size)
    assert told.reason.endswith("(a record of RocketMQ 5)")


def test_file_deleted_or_truncated_after_planning_is_reported(tmp_path: Path) -> None:
    from delaymq_spark.source.options import parse_options
    from delaymq_spark.source.read import batches

    files = write_log(tmp_path, [_message(bytes(3000)) for _ in range(60)])
    found = plan(str(tmp_path), 1 << 27)
    os.remove(files[0])
    os.truncate(files[1], 10_000)
    options = parse_options({"path": str(tmp_path)})
    told: list[Skipped] = []
    counts = [sum(batch.num_rows for batch in batches(part, options, told.append)) for part in found.parts]
    assert counts[0] == 0
    assert counts[1] == 10_000 // (found.parts[2].start and 3000 + 91 + 6 + 6)
    assert [(each.file, each.reason) for each in told] == [
        (str(files[0]), "the file was deleted in the meantime"),
        (str(files[1]), "the file was truncated while it was read"),
    ]


def test_records_appended_after_planning_are_not_read(tmp_path: Path) -> None:
    from delaymq_spark.source.options import parse_options
    from delaymq_spark.source.read import batches

    write_log(tmp_path, [_message() for _ in range(20)])
    found = plan(str(tmp_path), 1 << 27)
    write_log(tmp_path, [_message() for _ in range(30)])
    options = parse_options({"path": str(tmp_path)})
    assert sum(batch.num_rows for part in found.parts for batch in batches(part, options)) == 20


def test_empty_log_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert source_rows(tmp_path) == []
    (tmp_path / "commitlog" / ("0" * 20)).write_bytes(bytes(SEGMENT_BYTES))
    assert source_rows(tmp_path) == []
    assert skipped(tmp_path) == []
