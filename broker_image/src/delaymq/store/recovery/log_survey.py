"""Survey of the log before the replay: its end, gaps, and records with inconsistent queue offsets.

Errors are corrected in the log, so that the replay, consumers and other readers need no special cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import MAX_GAP_ENTRIES, ConsumeQueues
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files
from delaymq.store.model import Correction
from delaymq.store.recovery.log_repair import LogRepair
from delaymq.store.recovery.log_scan import ScanPosition
from delaymq.store.recovery.numbering import Numbering
from delaymq.store.recovery.placement import Placing
from delaymq.store.recovery.plain_scan import PlainScan, scan_for_survey, walk
from delaymq.store.recovery.queue_runs import Key, Survey
from delaymq.store.recovery.run_selection import Start
from delaymq.store.segments import Segment, segment_name

_CLOCK_TOLERANCE_MS: Final = 60_000
"""Maximum by which the newest store time may be ahead of the clock."""
_LONE_TOLERANCE_MS: Final = 86_400_000
"""The same if no earlier record shows whether the clock was set back."""


@dataclass(kw_only=True)
class LogSurvey:
    """One survey; call `run` once, before any queue file is changed."""

    files: Files
    log: CommitLog
    queues: ConsumeQueues
    aside: AsideFolder
    corrections: list[Correction]
    check_crc: bool
    now_ms: Callable[[], int]
    limit: int | None
    """Physical offset at which the log has to end."""
    end_at_damage: bool
    """Whether the log ends before the first damage: nothing is repaired, and no byte before the end changes."""
    _plain: PlainScan | None = None

    def run(self, at: ScanPosition, deleted: Mapping[str, int], start_of: Callable[[Key], Start]) -> set[int]:
        """Walk from `at`, which advances to the log's end; return offsets of the records without queue entry."""
        repair = LogRepair(self.files, self.aside, self.log, self.corrections)
        survey = Survey(deleted)
        if not deleted:
            self._plain = scan_for_survey(survey.take_stretches, check_crc=self.check_crc)
        while (segment := self.log.segment_of(at.offset)) is not None:
            before = at.records
            begin = at.offset
            complete = self._walk(segment, at, survey)
            if complete and begin == segment.base and before == at.records:
                survey.lost(segment.base, self.log.file_bytes)  # a blank segment that replaces a missing one
            if at.offset == self.limit:
                repair.clear_behind(at.offset, is_cut=True)
                break
            if not complete:
                bridged = 0 if self.end_at_damage or self.limit is not None else repair.bridge(at)
                if not bridged:
                    repair.clear_behind(at.offset, is_cut=self.limit is not None)
                    break
                survey.lost(at.offset, bridged)
        if self.end_at_damage:
            return set()
        placing = Placing(self.files, self.aside, self.log, self.queues)
        restored = (placing.restore_statement(each) for each in survey.unnamed_statements)
        self.corrections += [correction for correction in restored if correction is not None]
        without_entry = set()
        max_gap = max(MAX_GAP_ENTRIES, self.queues.file_entries)
        for place in Numbering(survey, start_of, placing, max_gap).decide():
            self.corrections.append(placing.put_in_place(place))
            if place.key is None:
                without_entry.add(place.at)
        self._doubt_newest_time(placing, at)
        return without_entry

    def _walk(self, segment: Segment, at: ScanPosition, survey: Survey) -> bool:
        """Walk to the end of a segment, or to the limit in it; return whether it was reached."""
        data = self.files.map(segment.descriptor, self.log.file_bytes)
        whole = memoryview(data)
        part = whole if self.limit is None else whole[: max(self.limit - segment.base, 0)]
        try:
            return walk(part, segment.base, at, survey.take, self._plain, check_crc=self.check_crc)
        finally:
            part.release()
            whole.release()
            data.close()

    def _doubt_newest_time(self, placing: Placing, end: ScanPosition) -> None:
        """Correct a store time ahead of the clock, which all later records would otherwise get too.

        If the clock was set back, the records before the newest one are ahead of it too, and nothing is corrected.
        """
        said_ms, before_ms, now_ms = end.last_store_timestamp_ms, end.before_last_ms, self.now_ms()
        tolerance_ms = _CLOCK_TOLERANCE_MS if before_ms else _LONE_TOLERANCE_MS
        if end.records == 0 or said_ms <= now_ms + tolerance_ms or before_ms > now_ms + tolerance_ms:
            return
        segment = self.log.segment_of(end.last_offset)
        assert segment is not None
        end.last_store_timestamp_ms = before_ms or now_ms
        placing.set_store_time(end.last_offset, end.last_store_timestamp_ms)
        detail = (
            f"the newest record has store time {said_ms}, which is in the future, unlike that of the record before it: "
            f"replaced by {end.last_store_timestamp_ms}"
        )
        file = f"commitlog/{segment_name(segment.base)}"
        self.corrections.append(Correction("store-time", file, end.last_offset, detail))
