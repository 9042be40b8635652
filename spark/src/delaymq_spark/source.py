"""The data source `rocketmq_store`: one row for each message of a store, in batch and streaming."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from delaymq_spark.segments_plan import Part, log_start, plan
from delaymq_spark.source_options import OptionError, SourceOptions, parse_options
from delaymq_spark.source_read import batches, log_skipped
from delaymq_spark.source_schema import COLUMNS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

FORMAT: Final = "rocketmq_store"
_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Make the format known to a session; not needed where `pyspark_rocketmq_store` is on the path of the driver."""
    spark.dataSource.register(RocketMqStoreSource)


class StorePartition(InputPartition):
    """A part of the log for one task."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self.part = part


class RocketMqStoreSource(DataSource):
    """`spark.read.format("rocketmq_store").option("path", STORE).load()`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """By the option `columns`. OptionError, StorePathError."""
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> StoreBatchReader:
        """The batch reader for the columns of `schema`, which a user may have given."""
        options = self._options(schema)
        return FilteringReader(options) if options.pushdown else StoreBatchReader(options)

    def streamReader(self, schema: StructType) -> StoreStreamReader:  # noqa: N802
        """The streaming reader."""
        return StoreStreamReader(self._options(schema))

    def _options(self, schema: StructType) -> SourceOptions:
        for field in schema.fields:
            if field.name not in COLUMNS:
                raise OptionError(f"the schema's {field.name[:60]!r} is no column: there are {', '.join(COLUMNS)}")
            if field.dataType != COLUMNS[field.name][0]:
                expected = COLUMNS[field.name][0].simpleString()
                raise OptionError(f"the schema has {field.name} as {field.dataType.simpleString()}: it is {expected}")
        return replace(parse_options(self.options), columns=tuple(schema.fieldNames()))


class StoreBatchReader(DataSourceReader):
    """Reads what is in the store at the instant of planning."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Parts of the log; what cannot be read at all is told in the driver's log."""
        found = plan(self.options.path, self.options.split_bytes)
        for skipped in found.skipped:
            log_skipped(skipped)
        return [StorePartition(part) for part in found.parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Batches of a part; Spark asks for None when there are no parts."""
        return batches(partition.part, self.options) if isinstance(partition, StorePartition) else iter(())


class FilteringReader(StoreBatchReader):
    """Takes over comparisons of topic and store_time (Spark 4.1 and later).

    A class of its own, since Spark refuses every reader that could do so while its setting is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Yields what is left to Spark."""
        for each in filters:
            narrowed = _narrowed(self.options, each)
            if narrowed is None:
                yield each
            else:
                self.options = narrowed


class StoreStreamReader(DataSourceStreamReader):
    """Follows a log that grows; an offset is the physical offset behind a whole record."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._known_end: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where a stream without a checkpoint begins."""
        wanted = self.options.starting_offset
        if wanted == "latest":
            return self.latestOffset()
        start = log_start(self.options.path)
        if wanted == "earliest":
            return {"offset": start}
        if int(wanted) < start:
            _log.warning("the log begins at offset %d: startingOffset %s is no longer there", start, wanted)
        return {"offset": max(int(wanted), start)}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """Behind the last whole record; only what is new since the last look is walked through."""
        found = plan(self.options.path, self.options.split_bytes, start=self._known_end)
        self._known_end = found.end
        return {"offset": found.end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Parts between two offsets; what the broker has deleted before it was read is told."""
        found = plan(self.options.path, self.options.split_bytes, start=start["offset"], end=end["offset"])
        if found.start > start["offset"]:
            lost = min(found.start, end["offset"]) - start["offset"]
            _log.warning("%d bytes from offset %d on were deleted before they were read", lost, start["offset"])
        for skipped in found.skipped:
            log_skipped(skipped)
        return [StorePartition(part) for part in found.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of a part."""
        return batches(partition.part, self.options) if isinstance(partition, StorePartition) else iter(())

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: a store keeps no readers' offsets, and is never written."""

    def stop(self) -> None:
        """Nothing is open between batches."""


def _narrowed(options: SourceOptions, condition: Any) -> SourceOptions | None:
    """The options with the filter in them; None when Spark is to evaluate it."""
    # By name: Spark 4.0 has no filter classes.
    kind, column = type(condition).__name__, getattr(condition, "attribute", None)
    value = getattr(condition, "value", None)
    if column == ("topic",) and kind in ("EqualTo", "In"):
        asked = frozenset({value} if kind == "EqualTo" else condition.value)
        if not all(isinstance(topic, str) for topic in asked):
            return None
        return replace(options, topics=asked if options.topics is None else options.topics & asked)
    if column == ("store_time",) and isinstance(value, datetime):
        # Store times are whole ms, the filter's time may be between two of them.
        micros = round((value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
        if kind in ("GreaterThan", "GreaterThanOrEqual"):
            from_ms = micros // 1000 + 1 if kind == "GreaterThan" else -(-micros // 1000)
            return replace(options, from_ms=max(from_ms, options.from_ms or from_ms))
        if kind in ("LessThan", "LessThanOrEqual"):
            until_ms = -(-micros // 1000) if kind == "LessThan" else micros // 1000 + 1
            return replace(options, until_ms=min(until_ms, options.until_ms or until_ms))
    return None
