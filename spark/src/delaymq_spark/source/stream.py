"""Stream over a growing log; an offset of the stream is the physical offset of the end of a complete record."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from delaymq_spark.planning.batch_ends import find_batch_end, find_log_end
from delaymq_spark.planning.parts import plan
from delaymq_spark.source.options import SourceOptions
from delaymq_spark.source.partition import partitions_of, read_partition
from delaymq_spark.source.read import log_skipped
from delaymq_spark.store.segments import Skipped, list_segments

_ADVICE: Final = "set the option failOnDataLoss to false to continue without it"
_logger = logging.getLogger(__name__)


class DataLossError(RuntimeError):
    """A part of the log is missing or unreadable; the message states which, and what to do."""


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads `maxBytesPerTrigger` in each batch; with `availableNow`, up to the end of the log at the start."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._path = options.path
        self._look_from: int | None = None
        """Physical offset of a record shortly before the end of the log."""
        self._end: int | None = None
        """End of the log when it was last determined."""
        self._target: int | None = None
        """End of the log at the start, if `availableNow` limits the stream to it."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the start of a stream without a checkpoint. DataLossError."""
        wanted = self.options.starting_offset
        if wanted == "latest":
            return {"offset": self._log_end()}
        start = list_segments(self._path).start
        if wanted == "earliest":
            return {"offset": start}
        if int(wanted) < start:
            self._lost(f"the log starts at offset {start}: startingOffset {wanted} no longer exists")
        return {"offset": max(int(wanted), start)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit by the option `maxBytesPerTrigger`."""
        most = self.options.max_trigger_bytes
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Exclude records that are appended from now on."""
        self._target = self._log_end()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the end of the next batch. DataLossError.

        It is below `start` if the log was truncated and losses are allowed.
        """
        begin, end = start["offset"], self._log_end()
        if end < begin:
            self._lost(f"the log ended at offset {begin} and now ends at {end}, as after a crash that truncated it")
            return {"offset": end}
        if self._target is not None:
            # A checkpoint may be beyond the end of a log that was truncated before this start.
            end = max(begin, min(end, self._target))
        if isinstance(limit, ReadMaxBytes):
            end = find_batch_end(self._path, begin, limit.max_bytes, end)
        return {"offset": end}

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """Return the end of the log when it was last determined, for the query's progress."""
        return None if self._end is None else {"offset": self._end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the parts between two offsets. DataLossError if some of the log between them is missing."""
        first, behind = start["offset"], end["offset"]
        if behind <= first:
            return []
        options = self.options
        found = plan(
            self._path, options.split_bytes, start=first, end=behind, from_ms=options.from_ms, until_ms=options.until_ms
        )
        skipped = [
            each
            for each in found.skipped
            if each.offset < 0 or (each.offset < behind and each.offset + each.lost_bytes > first)
        ]
        if found.start > first:
            lost = min(found.start, behind) - first
            skipped.insert(0, Skipped(str(self._path), 0, first, lost, "deleted before it was read"))
        # The plan does not state which segments it omits by time.
        log_end = self._log_end()
        if log_end < behind:
            lost = behind - max(log_end, first)
            skipped.append(
                Skipped(str(self._path), 0, max(log_end, first), lost, "the log was truncated before it was read")
            )
        for each in skipped:
            # An item without an offset is not a part of the log, such as a foreign file.
            if each.offset >= 0 and not each.at_end:
                self._lost(str(each))
        return partitions_of(replace(found, skipped=tuple(skipped)), options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the batches of a part. DataLossError if it is not completely readable."""
        return read_partition(partition, self.options, self._note)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: a store keeps no offsets of readers, and is never written."""

    def stop(self) -> None:
        """Do nothing: no file is open between batches."""

    def _note(self, skipped: Skipped) -> None:
        log_skipped(skipped)
        if not skipped.at_end and skipped.lost_bytes:
            self._lost(str(skipped))

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{what}: {_ADVICE}")
        _logger.warning("%s", what)

    def _log_end(self) -> int:
        self._end, self._look_from = find_log_end(self._path, self._look_from)
        return self._end
