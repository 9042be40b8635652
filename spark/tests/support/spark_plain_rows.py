"""The rows of a store by the broker's own reader, one Python object at a time: independent of the data source."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from delaymq.message import names
from delaymq.message.flags import TRANSACTION_ROLLBACK, transaction_type
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels
from delaymq.message.marks import parse_due, parse_mark
from delaymq.message.record import Record
from delaymq.store.kinds import Kind, kind_of
from delaymq.store.reader import StoreReader
from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic string, queue_id int, queue_offset long, physical_offset long, segment long, size int, store_time timestamp,"
    " born_time timestamp, sys_flag int, reconsume_times int, body_bytes int, kind string, real_topic string,"
    " real_queue_id int, delay_level int, due_time timestamp, keys string, unique_key string, origin_queue_id int,"
    " origin_offset long, half_offset long"
)
_KINDS = {Kind.DELIVERED: "delivered", Kind.DEAD_LETTER: "dead_letter", Kind.MARK: "system", Kind.FILLER: "system"}
_LEVELS = DelayLevels.parse(DEFAULT_LEVELS)


def plain_messages(spark: SparkSession, path: Path) -> DataFrame:
    """The store's records as a frame."""
    reader = StoreReader(path)
    segments = reader.segments()
    rows = []
    for record in reader.records():
        segment = max(each.base for each in segments if each.base <= record.physical_offset)
        rows.append(_row(record, segment))
    return spark.createDataFrame(rows, SCHEMA)


def _row(record: Record, segment: int) -> tuple[object, ...]:
    properties = record.properties
    mark = parse_mark(properties.get(names.MARK, ""))
    kind = kind_of(record)
    level = properties.get(names.DELAY)
    due_ms = None
    if record.topic == names.SCHEDULE_TOPIC and transaction_type(record.sys_flag) != TRANSACTION_ROLLBACK:
        due_ms = parse_due(properties.get(names.DUE, ""), record.queue_id, record.queue_offset)
        if due_ms is None:
            due_ms = record.store_timestamp_ms + _LEVELS.delay_ms(int(level or 1))
    queue = properties.get(names.REAL_QUEUE_ID)
    return (
        record.topic, record.queue_id, record.queue_offset, record.physical_offset, segment, record.size,
        _time(record.store_timestamp_ms), _time(record.born_timestamp_ms), record.sys_flag, record.reconsume_times,
        len(record.body), _KINDS.get(kind, kind.value), properties.get(names.REAL_TOPIC),
        None if queue is None else int(queue), None if level is None else int(level), _time(due_ms),
        properties.get(names.KEYS), properties.get(names.UNIQUE_KEY),
        None if mark is None else mark.queue_id, None if mark is None else mark.queue_offset,
        int(record.body) if record.topic == names.OP_HALF_TOPIC else None,
    )  # fmt: skip


def _time(time_ms: int | None) -> datetime | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
