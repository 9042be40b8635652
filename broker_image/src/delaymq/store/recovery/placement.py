"""Access to the log for the numbering: evidence from records and queue files, and corrections of records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from delaymq.message.errors import NewerFormError, RecordError
from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from delaymq.message.group_marks import is_group_mark
from delaymq.message.marks import Mark, MarkKind, parse_mark
from delaymq.message.names import (
    DELAY_RUN,
    DUE,
    MARK,
    MARKS_TOPIC,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    SCHEDULE_DLQ_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from delaymq.message.properties import decode_properties
from delaymq.message.record import (
    BORN_HOST_AT,
    FIXED_BYTES,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_ID_AT,
    QUEUE_ID_BYTES,
    QUEUE_OFFSET_AT,
    QUEUE_OFFSET_BYTES,
    SIZE_BYTES,
    STORE_TIMESTAMP_BYTES,
    Record,
    decode_record,
)
from delaymq.message.timed_marks import (
    PLACE_DIGITS,
    VERSION,
    TimedMark,
    TimedMarkKind,
    parse_own_due,
    parse_own_mark,
    place_of,
)
from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import BLANK_SIZE, ConsumeQueues
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files
from delaymq.store.model import Correction
from delaymq.store.recovery.gaps import MAX_BITS, bits_between
from delaymq.store.recovery.log_scan import Head, ScanPosition, walk_segment
from delaymq.store.recovery.numbering import Place
from delaymq.store.recovery.queue_runs import Key, Run
from delaymq.store.segments import Segment, segment_name

_DUE_PLACE = re.compile(r"\d{16}:(\d{4}):(\d{20})\Z", re.ASCII)
_QUEUE_ID = re.compile(r"\d{1,9}\Z", re.ASCII)
_TIMER_QUEUE: Key = (TIMER_TOPIC.encode(), 0)
_UNDELIVERED_QUEUES: tuple[Key, ...] = ((SCHEDULE_DLQ_TOPIC.encode(), 0), (MARKS_TOPIC.encode(), 0))
"""Queues of dead letters and of marks alone."""


class Placing:
    """Provides evidence for `Numbering` and writes its decisions."""

    def __init__(self, files: Files, aside: AsideFolder, log: CommitLog, queues: ConsumeQueues) -> None:
        self._files = files
        self._aside = aside
        self._log = log
        self._queues = queues

    def confirms(self, key: Key, number: int, at: int) -> bool | None:
        """Return whether queue file or properties confirm this queue offset of the record at `at`; None if unknown."""
        topic = key[0].decode("utf-8", "surrogateescape")
        queue = self._queues.table.get((topic, key[1]))
        entry = self._queues.entry(queue, number) if queue is not None else None
        if entry is not None and 0 < entry[1] < BLANK_SIZE and entry[0] == at:
            return True
        if topic == SCHEDULE_TOPIC:
            record = self._record_at(at)
            due = _due_place(record, at) if record is not None else None
            return None if due is None else due == (key[1], number)
        return False if self.queue_of(at) not in (None, key) else None

    def queue_of(self, at: int) -> Key | None:
        """Return the queue to which the properties of a record assign it; None if they assign it to none.

        Properties that name a queue unlike the stated one were copied from another record: brokers and clients of
        RocketMQ copy them to retries, dead letters and new messages.
        """
        record = self._record_at(at)
        if record is None:
            return None
        stated = record.topic.encode("utf-8", "surrogateescape"), record.queue_id
        return next((key for key in _named(record, at) if bits_between(stated, key) <= MAX_BITS), None)

    def places(self, runs: Sequence[tuple[Key, Run]]) -> list[list[int]]:
        """Return the physical offsets of the records of each run, found in one walk."""
        found: list[list[int]] = [[] for _ in runs]
        by_queue: dict[Key, list[tuple[Run, list[int]]]] = {}
        for (key, run), places in zip(runs, found, strict=True):
            by_queue.setdefault(key, []).append((run, places))

        def take(*fields: Any) -> None:
            head = Head(*fields)
            wanted = by_queue.get((head.topic, head.queue_id))
            if wanted is None or head.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
                return
            while wanted and wanted[0][0].last_at < head.physical_offset:
                wanted.pop(0)
            if wanted and wanted[0][0].first_at <= head.physical_offset:
                wanted[0][1].append(head.physical_offset)

        at = ScanPosition(min(run.first_at for _, run in runs))
        end = max(run.last_at for _, run in runs)
        while at.offset <= end and (segment := self._log.segment_of(at.offset)) is not None:
            data = self._files.map(segment.descriptor, self._log.file_bytes)
            try:
                if not walk_segment(data, segment.base, at, take, check_crc=False):
                    break
            finally:
                data.close()
        return found

    def put_in_place(self, place: Place) -> Correction:
        """Write a record's assigned queue and queue offset to the log, for consumers and later starts."""
        segment = self._log.segment_of(place.at)
        record = self._record_at(place.at)
        assert segment is not None
        assert record is not None
        file = f"commitlog/{segment_name(segment.base)}"
        said = f"queue offset {place.said_number} of {_shown(place.said)}"
        if place.key is None:
            detail = f"the record states {said}, but another record has it: it gets no queue entry"
            return Correction("queue-number", file, place.at, detail)
        self._aside.keep_log(segment.descriptor, segment.base, place.at, place.at + record.size)
        position = place.at - segment.base
        topic, queue_id = place.key
        self._write(segment, position + QUEUE_ID_AT, queue_id.to_bytes(QUEUE_ID_BYTES, "big", signed=True))
        self._write(segment, position + QUEUE_OFFSET_AT, place.number.to_bytes(QUEUE_OFFSET_BYTES, "big"))
        if topic != place.said[0]:
            topic_at = record.size - len(record.raw_properties) - PROPERTIES_LENGTH_BYTES - len(topic)
            self._write(segment, position + topic_at, topic)
        self._files.fdatasync(segment.descriptor)
        detail = (
            f"the record states {said}, which fits neither the preceding nor the following records: it became "
            f"queue offset {place.number} of {_shown(place.key)}, and its original place is saved in delaymq/aside"
        )
        return Correction("queue-number", file, place.at, detail)

    def set_store_time(self, at: int, store_timestamp_ms: int) -> None:
        """Change the store time of the record at `at`."""
        segment = self._log.segment_of(at)
        record = self._record_at(at)
        assert segment is not None
        assert record is not None
        self._aside.keep_log(segment.descriptor, segment.base, at, at + record.size)
        position = at - segment.base + BORN_HOST_AT + len(record.born_host)
        self._write(segment, position, store_timestamp_ms.to_bytes(STORE_TIMESTAMP_BYTES, "big"))
        self._files.fdatasync(segment.descriptor)

    def restore_statement(self, at: int) -> Correction | None:
        """Restore the name of a statement of the record at `at`; None if more than one bit of it is damaged.

        One flipped bit in the name or in a separator makes readers ignore a sound statement: a pending message would
        look like one of RocketMQ 5, and its copy would not end it.
        """
        record = self._record_at(at)
        segment = self._log.segment_of(at)
        restored = None if record is None else _with_names(record.raw_properties, at)
        if record is None or segment is None or restored is None:
            return None
        self._aside.keep_log(segment.descriptor, segment.base, at, at + record.size)
        properties_at = at - segment.base + record.size - len(restored)
        self._write(segment, properties_at, restored)
        self._files.fdatasync(segment.descriptor)
        detail = "the name of its due time or mark had one flipped bit: corrected, the original is in delaymq/aside"
        return Correction("statement", f"commitlog/{segment_name(segment.base)}", at, detail)

    def _write(self, segment: Segment, position: int, data: bytes) -> None:
        self._files.pwrite(segment.descriptor, data, position)

    def _record_at(self, at: int) -> Record | None:
        segment = self._log.segment_of(at)
        if segment is None:
            return None
        position = at - segment.base
        size = int.from_bytes(self._files.pread(segment.descriptor, SIZE_BYTES, position), "big")
        if not FIXED_BYTES <= size <= self._log.file_bytes - position:
            return None
        try:
            return decode_record(self._files.pread(segment.descriptor, size, position), check_crc=False)
        except RecordError:
            return None


