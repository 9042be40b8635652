"""Rows of a store from the broker's own reader, one Python object at a time: independent of the data source."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from delaymq.message import names
from delaymq.message.flags import TRANSACTION_ROLLBACK, transaction_type
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels
from delaymq.message.marks import parse_due, parse_mark
from delaymq.message.record import Record
from delaymq.store.reader import StoreReader
from delaymq_spark.source.schema import arrow_schema

from delaymq_spark_testing.plain_timed import kind_name, timed_facts

COLUMNS = (
    "topic", "queue_id", "queue_offset", "physical_offset", "segment", "size", "store_time", "born_time", "sys_flag",
    "reconsume_times", "body_bytes", "body_crc", "kind", "real_topic", "real_queue_id", "delay_level", "due_time",
    "keys", "unique_key", "mark", "origin_queue_id", "origin_offset", "timer_record", "timer_out_ms", "recalled_key",
    "identity", "mark_identity", "mark_due_time", "next_due_time", "delay_group", "run", "schedule_id",
    "half_offset",
)  # fmt: skip
_LEVELS = DelayLevels.parse(DEFAULT_LEVELS)


def plain_messages(path: Path) -> pa.Table:
    """Return the store's records as a table, in order of the log."""
    reader = StoreReader(path)
    segments = reader.segments()
    rows = []
    for record in reader.records():
        segment = max(each.base for each in segments if each.base <= record.physical_offset)
        rows.append(dict(zip(COLUMNS, _row(record, segment), strict=True)))
    return pa.Table.from_pylist(rows, schema=arrow_schema(COLUMNS))


def _row(record: Record, segment: int) -> tuple[object, ...]:
    properties = record.properties
    mark = parse_mark(properties.get(names.MARK, ""))
    level = properties.get(names.DELAY)
    due_ms = None
    if record.topic == names.SCHEDULE_TOPIC and transaction_type(record.sys_flag) != TRANSACTION_ROLLBACK:
        due_ms = parse_due(properties.get(names.DUE, ""), record.queue_id, record.queue_offset)
        if due_ms is None:
            due_ms = record.store_timestamp_ms + _LEVELS.delay_ms(int(level or 1))
    timed = timed_facts(record)
    if timed.due_ms is not None:
        due_ms = timed.due_ms
    queue = properties.get(names.REAL_QUEUE_ID)
    return (
        record.topic, record.queue_id, record.queue_offset, record.physical_offset, segment, record.size,
        _time(record.store_timestamp_ms), _time(record.born_timestamp_ms), record.sys_flag, record.reconsume_times,
        len(record.body), record.body_crc, kind_name(record), timed.topic,
        None if queue is None else int(queue), None if level is None else int(level), _time(due_ms),
        properties.get(names.KEYS), properties.get(names.UNIQUE_KEY),
        timed.mark if mark is None else mark.kind.value,
        *((timed.queue or (None, None)) if mark is None else (mark.queue_id, mark.queue_offset)),
        timed.timer_record, timed.timer_out_ms, properties.get(names.TIMER_DELETE_UNIQUE_KEY), timed.identity,
        timed.mark_identity, _time(timed.mark_due_ms),
        _time(timed.next_due_ms),
        timed.group,
        timed.run,
        properties.get(names.DELAY_SCHEDULE_ID),
        int(record.body) if record.topic == names.OP_HALF_TOPIC else None,
    )  # fmt: skip


def _time(time_ms: int | None) -> datetime | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
