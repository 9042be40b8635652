"""Appending of another broker's log at the same offsets, so that the segments become byte-identical."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from delaymq.message.record import BLANK_BYTES, BLANK_MAGIC, FIXED_BYTES, MESSAGE_MAGIC, SIZE_AND_MAGIC
from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import MAX_GAP_ENTRIES, ConsumeQueues
from delaymq.store.dispatch import Dispatcher
from delaymq.store.errors import DamagedRecordError, WrongOffsetError
from delaymq.store.index.key_index import KeyIndex
from delaymq.store.model import Dispatched, LiveObserver
from delaymq.store.plain_runs import Stretch
from delaymq.store.recovery.log_scan import ScanPosition, decoding
from delaymq.store.recovery.plain_scan import MAX_MS, PlainScan, Scanner, scanner_for, walk

_PAGE_BYTES: Final = 4_096
_ZEROED_AT_ONCE: Final = 1 << 20
_NO_TIMES: Final = (0, 0, 0)
_new = tuple.__new__


class _Plain(NamedTuple):
    """Plain records that a compiled kernel has read."""

    stretches: list[Stretch]
    keys: bytes
    records: int
    end: int
    """Physical offset behind the last one."""
    last_offset: int
    last_crc: int
    last_store_timestamp_ms: int


_Records: TypeAlias = "_Plain | list[Dispatched]"


class _Part(NamedTuple):
    """Verified bytes of one segment."""

    offset: int
    data: memoryview
    records: list[_Records]
    """Its records; none if it is the complete rest of a segment, behind the last record."""


class LogReceiver:
    """Receives the log of another broker in order, cut anywhere.

    A part of a record is kept in memory until the rest arrives. The padding at the end of a segment, which may have the
    size of the segment, is written immediately where it belongs. Its head is written last, so that the log ends before
    it until then.
    """

    def __init__(
        self, log: CommitLog, queues: ConsumeQueues, dispatcher: Dispatcher, index: KeyIndex | None = None
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._index = index
        self._scanner: Scanner | None = None
        self._observers: Sequence[LiveObserver] | None = None
        """Observers for which `_scanner` was made."""
        self._rest = bytearray()
        """Beginning of the record, or head of the padding, at the log's end."""
        self._padding_bytes = 0
        """Bytes of the padding that have been received behind its head."""
        self._written_bytes = 0
        """The same up to the last one that was written, because it was not zero."""

    @property
    def offset(self) -> int:
        """Physical offset of the next byte to be received."""
        return self._log.end_offset + len(self._rest) + self._padding_bytes

    def receive(self, offset: int, data: bytes) -> None:
        """Append the log's bytes from `offset` on, and dispatch all records that are complete.

        An empty log may begin at the first byte of any segment. WrongOffsetError, DamagedRecordError, NewerFormError:
        nothing has changed. StoreFullError, SegmentCreateError, StoreFailedError: the next segment cannot be created;
        the log ends before its first record, and `offset` states where to continue.
        """
        log = self._log
        if offset != self.offset:
            self._begin(offset)
        view = memoryview(data)
        if self._is_padding(self._rest):
            padding = view[: log.segment_end - offset]
            parts, rest = self._verify(view[len(padding) :], log.segment_end)
            self._add_padding(padding)
        elif len(self._rest) >= BLANK_BYTES and SIZE_AND_MAGIC.unpack_from(self._rest)[0] > len(self._rest) + len(data):
            self._rest += data
            return
        else:
            parts, rest = self._verify(memoryview(bytes(self._rest) + data) if self._rest else view, log.end_offset)
        self._apply(parts, rest)

    def forget(self) -> None:
        """Drop the part of a record, or of padding, that has been received behind the log's end."""
        log = self._log
        start = log.end_offset - log.segment_base + BLANK_BYTES
        for position in range(start, start + self._written_bytes, _ZEROED_AT_ONCE):
            count = min(start + self._written_bytes - position, _ZEROED_AT_ONCE)
            log.mapping[position : position + count] = bytes(count)
        self._rest, self._padding_bytes, self._written_bytes = bytearray(), 0, 0

    def _begin(self, offset: int) -> None:
        """Begin an empty log at `offset`."""
        log = self._log
        if log.segments or self._rest or offset < 0 or offset % log.file_bytes:
            raise WrongOffsetError(
                f"bytes of the log from offset {offset} cannot follow offset {self.offset}: request the log from there"
            )
        log.begin_at(offset)

    # -- verification ---------------------------------------------------------------------------------------------

    def _verify(self, view: memoryview, offset: int) -> tuple[list[_Part], memoryview]:
        """Return the complete parts of the log in `view`, which begins at `offset`, and the incomplete rest."""
        parts: list[_Part] = []
        file_bytes, position = self._log.file_bytes, 0
        while position < len(view):
            at = offset + position
            left = file_bytes - at % file_bytes
            size = self._complete_bytes(view[position : position + left], at, left)
            if size:
                run = view[position : position + size]
                parts.append(_Part(at, run, self._decode(run, at)))
                position += size
                left -= size
            rest = view[position : position + left]
            if len(rest) < left or not (left < BLANK_BYTES or self._is_padding(rest, left)):
                break
            if left:
                parts.append(_Part(offset + position, rest, []))
            position += left
        return parts, view[position:]

    @staticmethod
    def _complete_bytes(view: memoryview, offset: int, left: int) -> int:
        """Return the number of bytes of the complete records at the beginning; `left` bytes remain in the segment."""
        position = 0
        while len(view) - position >= BLANK_BYTES:
            size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
            if magic == BLANK_MAGIC and size == left - position:
                break
            if magic != MESSAGE_MAGIC or not FIXED_BYTES <= size <= left - position:
                raise DamagedRecordError(
                    f"size {size} and magic {magic:#010x} at offset {offset + position} are not those of a record in"
                    f" the {left - position} bytes that its segment has left: check that both brokers have the same"
                    " mappedFileSizeCommitLog, and check the log of the sender with `delaymq store verify`"
                )
            if size > len(view) - position:
                break
            position += size
        return position

    def _is_padding(self, data: memoryview | bytearray, left: int | None = None) -> bool:
        """Whether `data` is the head of padding that fills the segment, of which `left` bytes remain."""
        if left is None:
            left = self._log.segment_end - self._log.end_offset
        return len(data) >= BLANK_BYTES and SIZE_AND_MAGIC.unpack_from(data) == (left, BLANK_MAGIC)

    def _decode(self, run: memoryview, offset: int) -> list[_Records]:
        """Return the records of `run`, which contains no part of a record. DamagedRecordError, NewerFormError."""
        found: list[_Records] = []
        at = self._scan(run, offset, found)
        if at is not None and not self._walk(run, offset, at, found):
            raise DamagedRecordError(
                f"the record at offset {at.offset} is damaged: check the log of the sender with `delaymq store verify`"
            )
        self._check_queue_offsets(found)
        return found

    def _scan(self, run: memoryview, offset: int, found: list[_Records]) -> ScanPosition | None:
        """Let a kernel read the plain records at the start of `run`, which usually has no others.

        Returns where they end, and None at the end of `run`. The first record of a segment is not among them: an
        observer may need to know where a segment begins.
        """
        observers = self._dispatcher.observers
        if self._observers is not observers:
            self._observers, self._scanner = observers, scanner_for(observers)
        if self._scanner is None or offset % self._log.file_bytes == 0:
            return ScanPosition(offset)
        size, records, last_offset, last_crc, times, stretches, keys = self._scanner.scan(
            bytes(run), offset, self._latest_ms(), _NO_TIMES
        )
        end = offset + size
        if records:
            plain = [_new(Stretch, each) for each in stretches]  # faster than Stretch(…)
            found.append(_Plain(plain, keys, records, end, last_offset, last_crc, times[2]))
        if size == len(run):
            return None
        if not records:
            return ScanPosition(offset)
        third_last_ms, before_last_ms, last_ms = times
        return ScanPosition(end, last_offset, last_crc, last_ms, records, before_last_ms, third_last_ms)

    def _walk(self, run: memoryview, offset: int, at: ScanPosition, found: list[_Records]) -> bool:
        """Read the records of `run` from `at` on, most of them one at a time; return whether all are valid."""
        # Whether properties were torn depends on the pages of the file.
        before = offset % self._log.file_bytes % _PAGE_BYTES
        single: list[Dispatched] = []

        def end_single() -> None:
            if single:
                found.append(single.copy())
                single.clear()

        def receive(stretches: list[Stretch], keys: bytes) -> None:
            end_single()
            records = sum(each.records for each in stretches)
            last = at.last_offset, at.last_crc, at.last_store_timestamp_ms
            found.append(_Plain(stretches, keys, records, at.offset, *last))

        data = memoryview(bytes(before) + run) if before else run
        take = decoding(self._dispatcher.levels, single.append)
        scanner = self._scanner
        plain = None if scanner is None else PlainScan(scanner=scanner, receive=receive, latest_ms=self._latest_ms)
        is_valid = walk(data, offset - before, at, take, plain, check_crc=True)
        end_single()
        return is_valid

    def _latest_ms(self) -> int:
        """Return the highest store time that is believed."""
        return MAX_MS if self._index is None else self._index.latest_ms

    def _check_queue_offsets(self, found: list[_Records]) -> None:
        others = sum(each.records if isinstance(each, _Plain) else len(each) for each in found)
        for each in found:
            if isinstance(each, _Plain):
                for topic, queue_id, number, count, first_at, last_at, _ in each.stretches:
                    # In between, queue offsets rise by 1, and physical offsets by more.
                    self._check_queue_offset(topic, queue_id, number, first_at, others)
                    self._check_queue_offset(topic, queue_id, number + count - 1, last_at, others)
                continue
            for record in each:
                if record.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT):
                    place = record.topic, record.queue_id, record.queue_offset, record.physical_offset
                    self._check_queue_offset(*place, others)

    def _check_queue_offset(self, topic: str, queue_id: int, number: int, physical_offset: int, others: int) -> None:
        """Raise DamagedRecordError for a queue offset that recovery would not believe either."""
        queue = self._queues.table.get((topic, queue_id))
        if queue is not None:
            highest = queue.max_number + others + max(MAX_GAP_ENTRIES, self._queues.file_entries)
        else:
            highest = physical_offset // FIXED_BYTES  # each earlier message occupied log space
        if not 0 <= number <= highest:
            raise DamagedRecordError(
                f"the record at offset {physical_offset} states queue offset {number}, which queue {topic}/{queue_id}"
                " cannot have yet: check the log of the sender"
            )

    # -- appending ------------------------------------------------------------------------------------------------

    def _apply(self, parts: list[_Part], rest: memoryview) -> None:
        log = self._log
        if any(part.offset + len(part.data) >= log.segment_end for part in parts):
            log.make_next()  # so that the usual case, one new segment, changes nothing if it cannot be created
        if parts:
            self._rest = bytearray()
        for part in parts:
            if log.end_offset == log.segment_end:
                log.end_segment(b"")
            if part.records:
                self._append(part)
            else:
                log.end_segment(bytes(part.data))
        self._keep(rest)

    def _append(self, part: _Part) -> None:
        log, dispatcher = self._log, self._dispatcher
        at = part.offset - log.segment_base
        log.mapping[at : at + len(part.data)] = part.data
        for found in part.records:
            if isinstance(found, _Plain):
                log.end_offset = found.end
                log.last_offset, log.last_crc = found.last_offset, found.last_crc
                log.last_store_timestamp_ms = found.last_store_timestamp_ms
                dispatcher.receive_plain(found.stretches, found.keys, part.data, part.offset)
                continue
            for record in found:
                log.end_offset = record.physical_offset + record.size
                log.last_offset, log.last_crc = record.physical_offset, record.body_crc
                log.last_store_timestamp_ms = record.store_timestamp_ms
                dispatcher.dispatch(record)

    def _keep(self, rest: memoryview) -> None:
        """Keep an incomplete record, or write the beginning of padding."""
        log = self._log
        if not rest:
            return
        if log.end_offset == log.segment_end:
            log.end_segment(b"")
        if self._is_padding(rest):
            self._rest = bytearray(rest[:BLANK_BYTES])
            self._add_padding(rest[BLANK_BYTES:])
        else:
            self._rest = bytearray(rest)

    def _add_padding(self, padding: memoryview) -> None:
        """Write bytes of the padding, and end the segment if they complete it."""
        log = self._log
        is_complete = self.offset + len(padding) == log.segment_end
        if is_complete:
            log.make_next()
        if bytes(padding).strip(b"\0"):
            at = self.offset - log.segment_base
            log.mapping[at : at + len(padding)] = padding
            self._written_bytes = self._padding_bytes + len(padding)
        self._padding_bytes += len(padding)
        if is_complete:
            head = bytes(self._rest)
            self._rest, self._padding_bytes, self._written_bytes = bytearray(), 0, 0
            log.end_segment(head)
