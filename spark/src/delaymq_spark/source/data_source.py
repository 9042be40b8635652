"""The data source `rocketmq_store`: one row for each message of a store, in batch and streaming."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from delaymq_spark.planning.parts import plan
from delaymq_spark.source.options import OptionError, SourceOptions, parse_options
from delaymq_spark.source.partition import partitions_of, read_partition
from delaymq_spark.source.schema import SKIPPED, TYPES, spark_schema
from delaymq_spark.source.stream import StoreStreamReader
from delaymq_spark.source.tables import read_options, table_options, with_table_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

FORMAT: Final = "rocketmq_store"


def register(spark: SparkSession) -> None:
    """Register the format in a session; unnecessary if `pyspark_rocketmq_store` is on the driver's Python path.

    With a local master, Spark starts its Python processes with the current interpreter, unless PYSPARK_PYTHON or
    spark.pyspark.python is set: `python3` on the PATH may lack this package.
    """
    context = spark.sparkContext
    stated = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not stated and sys.executable and (context.master or "").partition("[")[0] in ("local", "local-cluster"):
        # Functions registered from now on use this interpreter.
        context.pythonExec = sys.executable
    spark.dataSource.register(RocketMqStoreSource)


class RocketMqStoreSource(DataSource):
    """`spark.read.format("rocketmq_store").option("path", STORE).load()`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema by the option `columns`. OptionError, StorePathError."""
        of_table = table_options(self.options)
        if of_table is None:
            return spark_schema(parse_options(self.options).columns)
        return with_table_options(spark_schema(parse_options(of_table).columns), of_table)

    def reader(self, schema: StructType) -> StoreBatchReader:
        """Return the batch reader for the columns of `schema`, which a user may have given."""
        options = self._options(schema)
        # Rows of skipped parts have no topic and no time: only Spark can evaluate a filter on them.
        takes_filters = options.pushdown and SKIPPED not in options.columns
        return FilteringReader(options) if takes_filters else StoreBatchReader(options)

    def streamReader(self, schema: StructType) -> StoreStreamReader:  # noqa: N802
        """Return the streaming reader. OptionError for several stores."""
        options = self._options(schema)
        if len(options.paths) > 1:
            raise OptionError(
                f"a stream reads one store, but {len(options.paths)} were given: start one stream per store"
            )
        return StoreStreamReader(options)

    def _options(self, schema: StructType) -> SourceOptions:
        for field in schema.fields:
            if field.name not in TYPES:
                raise OptionError(f"the schema contains the unknown column {field.name[:60]!r}: use {', '.join(TYPES)}")
            if field.dataType != TYPES[field.name][0]:
                expected = TYPES[field.name][0].simpleString()
                raise OptionError(
                    f"the schema declares {field.name} as {field.dataType.simpleString()}: use {expected}"
                )
        return replace(parse_options(read_options(self.options, schema)), columns=tuple(schema.fieldNames()))


class StoreBatchReader(DataSourceReader):
    """Reads the records that the store contains when the read is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the log; unreadable ones are reported in the driver's log."""
        options = self.options
        return [
            partition
            for path in options.paths
            for partition in partitions_of(
                plan(path, options.split_bytes, from_ms=options.from_ms, until_ms=options.until_ms), options
            )
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Return the batches of a part; Spark passes None if there are no parts."""
        return read_partition(partition, self.options)


class FilteringReader(StoreBatchReader):
    """Batch reader that evaluates comparisons of topic and store_time itself.

    This is a separate class, since Spark rejects any reader with `pushFilters` while its setting is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Yield the filters that remain for Spark."""
        for each in filters:
            narrowed = _narrowed(self.options, each)
            if narrowed is None:
                yield each
            else:
                self.options = narrowed


def _narrowed(options: SourceOptions, condition: Any) -> SourceOptions | None:
    """Return the options narrowed by the filter, or None if Spark must evaluate it."""
    column, value = getattr(condition, "attribute", None), getattr(condition, "value", None)
    if column == ("topic",) and isinstance(condition, (EqualTo, In)):
        asked = frozenset({value} if isinstance(condition, EqualTo) else condition.value)
        if not all(isinstance(topic, str) for topic in asked):
            return None
        return replace(options, topics=asked if options.topics is None else options.topics & asked)
    if column == ("store_time",) and isinstance(value, datetime):
        # Store times are in whole ms; the time of the filter may lie between two of them.
        micros = round((value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
        if isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
            from_ms = micros // 1000 + 1 if isinstance(condition, GreaterThan) else -(-micros // 1000)
            return replace(options, from_ms=from_ms if options.from_ms is None else max(from_ms, options.from_ms))
        if isinstance(condition, (LessThan, LessThanOrEqual)):
            until_ms = -(-micros // 1000) if isinstance(condition, LessThan) else micros // 1000 + 1
            return replace(options, until_ms=until_ms if options.until_ms is None else min(until_ms, options.until_ms))
    return None
