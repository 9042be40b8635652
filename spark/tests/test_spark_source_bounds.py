"""Memory bounds of tasks, rows for skipped parts, and lazily created columns."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from itertools import count, islice, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delaymq.message.names import OP_HALF_TOPIC
from delaymq.message.record import encode_record
from delaymq_spark import skipped
from delaymq_spark.planning.parts import plan
from delaymq_spark.source.data_source import RocketMqStoreSource
from delaymq_spark.source.options import parse_options
from delaymq_spark.source.read import MAX_BATCH_ROWS, batches

pytestmark = pytest.mark.core

HOST = bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F])
MIB = 1 << 20


def write_segment(path: Path, records: Iterator[tuple[bytes, bytes, bytes]], log_bytes: int) -> Path:
    """Write one segment of `log_bytes` with records of these topics, bodies and properties."""
    data = bytearray()
    for number in count():
        if len(data) >= log_bytes:
            break
        topic, body, properties = next(records)
        data += encode_record(
            topic=topic, queue_id=0, flag=0, queue_offset=number, physical_offset=len(data), sys_flag=0,
            born_timestamp_ms=1, born_host=HOST, store_timestamp_ms=1_700_000_000_000 + number, store_host=HOST,
            reconsume_times=0, prepared_transaction_offset=0, body=body, properties=properties,
        )  # fmt: skip
    (path / "commitlog").mkdir(parents=True)
    file = path / "commitlog" / ("0" * 20)
    file.write_bytes(data + bytes(64))
    return file


def read(path: Path, columns: str) -> Iterator[pa.RecordBatch]:
    source = RocketMqStoreSource({"path": str(path), "columns": columns})
    reader = source.reader(source.schema())
    for partition in reader.partitions():
        yield from reader.read(partition)


def peak_bytes(path: Path, columns: str) -> tuple[int, int]:
    """Return the peak memory of a complete read in Python, NumPy and Arrow, and the number of rows."""
    rows, arrow = 0, 0
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    for batch in read(path, columns):
        rows += batch.num_rows
        assert batch.num_rows <= MAX_BATCH_ROWS
        arrow = max(arrow, pa.total_allocated_bytes() - before)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak + arrow, rows


MANY_PROPERTIES = b"\x02".join(b"%d\x01v" % number for number in range(5000))[:32_000]


@pytest.mark.parametrize(
    ("topic", "body", "properties", "most_mib"),
    [
        (b"t", b"", b"", 60),
        (b"Orders", b"", b"KEYS\x01" + b"k" * 32_000, 40),
        (b"Orders", b"", MANY_PROPERTIES, 90),
        (b"Orders", bytes(4 * MIB), b"KEYS\x01k", 40),
    ],
    ids=["tiny", "one large property", "many properties", "large bodies"],
)
def test_memory_does_not_grow_with_the_partition(
    tmp_path: Path, topic: bytes, body: bytes, properties: bytes, most_mib: int
) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    write_segment(small, repeat((topic, body, properties)), 6 * MIB)
    write_segment(large, repeat((topic, body, properties)), 18 * MIB)
    of_small, small_rows = peak_bytes(small, "*")
    of_large, large_rows = peak_bytes(large, "*")
    assert large_rows > 2 * small_rows
    assert of_large < 1.2 * of_small
    assert of_large < most_mib * MIB


def test_large_record_does_not_keep_its_window_large(tmp_path: Path) -> None:
    records = iter([(b"Orders", bytes(40 * MIB), b""), *repeat((b"Orders", b"b" * 1000, b""), 30_000)])
    write_segment(tmp_path, records, 60 * MIB)
    (part,) = plan(str(tmp_path), 1 << 30).parts
    tracemalloc.start()
    found = batches(part, parse_options({"path": str(tmp_path), "columns": "size"}))
    next(found)
    held = [tracemalloc.get_traced_memory()[0] for _ in islice(found, 3)]
    tracemalloc.stop()
    assert held[-1] < 20 * MIB


def test_skipped_parts_become_rows_on_request(tmp_path: Path) -> None:
    file = write_segment(tmp_path, repeat((b"Orders", b"b" * 500, b"KEYS\x01k")), 60_000)
    (tmp_path / "commitlog" / "notes.txt").write_text("mine")
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[3 * size + 4] ^= 0xFF
    file.write_bytes(data)
    rows = [row for batch in read(tmp_path, "size,kind,skipped") for row in batch.to_pylist()]
    told = sorted((json.loads(row["skipped"]) for row in rows if row["skipped"]), key=lambda each: each["offset"])
    assert [(each["file"], each["position"], each["lostBytes"], each["reason"], each["atEnd"]) for each in told] == [
        (each.file, each.position, each.lost_bytes, each.reason, each.at_end) for each in skipped(tmp_path)
    ]
    assert len(told) == 2
    assert all(row["size"] is None and row["kind"] is None for row in rows if row["skipped"])
    messages = [row for row in rows if row["skipped"] is None]
    assert len(messages) == sum(batch.num_rows for batch in read(tmp_path, "*"))
    assert {row["size"] for row in messages} == {size}


def test_half_message_offset_of_an_op_record_is_a_column(tmp_path: Path) -> None:
    op = OP_HALF_TOPIC.encode()
    bodies = [b"17", b"", b"9" * 18, b"9" * 19, b"-1", b"\xff1", "٣".encode(), b"1 ", b"007"]
    records = [(b"Orders", b"5", b""), *((op, body, b"TAGS\x01d") for body in bodies), (b"Orders", b"6", b"")]
    write_segment(tmp_path, iter(records), sum(91 + len(b) + len(t) + len(p) for t, b, p in records))
    (batch,) = read(tmp_path, "half_offset")
    assert batch["half_offset"].to_pylist() == [None, 17, None, 10**18 - 1, *[None] * 5, 7, None]


def test_column_is_created_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from delaymq_spark.source import columns as scan_columns

    write_segment(tmp_path, repeat((b"Orders", b"b" * 500, b"KEYS\x01k")), 60_000)
    made: list[str] = []
    column = scan_columns.Rows.column

    def noted(rows: scan_columns.Rows, name: str) -> Any:
        made.append(name)
        return column(rows, name)

    monkeypatch.setattr(scan_columns.Rows, "column", noted)
    monkeypatch.setattr(scan_columns, "Properties", None)
    assert sum(batch.num_rows for batch in read(tmp_path, "topic,size")) > 0
    assert set(made) == {"topic", "size"}
