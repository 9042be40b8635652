"""Checks a store (`delaymq store verify`): the log on its own, everything else against the log.

Exit codes: 0, if the store is sound or a broker can rebuild whatever is damaged; 1, if damage loses messages; 2, if it
is not a store.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from operator import attrgetter, itemgetter
from typing import Final

from delaymq.message.errors import NewerFormError
from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, transaction_type
from delaymq.message.hashing import index_key_hash
from delaymq.message.levels import DelayLevels
from delaymq.message.marks import parse_due, parse_mark
from delaymq.message.names import (
    DELAY_KEY,
    DELAY_SCHEDULE_ID,
    DUE,
    KEYS,
    MARK,
    OWN_PREFIX,
    REAL_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    UNIQUE_KEY,
)
from delaymq.message.record import Record
from delaymq.message.timed_marks import corrected, parse_own_due, parse_own_mark, place_of
from delaymq.store.disk.files import Files
from delaymq.store.dispatch import due_or_tags_code, recorded_due_ms, recorded_level
from delaymq.store.index.key_index import indexed_delay_key
from delaymq.store.layout import TIMED_VERSION, read_state_as_it_is
from delaymq.store.reader import INDEX_ENTRY, INDEX_HEADER, QUEUE_ENTRY, Damage, LogEnd, StoreReader
from delaymq.store.segments import segment_name
from delaymq.store.snapshot.snapshot import decode_snapshot
from delaymq.store.tools.timed_messages import own_due

SOUND: Final = 0
DAMAGED: Final = 1
NOT_A_STORE: Final = 2
BLANK_SIZE: Final = 2_147_483_647
MAX_INDEX_ENTRIES_CHECKED: Final = 200_000
"""Each checked entry costs a read of its record: this number suffices to find a broken file, and limits large ones."""
_MAX_OPEN_FILES: Final = 128
_LEVELS: Final = DelayLevels.parse()
_OWN_PREFIX: Final = OWN_PREFIX.encode()
_BARE_NUMBER_KEY = re.compile(rb"([{,]\s*)(-?\d+)(\s*:)")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem."""

    what: str
    file: str
    """Path below the store."""
    offset: int
    """Byte in that file."""
    detail: str
    """The problem, and what is lost or will be rebuilt."""


@dataclass(kw_only=True)
class Verification:
    """Result of a check."""

    path: str
    exit_code: int = SOUND
    records: int = 0
    queue_entries: int = 0
    index_entries: int = 0
    log_begin: int = 0
    log_end: int = 0
    damage: list[Finding] = field(default_factory=list)
    """Problems that lose messages."""
    rebuildable: list[Finding] = field(default_factory=list)
    """Problems that a broker repairs when it opens the store, or that affect only unacknowledged messages."""

    def as_json(self) -> dict[str, object]:
        """Return the result for `--json`."""
        return asdict(self)