def _named(record: Record, at: int) -> Iterator[Key]:
    """Yield the queues that a due time or mark of the record at `at` may name."""
    properties = record.properties
    try:
        if parse_own_due(properties.get(DUE, ""), at) is not None:
            yield _TIMER_QUEUE
        text = properties.get(MARK, "")
        mark = parse_own_mark(text, at) or parse_mark(text)
    except NewerFormError:
        return  # the replay rejects the store
    if mark is None and place_of(text) == at and is_group_mark(text):
        yield MARKS_TOPIC.encode(), 0
    elif mark is None:
        if (due := _due_place(record, at)) is not None:
            yield SCHEDULE_TOPIC.encode(), due[0]
    elif isinstance(mark, TimedMark) and mark.kind is TimedMarkKind.CARRIED and mark.queue is not None:
        yield SCHEDULE_TOPIC.encode(), mark.queue[0]
    elif mark.kind not in (MarkKind.DELIVERED, TimedMarkKind.DELIVERED) or _restates_run(mark, properties):
        yield from _UNDELIVERED_QUEUES
    elif _QUEUE_ID.match(queue_id := properties.get(REAL_QUEUE_ID, "")):
        yield properties.get(REAL_TOPIC, "").encode("utf-8", "surrogateescape"), int(queue_id)


def _restates_run(mark: Mark | TimedMark, properties: dict[str, str]) -> bool:
    """Return whether a mark is that of a run whose copy is another record, with a damaged mark."""
    return isinstance(mark, TimedMark) and mark.run is not None and DELAY_RUN not in properties


def _with_names(properties: bytes, at: int) -> bytes | None:
    """Return the properties with the name before a statement of the record at `at`; None if no single bit is wrong."""
    value_at = properties.find(f"{VERSION}:{at:0{PLACE_DIGITS}d}:".encode())
    for name in (DUE, MARK) if value_at > 0 else ():
        prefix = f"\x02{name}\x01".encode()[-value_at:]
        found = properties[value_at - len(prefix) : value_at]
        if sum((one ^ other).bit_count() for one, other in zip(prefix, found, strict=True)) == 1:
            restored = properties[: value_at - len(prefix)] + prefix + properties[value_at:]
            return restored if place_of(decode_properties(restored).get(name, "")) == at else None
    return None


def _due_place(record: Record, at: int) -> tuple[int, int] | None:
    """Return queue id and queue offset that the delayed record at `at` states; None if it states none.

    A record with a mark is a copy, and so is its due time, unless the mark says that the record carries a message
    forward.
    """
    properties = record.properties
    text = properties.get(MARK)
    try:
        mark = parse_own_mark(text, at) if text is not None else None
    except NewerFormError:
        return None
    if text is not None and (mark is None or mark.kind is not TimedMarkKind.CARRIED):
        return None
    due = _DUE_PLACE.match(properties.get(DUE, ""))
    return None if due is None else (int(due[1]), int(due[2]))


def _shown(key: Key) -> str:
    return f"{key[0].decode('utf-8', 'replace')}/{key[1]}"
