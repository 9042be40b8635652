"""Partition of a read, for batch and streaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from delaymq_spark.planning.parts import Part, Plan
from delaymq_spark.source.options import SourceOptions
from delaymq_spark.source.read import batches, log_skipped, skipped_rows
from delaymq_spark.source.schema import SKIPPED
from delaymq_spark.source.worker import skip_archive_rereads
from delaymq_spark.store.segments import Skipped


class StorePartition(InputPartition):
    """A part of the log for a task, or without a parts the unreadable places found by the driver."""

    def __init__(self, part: Part | None, skipped: tuple[Skipped, ...] = ()) -> None:
        super().__init__(part)
        self.part = part
        self.skipped = skipped


def partitions_of(found: Plan, options: SourceOptions) -> list[InputPartition]:
    """Return a partition per part; unreadable places are reported in the driver's log, and as rows if requested.
    """
    for skipped in found.skipped:
        log_skipped(skipped)
    partitions: list[InputPartition] = [StorePartition(part) for part in found.parts]
    if found.skipped and SKIPPED in options.columns:
        partitions.append(StorePartition(None, found.skipped))
    return partitions


def read_partition(
    partition: InputPartition | None, options: SourceOptions, tell: Callable[[Skipped], None] = log_skipped
) -> Iterator[pa.RecordBatch]:
    """Yield batches of a partition; Spark passes None if there are none. Skipped parts are reported."""
    skip_archive_rereads()
    if not isinstance(partition, StorePartition):
        return iter(())
    if partition.part is None:
        return iter((skipped_rows(partition.skipped, options),))
    return batches(partition.part, options, tell)
