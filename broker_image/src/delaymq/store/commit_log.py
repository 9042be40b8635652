"""Commit log: one writer appends to a mapped segment; readers use the mapping or pread.

Offsets in this module are physical: bytes since the first record of the store.
"""

from __future__ import annotations

import mmap
from typing import Final

from delaymq.message.errors import RecordError
from delaymq.message.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    FIXED_BYTES,
    MESSAGE_MAGIC,
    SIZE_AND_MAGIC,
    Record,
    decode_record,
    decode_store_timestamp,
)
from delaymq.store.disk.files import Files
from delaymq.store.errors import (
    RecordTooLargeError,
    SegmentCreateError,
    ShortageError,
    StoreFailedError,
    StoreFullError,
)
from delaymq.store.segments import Segment, SegmentFolder

_NOTHING_MAPPED: Final = mmap.mmap(-1, 1)
_MOST_RECORDS_BYTES: Final = 1_024
"""Size of most delayed records, which a single read returns."""
MARKS_SHARE: Final = 32
MAX_MARKS_BYTES: Final = 1 << 20
"""Reserve for marks at the end of the last segment: this share of a segment, at most this size."""


class CommitLog:
    """The open log. `end_offset` is the offset of the next record."""

    def __init__(self, files: Files, folder: SegmentFolder, segments: list[Segment]) -> None:
        self._files = files
        self._folder = folder
        self.file_bytes = folder.file_bytes
        self.segments = segments
        self.mapping: mmap.mmap = _NOTHING_MAPPED
        self.segment_base = 0
        self.segment_end = 0
        self.open_end = 0
        """End of the part of the segment that is open to all records; the rest is reserved for marks."""
        self.end_offset = 0
        self.flushed_offset = 0
        self.last_offset = -1
        """Physical offset of the last message record; -1 if there is none."""
        self.last_crc = 0
        self.last_store_timestamp_ms = 0
        self.failure: StoreFailedError | None = None
        self._flushing = False
        self._allocating = False
        self._syncing: list[int] = []
        """Start offsets of running sync tasks; the files from there on must stay open."""
        # A killed process may have moved a segment into the folder without syncing the folder.
        self._names_unsynced = True

    @property
    def min_offset(self) -> int:
        """Oldest offset of the log."""
        return self.segments[0].base if self.segments else self.end_offset

    def start_at(self, end_offset: int) -> None:
        """Continue at `end_offset`; all before it is durable. StoreFullError: no space for the next records."""
        self.end_offset = self.flushed_offset = end_offset
        for each in self.segments:
            if each.base + self.file_bytes > end_offset:
                self._folder.allocate(each)
        segment = self.segment_of(end_offset)
        if segment is not None:
            self._activate(segment, self._folder.map(segment))
        else:
            self.segment_base = self.segment_end = self.open_end = end_offset

    def begin_at(self, offset: int) -> None:
        """Let a log without segments begin at `offset`, the first byte of a segment that will be created."""
        self.end_offset = self.flushed_offset = offset
        self.segment_base = self.segment_end = self.open_end = offset

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment that holds `offset`."""
        if not self.segments:
            return None
        index = (offset - self.segments[0].base) // self.file_bytes
        return self.segments[index] if 0 <= index < len(self.segments) else None

    def _activate(self, segment: Segment, mapping: mmap.mmap) -> None:
        previous, self.mapping = self.mapping, mapping
        self.segment_base = segment.base
        self.segment_end = segment.base + self.file_bytes
        self.open_end = self.segment_end - min(self.file_bytes // MARKS_SHARE, MAX_MARKS_BYTES)
        if previous is not _NOTHING_MAPPED:
            previous.close()

    def roll(self, size: int) -> int:
        """Close the segment because `size` bytes do not fit; return the offset at which the next one starts.

        StoreFullError, SegmentCreateError: the next segment cannot be created, and nothing has changed.
        StoreFailedError: the disk failed to store the segment's name.
        """
        if size + BLANK_BYTES > self.file_bytes:
            raise RecordTooLargeError(
                f"a record or batch of {size} bytes does not fit in a log segment of {self.file_bytes} bytes"
                " (mappedFileSizeCommitLog): send a smaller message or batch"
            )
        left = self.segment_end - self.end_offset
        self.end_segment(SIZE_AND_MAGIC.pack(left, BLANK_MAGIC) if left else b"")
        return self.end_offset

    def end_segment(self, beginning: bytes) -> None:
        """Continue in the next segment; the rest of this one begins with these bytes. Errors as in `roll`."""
        segment = self.make_next()
        mapping = self._folder.map(segment)
        if beginning:
            position = self.end_offset - self.segment_base
            self.mapping[position : position + len(beginning)] = beginning
        self.end_offset = segment.base
        self._activate(segment, mapping)

    def make_next(self) -> Segment:
        """Return the segment after this one, which is created if it does not exist. Errors as in `roll`."""
        segment = self.segment_of(self.segment_end)
        if segment is None:
            try:
                segment = self._folder.create(self.segment_end)
            except OSError as error:
                raise self._fail(error) from error
            self.segments.append(segment)
        return segment

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`; empty unless all are in one segment of the log."""
        if size <= 0 or offset + size > self.end_offset:
            return b""
        position = offset - self.segment_base
        if position >= 0:
            return self.mapping[position : position + size]
        segment = self.segment_of(offset)
        if segment is None or offset + size > segment.base + self.file_bytes:
            return b""
        return self._files.pread(segment.descriptor, size, offset - segment.base)

    def _beginning_at(self, offset: int) -> bytes:
        """Return the bytes from `offset` on, up to the size of most records; empty outside the log."""
        position = offset - self.segment_base
        if position >= 0:
            return self.mapping[position : min(position + _MOST_RECORDS_BYTES, self.end_offset - self.segment_base)]
        segment = self.segment_of(offset)
        if segment is None:
            return b""
        return self._files.pread(segment.descriptor, _MOST_RECORDS_BYTES, offset - segment.base)

    def record_at(self, offset: int) -> Record | None:
        """Return the record that starts at `offset`; None if there is no valid one."""
        data = self._beginning_at(offset) if offset >= 0 else b""
        if len(data) < SIZE_AND_MAGIC.size:
            return None
        size, magic = SIZE_AND_MAGIC.unpack_from(data)
        if magic != MESSAGE_MAGIC or not FIXED_BYTES <= size <= self.file_bytes:
            return None
        try:
            record = decode_record(data if size <= len(data) else self.read_bytes(offset, size))
        except RecordError:
            return None
        return record if record.physical_offset == offset else None

    def store_timestamp_at(self, offset: int) -> int | None:
        """Return the store time of the record at `offset` from its head alone; None if there is none."""
        return decode_store_timestamp(self.read_bytes(offset, FIXED_BYTES)) if offset >= 0 else None

    def flush_task(self) -> FlushTask | None:
        """Return a task that flushes everything appended so far; None if it is flushed or being flushed."""
        if self._flushing or self.flushed_offset == self.end_offset or self.failure:
            return None
        self._flushing = True
        return FlushTask(self)

    def flush_finished(self, offset: int, failure: OSError | None) -> None:
        """Handle the end of a flush up to `offset`."""
        self._flushing = False
        if failure is not None:
            self.flush_failed(failure)
        else:
            self.flushed_to(offset)

    def flush_failed(self, failure: OSError) -> None:
        """Handle a failed flush. The kernel forgets which pages failed, so a later success proves nothing."""
        if isinstance(failure, ShortageError):
            self._names_unsynced = True
            return
        self._fail(failure)

    def _fail(self, failure: OSError) -> StoreFailedError:
        self.failure = StoreFailedError(
            f"the disk failed to store the log ({failure}): check the disk, then restart the broker"
        )
        return self.failure

    def flushed_to(self, offset: int) -> None:
        """Record that everything before `offset` is durable."""
        if offset > self.flushed_offset:
            self.flushed_offset = offset

    def allocation_task(self) -> AllocationTask | None:
        """Return a task that creates the segment after the active one; None if it exists or is being created."""
        if self._allocating or self.segment_of(self.segment_end) is not None:
            return None
        self._allocating = True
        return AllocationTask(self, self._folder, self.segment_end)

    def allocation_finished(self, segment: Segment | None) -> None:
        """Add a segment that another thread prepared; None if it could not be created."""
        self._allocating = False
        if segment is None:
            return
        if self.segment_of(segment.base) is not None or segment.base != self.segment_end:
            self._folder.discard(segment)  # an append could not wait and created the segment
            return
        self.segments.append(self._folder.install(segment))
        self._names_unsynced = True

    def begin_sync(self, start: int, end: int) -> list[int]:
        """Return descriptors of the segments of start…end, which stay open until `end_sync` with the same start."""
        self._syncing.append(start)
        return [
            segment.descriptor
            for segment in self.segments
            if segment.base < end and segment.base + self.file_bytes > start
        ]

    def end_sync(self, start: int) -> None:
        """Handle the end of a sync task."""
        self._syncing.remove(start)

    @property
    def removable_end(self) -> int:
        """End of the segments that are durable and not used by any task."""
        return min([self.flushed_offset, self.segment_base, *self._syncing])

    def take_names_unsynced(self) -> bool:
        """Return whether a segment's name is not yet durable; the caller must then sync it."""
        unsynced, self._names_unsynced = self._names_unsynced, False
        return unsynced

    def sync_files(self, descriptors: list[int], *, names: bool) -> None:
        """Sync files. ShortageError: nothing was synced or lost; any other OSError: the disk failed."""
        if names:
            self._folder.sync_names()
        for descriptor in descriptors:
            self._files.fdatasync(descriptor)

    def remove_first(self) -> str:
        """Delete the oldest segment and return its path."""
        segment = self.segments.pop(0)
        self._files.close(segment.descriptor)
        self._files.unlink(segment.path)
        return segment.path

    def close(self) -> None:
        """Release files and memory."""
        if self.mapping is not _NOTHING_MAPPED:
            self.mapping.close()
        self.mapping = _NOTHING_MAPPED
        for segment in self.segments:
            self._files.close(segment.descriptor)
        self.segments = []
        self._folder.close()


