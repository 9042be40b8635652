"""Stores for tests of the data source, and its rows without Spark, for comparison with the broker's own reader."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

from delaymq.message import names
from delaymq.message.ids import unpack_host
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels
from delaymq.message.marks import parse_due, parse_mark
from delaymq.message.record import Record
from delaymq.store.reader import Damage, LogEnd, StoreReader
from delaymq_spark.planning.parts import plan
from delaymq_spark.source.options import parse_options
from delaymq_spark.source.read import batches
from delaymq_spark.source.schema import COLUMNS
from delaymq_spark.store.segments import Skipped

from delaymq_spark_testing.plain_timed import kind_name, timed_facts

GOLDEN = Path(__file__).parents[3] / "broker_image" / "tests" / "golden"
_LEVELS = DelayLevels.parse(DEFAULT_LEVELS)


def unpack_golden(name: str, folder: Path) -> Path:
    """Unpack the golden store `clean` or `killed` into `folder`, and return its path."""
    with tarfile.open(GOLDEN / f"store-{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return next(path.parent for path in folder.rglob("commitlog"))


def source_rows(
    path: Path | str, *, split_bytes: int = 1 << 27, told: list[Skipped] | None = None, **options: str
) -> list[dict[str, Any]]:
    """Return the data source's rows, in the order of its parts, without Spark."""
    told = [] if told is None else told
    parsed = parse_options({"path": str(path), "columns": "*", "verify": "true", **options})
    parsed = replace(parsed, split_bytes=split_bytes)
    found = plan(parsed.path, parsed.split_bytes)
    told.extend(found.skipped)
    return [row for part in found.parts for batch in batches(part, parsed, told.append) for row in batch.to_pylist()]


def reader_rows(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yield the expected rows, from the broker's own reader."""
    reader = StoreReader(path)
    bases = [segment.base for segment in reader.segments()]
    for record in reader.records(check_crc=False):
        yield expected_row(record, max(base for base in bases if base <= record.physical_offset))


def reader_damage(path: Path | str) -> tuple[list[tuple[str, int, int]], tuple[int, int]]:
    """Return file, byte and length of each damaged place; and the end of the log, and the torn bytes after it."""
    damage, end = [], (0, 0)
    for item in StoreReader(path).walk(check_crc=False):
        if isinstance(item, Damage):
            damage.append((item.path, item.position, item.lost_bytes))
        elif isinstance(item, LogEnd):
            end = item.offset, item.torn_bytes
    return damage, end


def expected_row(record: Record, segment: int) -> dict[str, Any]:
    """Return a row, computed by the simplest code for each column; times in ms."""
    # Invalid UTF-8 becomes U+FFFD in Spark, whereas the reader keeps such bytes as surrogates.
    properties = {_shown(name): _shown(value) for name, value in record.properties.items()}
    mark = parse_mark(properties.get(names.MARK, ""))
    timed = timed_facts(record)
    kind = kind_name(record)
    level = _int(properties.get(names.DELAY))
    due_ms = None
    if record.topic == names.SCHEDULE_TOPIC and kind == "delayed" and level is not None and level > 0:
        due_ms = parse_due(properties.get(names.DUE, ""), record.queue_id, record.queue_offset)
        if due_ms is None:
            due_ms = record.store_timestamp_ms + _LEVELS.delay_ms(level)
    if timed.due_ms is not None:
        due_ms = timed.due_ms
    if kind in ("normal", "delivered") and names.is_system_topic(record.topic):
        kind = "system"  # the topic decides, whatever its properties say
    row = {
        "topic": _shown(record.topic),
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "segment": segment,
        "size": record.size,
        "store_time": _time(record.store_timestamp_ms),
        "born_time": _time(record.born_timestamp_ms),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_transaction_offset,
        "born_host": _host(record.born_host),
        "store_host": _host(record.store_host),
        "body_bytes": len(record.body),
        "body_crc": record.body_crc,
        "kind": kind,
        "real_topic": None if timed.topic is None else _shown(timed.topic),
        "delay_group": None if timed.group is None else _shown(timed.group),
        "real_queue_id": _int(properties.get(names.REAL_QUEUE_ID), canonical=True),
        "delay_level": level,
        "due_time": None if due_ms is None else _time(due_ms),
        "keys": properties.get(names.KEYS),
        "tags": properties.get(names.TAGS),
        "unique_key": properties.get(names.UNIQUE_KEY),
        "mark": timed.mark if mark is None else mark.kind.value,
        "origin_queue_id": timed.queue and timed.queue[0] if mark is None else mark.queue_id,
        "origin_offset": timed.queue and timed.queue[1] if mark is None else mark.queue_offset,
        "timer_record": timed.timer_record,
        "timer_out_ms": timed.timer_out_ms,
        "recalled_key": properties.get(names.TIMER_DELETE_UNIQUE_KEY),
        "identity": timed.identity,
        "mark_identity": timed.mark_identity,
        "mark_due_time": None if timed.mark_due_ms is None else _time(timed.mark_due_ms),
        "next_due_time": None if timed.next_due_ms is None else _time(timed.next_due_ms),
        "run": timed.run,
        "schedule_id": properties.get(names.DELAY_SCHEDULE_ID),
        "half_offset": int(record.body) if record.topic == names.OP_HALF_TOPIC and record.body.isdigit() else None,
        "crc_ok": crc32(record.body) & 0x7FFFFFFF == record.body_crc,
        "properties": properties,
        "body": record.body,
    }
    assert row.keys() == COLUMNS.keys()
    return row


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the data source in the form of `expected_row`."""
    times = ("store_time", "born_time", "due_time", "mark_due_time", "next_due_time")
    return {
        name: round(value.timestamp() * 1000)
        if name in times and value is not None
        else dict(value)
        if name == "properties"
        else value
        for name, value in row.items()
    }


def _shown(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _host(packed: bytes) -> str:
    address, port = unpack_host(packed)
    return f"[{address}]:{port}" if len(packed) == 20 else f"{address}:{port}"


def _time(ms: int) -> int | None:
    """Return the time, or None outside the years 1 to 9999 without two days at each end."""
    return ms if -62_135_424_000_000 <= ms <= 253_402_127_999_999 else None


def _int(text: str | None, *, canonical: bool = False) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    in_range = -(1 << 31) <= number < 1 << 31
    return number if in_range and (not canonical or str(number) == text) else None
