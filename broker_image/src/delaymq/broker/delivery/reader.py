"""Reader of entries and records of the schedule topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from delaymq.message.errors import KeysUnknownError, RecordError
from delaymq.message.levels import DelayLevels, level_of_queue, queue_of_level
from delaymq.message.marks import parse_due
from delaymq.message.names import DELAY, DUE, SCHEDULE_TOPIC, TIMER_TOPIC
from delaymq.message.record import Record, decode_record
from delaymq.schedule.timeline import Pending
from delaymq.store.consume_queue import BLANK_SIZE, ENTRY, ENTRY_BYTES
from delaymq.store.disk.files import is_shortage
from delaymq.store.errors import (
    SegmentCreateError,
    StoreClosedError,
    StoreFailedError,
    StoreFollowingError,
    StoreFullError,
)
from delaymq.store.model import Dispatched, NewRecord, StoreTask
from delaymq.store.plain_runs import Copied, EncodeCopies
from delaymq.store.retention import ExpiredLog

_NOTHING = (0, b"")
_STORE_WIDE = (
    StoreFullError,
    StoreClosedError,
    StoreFailedError,
    StoreFollowingError,
    SegmentCreateError,
    MemoryError,
)
# Entries per read, for single ones (almost in order) and for a whole queue:
_NEXT_ENTRIES = 256
_PRECEDING_ENTRIES = 64
_READ_ENTRIES = 65_536
_LOWEST_TAGS_CODE = -(2**31)
"""Tags codes up to this value are addresses in the extension of a queue (enableConsumeQueueExt), not times."""


Parsed = TypeVar("Parsed")


class ConfigFiles(Protocol):
    """Configuration files of a store."""

    def load(self, name: str, parse: Callable[[bytes], Parsed], *, max_bytes: int = ...) -> Parsed | None:
        """Return the parsed file or its parsed `.bak`; None if neither can be read."""

    def save(self, name: str, data: bytes, *, max_bytes: int = ...) -> None:
        """Replace the file atomically."""

    def remove(self, name: str) -> None:
        """Delete the file and its backup."""


class DeliveryStore(Protocol):
    """The part of the store that delivery uses."""

    levels: DelayLevels

    @property
    def min_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def durable_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def last_store_timestamp_ms(self) -> int: ...
    @property
    def largest_record_bytes(self) -> int: ...
    @property
    def format_version(self) -> int: ...
    @property
    def has_all_keys(self) -> bool: ...
    @property
    def index_files(self) -> int: ...
    @property
    def config_files(self) -> ConfigFiles: ...
    @property
    def own_files(self) -> ConfigFiles: ...
    def append(self, message: NewRecord) -> Dispatched: ...
    def append_copies(self, copies: Sequence[NewRecord], appended: list[Dispatched]) -> None: ...
    def append_encoded_copies(self, topic: str, encode: EncodeCopies) -> Copied | None: ...
    def raise_format_version(self, version: int) -> None: ...
    def expired_log(self, now_ms: int) -> ExpiredLog: ...
    def fail(self, reason: str) -> None: ...
    def next_queue_offset(self, topic: str, queue_id: int) -> int: ...
    def stored_bounds(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def queues(self) -> Iterable[tuple[str, int]]: ...
    def read_entries(self, topic: str, queue_id: int, offset: int, count: int) -> bytes: ...
    def read_bytes(self, physical_offset: int, size: int) -> bytes: ...
    def record_at(self, physical_offset: int) -> Record | None: ...
    def index_steps(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]: ...
    def flush_task(self) -> StoreTask | None: ...


QueueEntry: TypeAlias = tuple[int, int, int]
"""Physical offset, size and tags code, which is a due time in ms."""


def require_all_keys(store: DeliveryStore) -> None:
    """Raise KeysUnknownError if the index of keys does not contain the keys of all records."""
    if not store.has_all_keys:
        raise KeysUnknownError(
            "the index of keys is incomplete: set messageIndexEnable=true, and restart the broker if it has run out of"
            " memory or disk space"
        )


class StoppedError(Exception):
    """The store rejects writes, so nothing can be delivered."""

    def __init__(self, position: int, reason: Exception) -> None:
        super().__init__(str(reason))
        self.position = position
        """Index in the batch of the first entry that was not delivered."""
        self.reason = reason


def rejects_all(error: Exception) -> bool:
    """Whether the store accepts no record after this error, so that no message counts as failed."""
    return isinstance(error, _STORE_WIDE) or is_shortage(error)


class Place(NamedTuple):
    """Position of a pending message in the log."""

    physical_offset: int
    size: int


class Found(NamedTuple):
    """A pending message, and the record that holds it."""

    record: Record
    pending: Pending
    properties: dict[str, str]
    """Properties of the record, parsed."""


class ScheduleReader:
    """Reads entries by queue and offset. Caches the last ones read of each queue, which are needed almost in order."""

    def __init__(self, store: DeliveryStore) -> None:
        self._store = store
        self._cached: dict[int, tuple[int, bytes]] = {}
        """By queue: offset of the first entry, entries."""

    def place(self, queue_id: int, offset: int) -> Place | None:
        """Return the position of an entry's record; None if there is no entry, it is blank, or the record was
        deleted."""
        first, entries = self._cached.get(queue_id, _NOTHING)
        if not 0 <= (offset - first) * ENTRY_BYTES < len(entries):
            # Topics are served in turn, so an offset may be a little below the preceding one.
            first = max(offset - _PRECEDING_ENTRIES, 0)
            entries = self._store.read_entries(SCHEDULE_TOPIC, queue_id, first, _NEXT_ENTRIES)
            if (offset - first) * ENTRY_BYTES >= len(entries):  # the preceding ones end a file, or are deleted
                first, entries = offset, self._store.read_entries(SCHEDULE_TOPIC, queue_id, offset, _NEXT_ENTRIES)
            self._cached[queue_id] = first, entries
            if len(entries) < ENTRY_BYTES:
                return None
        physical_offset, size, _ = ENTRY.unpack_from(entries, (offset - first) * ENTRY_BYTES)
        if physical_offset < self._store.min_offset or size == BLANK_SIZE:
            return None
        return Place(physical_offset, size)

    def record(self, queue_id: int, offset: int, place: Place) -> Record | None:
        """Return the record at `place`; None if it is not a valid record of this entry."""
        physical_offset, size = place
        if size <= 0 or physical_offset + size > self._store.end_offset:
            return None
        try:
            record = decode_record(self._store.read_bytes(physical_offset, size))
        except RecordError:
            return None
        if (
            record.queue_offset != offset
            or record.queue_id != queue_id
            or record.physical_offset != physical_offset
            or record.size != size
            or record.topic != SCHEDULE_TOPIC
        ):
            return None
        return record

    def record_at(self, physical_offset: int) -> Record | None:
        """Return the record that starts at an offset; None if there is no valid one."""
        return self._store.record_at(physical_offset)

    def level_record(self, pending: Pending, level: int) -> Record | None:
        """Return the record that holds a message with a delay level; None if it is not that of an entry in its queue.

        No checksum covers the queue offset in the record, by which the message is settled; its entry confirms it.
        """
        record = self._held(pending, SCHEDULE_TOPIC)
        if record is None or record.queue_id != queue_of_level(level):
            return None
        if self.place(record.queue_id, record.queue_offset) == (pending.record, pending.size):
            return record
        entry = self.entry(record.queue_id, record.queue_offset)
        return record if entry is not None and entry[:2] == (pending.record, pending.size) else None

    def timed_record(self, pending: Pending) -> Record | None:
        """Return the record that holds a timed message; None if it is not a valid record of the timer topic."""
        return self._held(pending, TIMER_TOPIC)

    def _held(self, pending: Pending, topic: str) -> Record | None:
        place, size = pending.record, pending.size
        if place + size > self._store.end_offset or place < self._store.min_offset:
            return None
        try:
            record = decode_record(self._store.read_bytes(place, size))
        except RecordError:
            return None
        return record if record.physical_offset == place and record.size == size and record.topic == topic else None

    @property
    def min_offset(self) -> int:
        """Physical offset at which the log begins."""
        return self._store.min_offset

    def entry(self, queue_id: int, offset: int) -> QueueEntry | None:
        """Return an entry of a queue; None if there is none."""
        raw = self._store.read_entries(SCHEDULE_TOPIC, queue_id, offset, 1)
        return ENTRY.unpack(raw) if len(raw) == ENTRY_BYTES else None

    def entries(self, queue_id: int, first: int, end: int) -> Iterator[tuple[int, list[QueueEntry]]]:
        """Yield the entries from `first` to before `end` in pieces: offset of the first one, entries."""
        while first < end:
            raw = self._store.read_entries(SCHEDULE_TOPIC, queue_id, first, min(end - first, _READ_ENTRIES))
            entries = list(ENTRY.iter_unpack(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES]))
            if not entries:
                return
            yield first, entries
            first += len(entries)

    def offset_of(self, queue_id: int, physical_offset: int) -> int | None:
        """Return the offset of the entry of a record in its queue, by bisection; None if there is none."""
        low, end = self._store.stored_bounds(SCHEDULE_TOPIC, queue_id)
        high = end
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(queue_id, middle)
            if entry is not None and entry[0] < physical_offset:
                low = middle + 1
            else:
                high = middle
        entry = self.entry(queue_id, low) if low < end else None
        return low if entry is not None and entry[0] == physical_offset and entry[1] != BLANK_SIZE else None

    def due_ms(self, queue_id: int, offset: int, tags_code: int) -> int:
        """Return the due time of the entry with this tags code."""
        return max(tags_code, 0) if tags_code > _LOWEST_TAGS_CODE else self._due_from_record(queue_id, offset)

    def _due_from_record(self, queue_id: int, offset: int) -> int:
        """Return the due time in the record; 0 (immediately) if it is unreadable, which the delivery then detects."""
        place = self.place(queue_id, offset)
        record = self.record(queue_id, offset, place) if place else None
        if record is None:
            return 0
        properties = record.properties
        due_ms = parse_due(properties.get(DUE, ""), queue_id, offset)
        if due_ms is not None:
            return due_ms
        level = properties.get(DELAY, "")
        number = int(level) if level.isascii() and level.isdigit() and len(level) < 10 else level_of_queue(queue_id)
        return record.store_timestamp_ms + self._store.levels.delay_ms(max(number, 1))
