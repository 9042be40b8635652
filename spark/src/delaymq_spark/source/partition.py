"""Partitions, each read by one task, for batch and streaming reads."""

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
    """A part of the log for one task, or the unreadable parts that the driver found."""

    def __init__(self, part: Part | None, skipped: tuple[Skipped, ...] = ()) -> None:
        super().__init__(part)
        self.part = part
        self.skipped = skipped


def partitions_of(found: Plan, options: SourceOptions) -> list[InputPartition]:
    """Return one partition for each part.

    Unreadable parts are reported in the driver's log, and as rows if the column `skipped` is requested.
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
    """Return the batches of one partition; Spark passes None if there are none. `tell` reports skipped parts."""
    skip_archive_rereads()
    if not isinstance(partition, StorePartition):
        return iter(())
    if partition.part is None:
        return iter((skipped_rows(partition.skipped, options),))
    return batches(partition.part, options, tell)