def verify(path: str | os.PathLike[str]) -> Verification:
    """Check the whole store; never writes, and reports problems instead of raising."""
    try:
        reader = StoreReader(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        result = Verification(path=os.fspath(path), exit_code=NOT_A_STORE)
        result.damage.append(Finding(what="not-a-store", file="", offset=0, detail=str(error)))
        return result
    result = Verification(path=reader.path)
    check = _Check(reader, result)
    check.log_and_queues()
    check.queues_beyond_log()
    check.index()
    check.small_files()
    if result.damage:
        result.exit_code = DAMAGED
    return result


class _Check:
    def __init__(self, reader: StoreReader, result: Verification) -> None:
        self._reader = reader
        self._result = result
        self._queues: dict[tuple[str, int], list[tuple[int, str, int]]] = {
            key: reader.queue_files(*key) for key in reader.queues()
        }
        self._segments = reader.segments()
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lacking: dict[tuple[str, int], int] = {}
        self._differing: dict[tuple[str, int], tuple[int, str]] = {}
        self._deleted_topics = self._read_deleted_topics()
        self._has_timed = False

    def _shown(self, path: str) -> str:
        return path.removeprefix(self._reader.path + "/")

    def _read_deleted_topics(self) -> dict[str, int]:
        path = f"{self._reader.path}/delaymq/deleted_topics.json"
        try:
            with open(path, "rb") as file:
                return {str(topic): int(end) for topic, end in json.loads(file.read()).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError) as error:
            detail = f"cannot be read ({error}): old entries of deleted topics may reappear"
            self._rebuildable("config-damaged", self._shown(path), 0, detail)
            return {}

    # -- the log, and each record's queue entry -------------------------------------------------------------------

    def log_and_queues(self) -> None:
        result = self._result
        segments = self._segments
        result.log_begin = segments[0].base if segments else 0
        sizes = {segment.file_bytes for segment in segments}
        if len(sizes) > 1:
            detail = f"files have different sizes ({', '.join(map(str, sorted(sizes)))}): a file was truncated"
            result.rebuildable.append(Finding(what="segment-size", file="commitlog", offset=0, detail=detail))
        try:
            for item in self._reader.walk():
                if isinstance(item, Record):
                    self._record(item)
                elif isinstance(item, Damage):
                    detail = f"{item.reason}: {item.lost_bytes} bytes of messages are lost, but valid messages follow"
                    file = self._shown(item.path)
                    result.damage.append(Finding(what="log-hole", file=file, offset=item.position, detail=detail))
                else:
                    self._end(item)
        finally:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()
        for (topic, queue_id), count in self._lacking.items():
            file = f"consumequeue/{topic}/{queue_id}"
            detail = f"{count} records of the log have no entry: rebuilt at the next start"
            result.rebuildable.append(Finding(what="queue-lacks", file=file, offset=0, detail=detail))
        for (topic, queue_id), (number, detail) in self._differing.items():
            file = f"consumequeue/{topic}/{queue_id}"
            result.rebuildable.append(
                Finding(what="queue-differs", file=file, offset=number * QUEUE_ENTRY.size, detail=detail)
            )

    def _end(self, end: LogEnd) -> None:
        self._result.log_end = end.offset
        if end.segment is not None and end.torn_bytes:
            detail = f"{end.torn_bytes} bytes after the last valid record ({end.reason}): removed at the next start"
            self._result.rebuildable.append(
                Finding(
                    what="torn-tail",
                    file=self._shown(end.segment.path),
                    offset=end.offset - end.segment.base,
                    detail=detail,
                )
            )

    def _record(self, record: Record) -> None:
        self._result.records += 1
        try:
            if record.topic == TIMER_TOPIC or _OWN_PREFIX in record.raw_properties:
                self._statements(record)
            self._record_and_entry(record)
        except NewerFormError as error:
            self._result.damage.append(self._finding("newer-form", record, str(error)))

    def _finding(self, what: str, record: Record, detail: str) -> Finding:
        base = self._segments[bisect_right(self._segments, record.physical_offset, key=attrgetter("base")) - 1].base
        file = f"commitlog/{segment_name(base)}"
        return Finding(what=what, file=file, offset=record.physical_offset - base, detail=detail)

    def _statements(self, record: Record) -> None:
        """Check statements of form 2: no other checksum covers properties."""
        place = record.physical_offset
        for name, parse in ((DUE, parse_own_due), (MARK, parse_own_mark)):
            text = record.properties.get(name)
            if text is None:
                continue
            mended = None if place_of(text) is not None else corrected(text, place)
            self._has_timed |= parse(mended or text, place) is not None
            if mended is not None:
                detail = f"{name} has one flipped bit, which every reader corrects"
                self._result.rebuildable.append(self._finding("statement-damaged", record, detail))
            elif name == MARK and place_of(text) is None and parse_mark(text) is None:
                detail = f"{name} is damaged: a broker compares the record with the pending messages instead"
                self._result.rebuildable.append(self._finding("statement-damaged", record, detail))
            elif name == DUE and place_of(text) is None and record.topic == TIMER_TOPIC:
                self._damaged_due(record)

    def _damaged_due(self, record: Record) -> None:
        result = self._result
        if recorded_due_ms(record.properties, record.physical_offset) is not None:
            detail = f"{DUE} is damaged: the due time in TIMER_OUT_MS is used instead"
            result.rebuildable.append(self._finding("statement-damaged", record, detail))
        else:
            detail = f"{DUE} and TIMER_OUT_MS are damaged: the message is never delivered"
            result.damage.append(self._finding("statement-damaged", record, detail))

    def _record_and_entry(self, record: Record) -> None:
        if transaction_type(record.sys_flag) not in (0, TRANSACTION_COMMIT):
            return
        if record.physical_offset < self._deleted_topics.get(record.topic, 0):
            return  # its queues were deleted; a later topic with that name counts from 0
        key = record.topic, record.queue_id
        entry = self._entry(key, record.queue_offset)
        if entry is None:
            self._lacking[key] = self._lacking.get(key, 0) + 1
            return
        self._result.queue_entries += 1
        expected = _expected_tags_code(record)
        if entry[:2] != (record.physical_offset, record.size):
            detail = (
                f"entry {record.queue_offset} names offset {entry[0]} and size {entry[1]}; the record is at offset "
                f"{record.physical_offset} and has size {record.size}"
            )
            self._differing.setdefault(key, (record.queue_offset, detail))
        elif expected is not None and entry[2] != expected:
            detail = f"entry {record.queue_offset} has tags code {entry[2]} instead of {expected}"
            self._differing.setdefault(key, (record.queue_offset, detail))

    def _entry(self, key: tuple[str, int], number: int) -> tuple[int, int, int] | None:
        position = number * QUEUE_ENTRY.size
        files = self._queues.get(key, [])
        file_number = bisect_right(files, position, key=itemgetter(0)) - 1
        if file_number < 0:
            return None
        start, path, file_bytes = files[file_number]
        if position >= start + file_bytes:
            return None
        data = os.pread(self._descriptor(path), QUEUE_ENTRY.size, position - start)
        if len(data) < QUEUE_ENTRY.size:
            return None
        offset, size, code = QUEUE_ENTRY.unpack(data)
        return (offset, size, code) if size > 0 else None

    def _descriptor(self, path: str) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > _MAX_OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        return descriptor

    def queues_beyond_log(self) -> None:
        """Find entries whose records are not in the log."""
        result = self._result
        for (topic, queue_id), files in self._queues.items():
            if not files:
                continue
            last: tuple[int, int] | None = None
            for number, offset, size, _ in self._reader.entries(topic, queue_id):
                if size != BLANK_SIZE:
                    last = number, offset
            if last is not None and last[1] >= result.log_end:
                detail = (
                    f"entry {last[0]} names offset {last[1]}, but the log ends at {result.log_end}: truncated at the"
                    " next start"
                )
                file = f"consumequeue/{topic}/{queue_id}"
                result.rebuildable.append(
                    Finding(what="queue-beyond-log", file=file, offset=last[0] * QUEUE_ENTRY.size, detail=detail)
                )

    # -- the index ------------------------------------------------------------------------------------------------

    def index(self) -> None:
        left = MAX_INDEX_ENTRIES_CHECKED
        sizes = set()
        for path in self._reader.index_files():
            file_bytes = os.stat(path).st_size
            sizes.add(file_bytes)
            problem, checked = self._index_problem(path, file_bytes, left)
            left -= checked
            if problem:
                self._rebuildable("index-damaged", self._shown(path), 0, problem)
        if len(sizes) > 1:
            self._rebuildable("index-size", "index", 0, "files have different sizes: rebuilt at the next start")

    def _index_problem(self, path: str, file_bytes: int, limit: int) -> tuple[str, int]:
        with open(path, "rb") as file:
            data = os.pread(file.fileno(), INDEX_HEADER.size, 0)
            if len(data) < INDEX_HEADER.size:
                return "the file has no header: rebuilt at the next start", 0
            count = INDEX_HEADER.unpack(data)[5]
            before_entries = slot_bytes(file_bytes)
            if before_entries is None:
                return "", 0
            first = INDEX_HEADER.size + before_entries
            if first + count * INDEX_ENTRY.size > file_bytes:
                return f"the header states {count} entries, more than fit in the file: rebuilt at the next start", 0
            checked = 0
            for number in range(max(1, count - limit), count):
                entry = os.pread(file.fileno(), INDEX_ENTRY.size, first + number * INDEX_ENTRY.size)
                key_hash, offset, _, previous = INDEX_ENTRY.unpack(entry)
                if not 0 <= previous < number:
                    return (
                        f"entry {number} links to entry {previous}, not to an earlier one: rebuilt at the next start",
                        checked,
                    )
                checked += 1
                self._result.index_entries += 1
                if offset < self._result.log_begin:
                    continue
                record = self._reader.record_at(offset, self._segments)
                if record is None or key_hash not in _key_hashes(record):
                    return f"entry {number} names offset {offset}, where no record has the key", checked
        return "", checked

    # -- small files ----------------------------------------------------------------------------------------------

    def small_files(self) -> None:
        folder = f"{self._reader.path}/config"
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        for name in names:
            if name.endswith(".json"):
                with open(f"{folder}/{name}", "rb") as file:
                    data = file.read()
                try:
                    json.loads(_BARE_NUMBER_KEY.sub(rb'\1"\2"\3', data))
                except ValueError as error:
                    backup = "its backup" if f"{name}.bak" in names else "an empty table"
                    self._rebuildable("config-damaged", f"config/{name}", 0, f"{error}: {backup} is used")
        state = read_state_as_it_is(Files(), self._reader.path) if self._has_timed else None
        if state is not None and state.minimum_reader < TIMED_VERSION:
            detail = (
                f"minimumReader is {state.minimum_reader}, but the log contains timed messages, which programs older"
                f" than format version {TIMED_VERSION} ignore: do not open the store with one"
            )
            self._rebuildable("format-version", "delaymq/state.json", 0, detail)
        snapshot = f"{self._reader.path}/delaymq/snapshot.json"
        if os.path.exists(snapshot):
            with open(snapshot, "rb") as file:
                try:
                    decode_snapshot(file.read())
                except ValueError as error:
                    self._rebuildable("snapshot-damaged", "delaymq/snapshot.json", 0, f"{error}: the log is replayed")
        if os.path.exists(f"{self._reader.path}/abort"):
            self._rebuildable("not-stopped", "abort", 0, "a broker has the store open, or was killed")

    def _rebuildable(self, what: str, file: str, offset: int, detail: str) -> None:
        self._result.rebuildable.append(Finding(what=what, file=file, offset=offset, detail=detail))


def _expected_tags_code(record: Record) -> int | None:
    """Return the expected tags code; None if another broker may have written another one.

    That is the case if only the delay level table at the store time would show the due time, and for a record of the
    timer topic that does not state its own due time.
    """
    properties = record.properties
    if record.topic == SCHEDULE_TOPIC and recorded_level(properties) > 0:
        if parse_due(properties.get(DUE, ""), record.queue_id, record.queue_offset) is None:
            return None
    elif record.topic == TIMER_TOPIC and own_due(record) is None:
        return None
    return due_or_tags_code(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        properties,
        record.store_timestamp_ms,
        _LEVELS,
    )


def _key_hashes(record: Record) -> set[int]:
    if transaction_type(record.sys_flag) == TRANSACTION_ROLLBACK:
        return set()
    properties = record.properties
    keys = [key for key in properties.get(KEYS, "").split(" ") if key]
    if UNIQUE_KEY in properties:
        keys.append(properties[UNIQUE_KEY])
    if record.topic == TIMER_TOPIC and DELAY_KEY in properties:
        keys.append(indexed_delay_key(properties.get(REAL_TOPIC, ""), properties[DELAY_KEY]))
    if DELAY_SCHEDULE_ID in properties:
        keys.append(properties[DELAY_SCHEDULE_ID])
    return {index_key_hash(record.topic, key) for key in keys}


def slot_bytes(file_bytes: int) -> int | None:
    """Return the position of the first entry, for files with a slot-entry ratio of 1 : 4 (the default) or 1 : 2.

    The file does not state it; None for other ratios, of which only the header can be checked.
    """
    rest = file_bytes - INDEX_HEADER.size
    for ratio in (4, 2):
        slots, remainder = divmod(rest, 4 + 20 * ratio)
        if remainder == 0:
            return slots * 4
    return None