class FlushTask:
    """Flushes the log up to its end at the creation of the task."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._offset = log.end_offset
        self._start = log.flushed_offset
        self._descriptors = log.begin_sync(self._start, log.end_offset)
        self._names = log.take_names_unsynced()
        self._failure: OSError | None = None

    def run(self) -> None:
        """Sync the files; runs in any thread."""
        try:
            self._log.sync_files(self._descriptors, names=self._names)
        except OSError as error:
            self._failure = error

    def finish(self) -> OSError | None:
        """Update `flushed_offset`; runs on the event loop."""
        self._log.end_sync(self._start)
        self._log.flush_finished(self._offset, self._failure)
        return self._failure


class AllocationTask:
    """Creates the next segment before it is needed."""

    def __init__(self, log: CommitLog, folder: SegmentFolder, base: int) -> None:
        self._log = log
        self._folder = folder
        self._base = base
        self._segment: Segment | None = None
        self._failure: OSError | None = None

    def run(self) -> None:
        """Allocate the segment; runs in any thread."""
        try:
            self._segment = self._folder.prepare(self._base, "ahead")
        except (StoreFullError, SegmentCreateError) as error:
            self._failure = _cause_of(error)

    def finish(self) -> OSError | None:
        """Append the segment to the log; runs on the event loop."""
        try:
            self._log.allocation_finished(self._segment)
        except (StoreFullError, SegmentCreateError) as error:
            self._failure = _cause_of(error)
        return self._failure


def _cause_of(error: StoreFullError | SegmentCreateError) -> OSError:
    cause = error.__cause__
    return cause if isinstance(cause, OSError) else OSError(str(error))
