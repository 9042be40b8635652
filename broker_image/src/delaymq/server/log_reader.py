"""Reading of single records of the log in threads, so that queries for old messages never block the loop.

Files are opened for each task, because the store may close its own. Only the beginning of large bodies is read.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delaymq.message.errors import RecordError
from delaymq.message.record import (
    BODY_LENGTH_BYTES,
    FIXED_BYTES,
    MAX_HEAD_BYTES,
    MAX_TAIL_BYTES,
    MESSAGE_MAGIC,
    SIZE_AND_MAGIC,
    SIZE_BYTES,
    SYS_FLAG_AT,
    SYS_FLAG_BYTES,
    TAIL_LENGTHS_BYTES,
    Record,
    body_at,
    decode_record,
    decode_store_timestamp,
)
from delaymq.store.segments import segment_name
from delaymq.store.untrusted_offsets import MAX_REFERENCED_BYTES

if TYPE_CHECKING:
    from delaymq.store.message_store import MessageStore

SHOWN_BODY_BYTES: Final = 64 * 1024
"""Maximum bytes read of a body for display: 64 messages of 4 MiB would be a quarter of a GiB."""
_WHOLE_BYTES: Final = 96 * 1024
"""Records up to this size are read completely, and their checksum is verified."""
_PAGE_BYTES: Final = 4096
_ANY_SIZE: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record of the log; its `body` may be truncated."""

    record: Record
    body_bytes: int
    """Size of the whole stored body."""

    @property
    def is_cut(self) -> bool:
        """Whether `record.body` is truncated."""
        return len(self.record.body) < self.body_bytes


def clean_text(text: str) -> str:
    """Return a record's text for responses: invalid UTF-8 is replaced by the replacement character."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class LogFiles:
    """View of the current log for any thread: the confirmed part, or everything appended."""

    def __init__(self, store: "MessageStore", *, unconfirmed: bool = False) -> None:
        self._folder = f"{store.path}/commitlog"
        self._first = store.min_offset
        self._end = store.end_offset if unconfirmed else store.confirmed_offset
        self._file_bytes = store.options.commit_log_file_bytes

    def records(self, offsets: list[int]) -> list[ReadRecord | None]:
        """Return the valid records at these physical offsets; None where there is none."""
        with _Segments(self._folder) as segments:
            self._begin_reading(segments, ((offset, _PAGE_BYTES) for offset in offsets))
            return [self._record(segments, offset) for offset in offsets]

    def containing(
        self, places: Sequence[tuple[int, int]], texts: Sequence[bytes]
    ) -> list[tuple[int, ReadRecord | None]]:
        """Return the records that contain all of `texts`, each with its position in `places`; None if none is valid.

        `places` are physical offsets and sizes. Only the records that contain the texts are decoded. Large ones are
        returned whatever they contain.
        """
        found: list[tuple[int, ReadRecord | None]] = []
        with _Segments(self._folder) as segments:
            self._begin_reading(segments, places)
            for number, (offset, size) in enumerate(places):
                place = self._place(segments, offset) if texts and size <= _WHOLE_BYTES else None
                data = os.pread(place[0], size, place[1]) if place is not None else b""
                if not data or all(text in data for text in texts):
                    found.append((number, self._record(segments, offset)))
        return found

    def whole(self, offset: int) -> Record | None:
        """Return one record with its complete body; None if there is none."""
        with _Segments(self._folder) as segments:
            found = self._record(segments, offset, _ANY_SIZE)
        return None if found is None else found.record

    def store_times_ms(self, offsets: list[int]) -> list[int | None]:
        """Return the store times of the records at these physical offsets, reading only their headers."""
        with _Segments(self._folder) as segments:
            return [self._store_time_ms(segments, offset) for offset in offsets]

    def _begin_reading(self, segments: "_Segments", places: Iterable[tuple[int, int]]) -> None:
        """Let the kernel read all places concurrently, if they are not in memory."""
        for offset, size in places:
            if (place := self._place(segments, offset)) is not None:
                os.posix_fadvise(*place, min(size, _WHOLE_BYTES), os.POSIX_FADV_WILLNEED)

    def _place(self, segments: "_Segments", offset: int) -> tuple[int, int] | None:
        if not self._first <= offset < self._end:
            return None
        position = (offset - self._first) % self._file_bytes
        descriptor = segments.open(offset - position)
        return None if descriptor is None else (descriptor, position)

    def _store_time_ms(self, segments: "_Segments", offset: int) -> int | None:
        place = self._place(segments, offset)
        if place is None:
            return None
        return decode_store_timestamp(os.pread(place[0], FIXED_BYTES, place[1]))

    def _record(
        self,
        segments: "_Segments",
        offset: int,
        whole_bytes: int = _WHOLE_BYTES,
        body_bytes: int = SHOWN_BODY_BYTES,
    ) -> ReadRecord | None:
        place = self._place(segments, offset)
        if place is None:
            return None
        descriptor, position = place
        head = os.pread(descriptor, MAX_HEAD_BYTES, position)
        if len(head) < FIXED_BYTES:
            return None
        size, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic != MESSAGE_MAGIC or not FIXED_BYTES <= size <= min(self._end - offset, MAX_REFERENCED_BYTES):
            return None
        try:
            if size <= whole_bytes:
                record = decode_record(os.pread(descriptor, size, position))
                found = ReadRecord(record, len(record.body))
            else:
                found = read_cut(descriptor, position, head, size, body_bytes)
        except RecordError:
            return None
        return found if found.record.physical_offset == offset else None


class _Segments:
    """Open segment descriptors of one task."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._open: dict[int, int | None] = {}

    def __enter__(self) -> "_Segments":
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            if descriptor is not None:
                os.close(descriptor)

    def open(self, base: int) -> int | None:
        """Open the segment that starts at `base`; return None if it was deleted."""
        if base not in self._open:
            try:
                self._open[base] = os.open(f"{self._folder}/{segment_name(base)}", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._open[base] = None
        return self._open[base]


def read_cut(descriptor: int, position: int, head: bytes, size: int, shown_bytes: int) -> ReadRecord:
    """Read a large record with the beginning of its body, by decoding it with a header changed to an empty body."""
    at = body_at(int.from_bytes(head[SYS_FLAG_AT : SYS_FLAG_AT + SYS_FLAG_BYTES], "big"))
    body_bytes = int.from_bytes(head[at - BODY_LENGTH_BYTES : at], "big", signed=True)
    if not 0 <= body_bytes <= size - FIXED_BYTES:
        raise RecordError(f"body length {body_bytes} does not fit in a record of {size} bytes")
    tail_bytes = size - at - body_bytes
    if not 0 <= tail_bytes <= MAX_TAIL_BYTES:
        raise RecordError(
            f"the record has {tail_bytes} bytes after its body: {TAIL_LENGTHS_BYTES} to {MAX_TAIL_BYTES} are valid"
        )
    rest = os.pread(descriptor, tail_bytes, position + at + body_bytes)
    without_body = b"".join(
        (
            (size - body_bytes).to_bytes(SIZE_BYTES, "big"),
            head[SIZE_BYTES : at - BODY_LENGTH_BYTES],
            bytes(BODY_LENGTH_BYTES),
            rest,
        )
    )
    record = decode_record(without_body, check_crc=False)
    record.body = os.pread(descriptor, min(body_bytes, shown_bytes), position + at)
    record.size = size
    return ReadRecord(record, body_bytes)
