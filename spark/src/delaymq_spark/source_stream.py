"""A stream behind a log that grows: an offset is the physical offset behind a whole record."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from delaymq_spark.segments import Skipped, list_segments
from delaymq_spark.segments_plan import plan
from delaymq_spark.source_options import SourceOptions
from delaymq_spark.source_partition import partitions_of, read_partition

# How far before the end that is known a look for a new end begins: a crash may have cut the log there.
_LOOK_BACK_BYTES: Final = 8 << 20
_log = logging.getLogger(__name__)


class StoreStreamReader(DataSourceStreamReader):
    """Spark (4.1) tells a Python source neither how much it may take nor, at a start, where its checkpoint stands.

    So the reader keeps `maxBytesPerTrigger` itself, from what Spark has asked for last; the first batch after each
    start takes all that is there. A task's memory is bounded by its part in any case.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._position: int | None = None
        """Up to where Spark has planned; None: not known."""
        self._look_from: int | None = None
        """A record's beginning not far before the log's end."""
        self._ends_ahead: list[int] = []
        """Ends of the next batches."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where a stream without a checkpoint begins."""
        wanted = self.options.starting_offset
        if wanted == "latest":
            self._position = self._log_end()
            return {"offset": self._position}
        start = list_segments(self.options.path).start
        if wanted != "earliest" and int(wanted) < start:
            _log.warning("the log begins at offset %d: startingOffset %s is no longer there", start, wanted)
        self._position = start if wanted == "earliest" else max(int(wanted), start)
        return {"offset": self._position}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """Where the next batch ends; below the last one's when a crash of the broker's machine has cut the log."""
        end, limit = self._log_end(), self.options.max_trigger_bytes
        if limit is None or self._position is None or end <= self._position + limit:
            self._ends_ahead.clear()
            return {"offset": end}
        self._ends_ahead = [each for each in self._ends_ahead if self._position < each <= end]
        if not self._ends_ahead:
            parts = plan(self.options.path, limit, start=self._position, end=end).parts
            self._ends_ahead = [part.end for part in parts if part.end > self._position]
        return {"offset": self._ends_ahead[0] if self._ends_ahead else end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Parts between two offsets; what the broker has deleted before it was read is told."""
        first, behind = start["offset"], end["offset"]
        self._position = behind
        if behind < first:
            _log.warning(
                "the log ended at offset %d and ends at %d now: a crash has cut it; the stream goes on from there",
                first, behind,
            )  # fmt: skip
            return []
        path = self.options.path
        found = plan(path, self.options.split_bytes, start=first, end=behind)
        if found.start > first:
            lost = min(found.start, behind) - first
            deleted = Skipped(str(path), 0, first, lost, "deleted before it was read")
            found = replace(found, skipped=(deleted, *found.skipped))
        return partitions_of(found, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of a part."""
        return read_partition(partition, self.options)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: a store keeps no readers' offsets, and is never written."""

    def stop(self) -> None:
        """Nothing is open between batches."""

    def _log_end(self) -> int:
        """Behind the last whole record; only what is new, and a little before it, is walked through."""
        found = plan(self.options.path, _LOOK_BACK_BYTES, start=self._look_from)
        if self._look_from is not None and not found.parts:
            # Nothing stands any more where records stood.
            found = plan(self.options.path, _LOOK_BACK_BYTES)
        self._look_from = found.parts[-1].start if found.parts else None
        return found.end
