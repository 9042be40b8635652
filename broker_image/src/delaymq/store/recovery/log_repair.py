"""Repair of the log where it contains no valid record: end it there, or bridge the gap to the next one.

docs/decisions/0007-bridge-damage-in-the-log.md gives the reasons. Overwritten bytes are copied to delaymq/aside/ first.
"""

from __future__ import annotations

from delaymq.message.flags import TRANSACTION_ROLLBACK
from delaymq.message.names import MARKS_TOPIC
from delaymq.message.record import BLANK_BYTES, BLANK_MAGIC, FIXED_BYTES, IPV4_HOST_BYTES, SIZE_AND_MAGIC, encode_record
from delaymq.store.commit_log import CommitLog
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files
from delaymq.store.model import Correction
from delaymq.store.recovery.log_scan import ScanPosition, find_sound, is_sound
from delaymq.store.segments import Segment, segment_name

_MIN_FILLER_BYTES = FIXED_BYTES + 1
"""The topic of a record has at least one character."""
_MAX_FILLER_BYTES = 1 << 20
_NO_HOST = bytes(IPV4_HOST_BYTES)


class LogRepair:
    """Bridges gaps and clears the log after its end."""

    def __init__(self, files: Files, aside: AsideFolder, log: CommitLog, corrections: list[Correction]) -> None:
        self._files = files
        self._aside = aside
        self._log = log
        self._corrections = corrections

    def bridge(self, at: ScanPosition) -> int:
        """Fill the gap at `at` if a valid record follows; return its size, or 0 if the log ends there.

        Fillers are rolled-back records: every reader of the format skips them, and none delivers them.
        """
        hole = at.offset
        found = self._next_sound(hole, at.not_before_ms)
        if found is None:
            return 0
        position = hole
        while position < found:
            segment = self._log.segment_of(position)
            assert segment is not None
            segment_end = segment.base + self._log.file_bytes
            self._aside.keep_log(segment.descriptor, segment.base, position, min(found, segment_end))
            if found >= segment_end:
                if segment_end - position >= BLANK_BYTES:
                    blank = SIZE_AND_MAGIC.pack(segment_end - position, BLANK_MAGIC)
                    self._files.pwrite(segment.descriptor, blank, position - segment.base)
                position = segment_end
            else:
                self._fill(segment, position, found, at.not_before_ms)
                position = found
            self._files.fdatasync(segment.descriptor)
        self._correct(
            "log-hole",
            hole,
            f"{found - hole} bytes are not valid records, but valid ones follow at {found}: the messages in between "
            "are lost, their bytes are retained in delaymq/aside",
        )
        return found - hole

    def _next_sound(self, hole: int, not_before_ms: int) -> int | None:
        for segment in self._log.segments:
            if segment.base + self._log.file_bytes <= hole:
                continue
            start = max(hole - segment.base, 0)
            data = self._files.map(segment.descriptor, self._log.file_bytes)
            try:
                if start == 0 and segment.base > hole and is_sound(data, 0, segment.base, not_before_ms):
                    return segment.base
                start += _MIN_FILLER_BYTES
                found = find_sound(self._files, segment.descriptor, data, start, segment.base, not_before_ms)
                if found is not None:
                    return segment.base + found
            finally:
                data.close()
        return None

    def _fill(self, segment: Segment, start: int, end: int, store_timestamp_ms: int) -> None:
        """Write rolled-back records from `start` to `end`."""
        topic = MARKS_TOPIC.encode()
        while start < end:
            size = end - start
            if size > _MAX_FILLER_BYTES + _MIN_FILLER_BYTES:
                size = _MAX_FILLER_BYTES
            name = topic if size >= FIXED_BYTES + len(topic) else b"x"
            record = encode_record(
                topic=name,
                queue_id=0,
                queue_offset=0,
                physical_offset=start,
                flag=0,
                sys_flag=TRANSACTION_ROLLBACK,
                born_timestamp_ms=store_timestamp_ms,
                born_host=_NO_HOST,
                store_timestamp_ms=store_timestamp_ms,
                store_host=_NO_HOST,
                reconsume_times=0,
                prepared_transaction_offset=0,
                body=bytes(size - FIXED_BYTES - len(name)),
                properties=b"",
            )
            self._files.pwrite(segment.descriptor, record, start - segment.base)
            start += size

    def clear_behind(self, end: int, *, is_cut: bool = False) -> None:
        """Zero everything after the log's end: an old record there could reappear after a new one."""
        where = "where the log had to be cut" if is_cut else "after the last valid record"
        log = self._log
        torn = 0
        later_dirty = False
        for segment in log.segments:
            start = end - segment.base
            if start >= log.file_bytes:
                continue
            if start >= 0:
                self._aside.keep_log(segment.descriptor, segment.base, end, segment.base + log.file_bytes)
                torn = self._files.zero(segment.descriptor, start, log.file_bytes)
                if torn:
                    self._files.fdatasync(segment.descriptor)
            elif not later_dirty:
                later_dirty = self._holds_data(segment)
        if later_dirty:
            while log.segments and log.segments[-1].base > end:
                self._remove(log.segments.pop(), is_cut=is_cut)
        if torn:
            what = "cut-tail" if is_cut else "torn-tail"
            self._correct(what, end, f"{torn} bytes {where}: zeroed, kept in delaymq/aside")

    def _remove(self, segment: Segment, *, is_cut: bool) -> None:
        holds_data = self._holds_data(segment)
        self._files.close(segment.descriptor)
        if holds_data:
            self._aside.remove(segment.path)
            if self._files.is_folder(self._aside.folder):
                self._files.sync_folder(self._aside.folder)
        else:
            self._files.unlink(segment.path)
        self._files.sync_folder(segment.path.rpartition("/")[0])
        if is_cut:
            self._correct(
                "cut-tail", segment.base, "behind the offset where the log had to be cut: moved to delaymq/aside"
            )
        else:
            self._correct("log-behind-end", segment.base, "no valid record in it or before it: moved to delaymq/aside")

    def _holds_data(self, segment: Segment) -> bool:
        return any(True for _ in self._files.nonzero_pieces(segment.descriptor, 0, self._log.file_bytes))

    def _correct(self, what: str, offset: int, detail: str) -> None:
        segment = self._log.segment_of(offset)
        name = segment_name(segment.base if segment is not None else offset)
        self._corrections.append(Correction(what, f"commitlog/{name}", offset, detail))
