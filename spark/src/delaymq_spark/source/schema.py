"""Columns of `rocketmq_store`: names and types."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TEXT = (StringType(), pa.string())
_INT = (IntegerType(), pa.int32())
_LONG = (LongType(), pa.int64())
_TIME = (TimestampType(), pa.timestamp("us", tz="UTC"))

COLUMNS: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "topic": _TEXT,
    "queue_id": _INT,
    "queue_offset": _LONG,
    "physical_offset": _LONG,
    "segment": _LONG,
    "size": _INT,
    "store_time": _TIME,
    "born_time": _TIME,
    "flag": _INT,
    "sys_flag": _INT,
    "reconsume_times": _INT,
    "prepared_offset": _LONG,
    "born_host": _TEXT,
    "store_host": _TEXT,
    "body_bytes": _INT,
    "body_crc": _INT,
    "kind": _TEXT,
    "real_topic": _TEXT,
    "real_queue_id": _INT,
    "delay_level": _INT,
    "due_time": _TIME,
    "keys": _TEXT,
    "tags": _TEXT,
    "unique_key": _TEXT,
    "mark": _TEXT,
    "origin_queue_id": _INT,
    "origin_offset": _LONG,
    "timer_record": _TEXT,
    "timer_out_ms": _LONG,
    "recalled_key": _TEXT,
    "identity": _LONG,
    "mark_identity": _LONG,
    "mark_due_time": _TIME,
    "next_due_time": _TIME,
    "delay_group": _TEXT,
    "run": _LONG,
    "schedule_id": _TEXT,
    "half_offset": _LONG,
    "crc_ok": (BooleanType(), pa.bool_()),
    "properties": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
    "body": (BinaryType(), pa.binary()),
}
SKIPPED: Final = "skipped"
"""A column returned only if requested by name: each skipped part is a row, with null in all other columns."""
TYPES: Final = {**COLUMNS, SKIPPED: _TEXT}
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("half_offset", "properties", "body"))
"""Bodies are large, maps of properties are expensive, and few users need the half offset."""


def spark_schema(columns: tuple[str, ...]) -> StructType:
    """Return Spark's schema of these columns."""
    return StructType([StructField(name, TYPES[name][0]) for name in columns])


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return Arrow's schema of these columns."""
    return pa.schema([(name, TYPES[name][1]) for name in columns])
