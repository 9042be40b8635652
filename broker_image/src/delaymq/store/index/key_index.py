"""Key index: all index files, oldest first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from delaymq.message.hashing import index_key_hash
from delaymq.message.names import DELAY_KEY, DELAY_SCHEDULE_ID, KEYS, REAL_TOPIC, TIMER_TOPIC, UNIQUE_KEY
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files, is_full
from delaymq.store.index.index_file import (
    HEADER_BYTES,
    INDEXED_KEY,
    MAX_QUERY,
    SLOTS_INTERVAL_ENTRIES,
    IndexFile,
)
from delaymq.store.model import Dispatched
from delaymq.store.plain_runs import PlainRun

_logger = logging.getLogger(__name__)
NAME_DIGITS = 17
_TOLERANCE_MS = 30 * 86_400_000
"""No checksum covers store times: one further ahead of both the clock and the previous one counts as damaged."""
_YEAR_9999_MS = 253_370_764_800_000
MAX_KEYS = 128
"""Limit of indexed keys per message. With 32 KiB of properties it could have 16,000, which take 50 ms."""
MAX_QUERY_STEPS = 4_096
"""Limit of entries that a query examines: about 10 ms."""


class IndexState(NamedTuple):
    """State of the newest file in a snapshot."""

    name: str
    entries: int
    slots_entries: int
    numbers: tuple[int, int, int, int, int]
    """Other numbers of the header: begin and end timestamp, begin and end offset, used slots."""


def indexed_keys(keys: str) -> list[str]:
    """Return the keys of a message that are indexed; some may be empty."""
    return keys.split(" ", MAX_KEYS)[:MAX_KEYS]


def indexed_delay_key(topic: str, key: str) -> str:
    """Return the key under which a record of the timer topic with a DELAY_KEY is indexed; `topic` is its real topic."""
    return f"{topic}#{key}"


def _delay_key_hash(properties: dict[str, str]) -> int:
    return index_key_hash(TIMER_TOPIC, indexed_delay_key(properties.get(REAL_TOPIC, ""), properties[DELAY_KEY]))


def _is_gone(file: IndexFile) -> bool:
    return file.is_removed


def is_index_name(name: str) -> bool:
    """Whether a file is named after a time, yyyyMMddHHmmssSSS."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit() and _time_ms(name) > 0


class KeyIndex:
    """Index of a store. `put` in log order; `query` by topic and key."""

    def __init__(
        self,
        files: Files,
        folder: str,
        slot_count: int,
        entry_count: int,
        aside: AsideFolder,
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._aside = aside
        self._now_ms = now_ms
        self._latest_ms = 0
        self.folder = folder
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.files: list[IndexFile] = []
        self._refused = False
        self._incomplete = False
        self.unsynced_files: list[IndexFile] = []
        """Full files whose last parts are not yet durable."""
        self.folder_unsynced = False
        self.safe_timestamp_ms = 0
        """End time of the last full file that is completely durable: the checkpoint's index timestamp."""
        self._skip_below = -1

    @property
    def full(self) -> bool:
        """Whether snapshots are impossible because the disk is full or the index lacks keys."""
        return self._refused or self._incomplete

    @property
    def is_complete(self) -> bool:
        """Whether no keys were omitted for lack of memory."""
        return not self._incomplete

    @property
    def file_bytes(self) -> int:
        """Size of each file in bytes."""
        return HEADER_BYTES + self.slot_count * 4 + self.entry_count * 20

    # -- the hot path ---------------------------------------------------------------------------------------------

    def put(self, record: Dispatched) -> None:
        """Index the record's unique id and keys; omit them if there is no memory for a new file's slots."""
        properties = record.properties
        offset = record.physical_offset
        if offset <= self._skip_below:
            return
        try:
            stored_ms = record.store_timestamp_ms
            if not 0 <= stored_ms <= self._latest_ms:
                stored_ms = self._believable(stored_ms)
            unique, keys = properties.get(UNIQUE_KEY), properties.get(KEYS)
            if DELAY_KEY in properties and record.topic == TIMER_TOPIC:
                self._newest(stored_ms).put(_delay_key_hash(properties), offset, stored_ms)
            if unique is not None:
                self._newest(stored_ms).put(index_key_hash(record.topic, unique), offset, stored_ms)
            if keys is not None:
                for key in indexed_keys(keys):
                    if key:
                        self._newest(stored_ms).put(index_key_hash(record.topic, key), offset, stored_ms)
            if DELAY_SCHEDULE_ID in properties:
                key_hash = index_key_hash(record.topic, properties[DELAY_SCHEDULE_ID])
                self._newest(stored_ms).put(key_hash, offset, stored_ms)
        except OSError as error:
            self._omit(error)

    def put_all(self, records: Sequence[Dispatched]) -> None:
        """Index records of one store time, in log order, like `put`; at least one."""
        stored_ms = records[0].store_timestamp_ms
        if records[0].physical_offset <= self._skip_below or not 0 <= stored_ms <= self._latest_ms:
            for record in records:
                self.put(record)
            return
        entries: list[tuple[int, int]] = []
        for record in records:
            topic, offset, properties = record.topic, record.physical_offset, record.properties
            unique, keys = properties.get(UNIQUE_KEY), properties.get(KEYS)
            if DELAY_KEY in properties and topic == TIMER_TOPIC:
                entries.append((_delay_key_hash(properties), offset))
            if unique is not None:
                entries.append((index_key_hash(topic, unique), offset))
            if keys is not None:
                entries += [(index_key_hash(topic, key), offset) for key in indexed_keys(keys) if key]
            if DELAY_SCHEDULE_ID in properties:
                entries.append((index_key_hash(topic, properties[DELAY_SCHEDULE_ID]), offset))
        try:
            while entries:
                file = self._newest(stored_ms)
                room = file.entry_count - file.count
                file.put_all(entries[:room], stored_ms)
                del entries[:room]
        except OSError as error:
            self._omit(error)

    def put_run(self, run: PlainRun) -> None:
        """Index the records of a run like `put`."""
        if 0 <= run.store_timestamp_ms <= self._latest_ms:
            self.put_keys(run.keys)
        else:
            for record in run.dispatched():
                self.put(record)

    def put_keys(self, keys: bytes) -> None:
        """Add keys packed as INDEXED_KEY, in log order. None may have a store time after `latest_ms`."""
        if keys and INDEXED_KEY.unpack_from(keys)[1] <= self._skip_below:
            if INDEXED_KEY.unpack_from(keys, len(keys) - INDEXED_KEY.size)[1] <= self._skip_below:
                return
            left = [key for key in INDEXED_KEY.iter_unpack(keys) if key[1] > self._skip_below]
            keys = b"".join([INDEXED_KEY.pack(*key) for key in left])
        try:
            while keys:
                file = self._newest(INDEXED_KEY.unpack_from(keys)[2])
                room = (file.entry_count - file.count) * INDEXED_KEY.size
                file.put_packed(keys[:room])
                keys = keys[room:]
        except OSError as error:
            self._omit(error)

    @property
    def latest_ms(self) -> int:
        """Highest store time that is believed; 0 before the first record."""
        if self._latest_ms == 0 and self.files:
            self._believable(0)
        return self._latest_ms

    def _omit(self, error: OSError) -> None:
        # The record is in the log: the observers after the index, above all the schedule, must receive it.
        if not self._incomplete:
            self._incomplete = True
            _logger.error("keys of new messages are not indexed; the next restart adds them: %s", error)

    def _believable(self, stored_ms: int) -> int:
        """Return a record's store time, or the previous one if damaged: a file's first time dates all its entries."""
        newest = self.files[-1] if self.files else None
        now_ms = self._now_ms()
        if newest is None:
            return stored_ms if 0 <= stored_ms < _YEAR_9999_MS else now_ms
        self._latest_ms = min(max(now_ms, newest.end_timestamp_ms) + _TOLERANCE_MS, _YEAR_9999_MS)
        return stored_ms if 0 <= stored_ms <= self._latest_ms else min(newest.end_timestamp_ms, self._latest_ms)

    def _newest(self, stored_ms: int) -> IndexFile:
        files = self.files
        if files and files[-1].count < files[-1].entry_count:
            return files[-1]
        return self._next_file(stored_ms)

    def _next_file(self, store_timestamp_ms: int) -> IndexFile:
        previous = self.files[-1] if self.files else None
        now_ms = store_timestamp_ms
        name = _name(now_ms)
        while previous is not None and name <= previous.path.rpartition("/")[2]:
            now_ms = max(now_ms + 1, _time_ms(previous.path.rpartition("/")[2]) + 1)
            name = _name(now_ms)
        file = IndexFile(self._files, f"{self.folder}/{name}", self.slot_count, self.entry_count)
        file.load_slots(from_file=False)
        if previous is not None:
            file.begin_timestamp_ms = file.end_timestamp_ms = previous.end_timestamp_ms
            file.begin_offset = file.end_offset = previous.end_offset
            self.unsynced_files.append(previous)
        self.files.append(file)
        self.folder_unsynced = True
        return file

    # -- reading --------------------------------------------------------------------------------------------------

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets of records that may have `key`, newest first; hashes may collide.

        Examines at most MAX_QUERY_STEPS entries because the call is not interruptible; `steps` has no such limit.
        """
        key_hash = index_key_hash(topic, key)
        limit, steps = min(max_count, MAX_QUERY), MAX_QUERY_STEPS
        found: list[int] = []
        for file in reversed(self.files):
            if file.is_in_time(begin_ms, end_ms):
                steps = file.query(key_hash, begin_ms, end_ms, limit, found, steps)
            if len(found) >= limit or not steps or file.begin_timestamp_ms < begin_ms:
                break
        return found

    def steps(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield all results of `query`; None marks points at which the caller may interrupt and files may go."""
        key_hash = index_key_hash(topic, key)
        for file in list(reversed(self.files)):
            yield None
            if _is_gone(file):
                return
            try:
                if file.is_in_time(begin_ms, end_ms):
                    for step in file.steps(key_hash, begin_ms, end_ms):
                        yield step
                        if _is_gone(file):
                            return
            except FileNotFoundError:
                return  # deleted in the meantime, like all older ones
            if file.begin_timestamp_ms < begin_ms:
                return

    def last_update(self) -> tuple[int, int]:
        """Return store time and physical offset of the newest indexed record; zeroes if there is none."""
        return (self.files[-1].end_timestamp_ms, self.files[-1].end_offset) if self.files else (0, 0)

    # -- files ----------------------------------------------------------------------------------------------------

    def write_behind(self) -> None:
        """Write new entries to the files."""
        try:
            for file in self.unsynced_files:
                file.write_entries()
            if self.files:
                self.files[-1].write_entries()
        except OSError as error:
            if not is_full(error):
                raise
            self._refused = True
            return
        self._refused = False

    def state(self) -> IndexState | None:
        """Return the state for a snapshot; the entries must be in files, and the snapshot syncs them."""
        if not self.files:
            return None
        file = self.files[-1]
        return IndexState(
            file.path.rpartition("/")[2],
            file.count,
            file.slots_count,
            (file.begin_timestamp_ms, file.end_timestamp_ms, file.begin_offset, file.end_offset, file.used_slots),
        )

    def load(self) -> bool:
        """Load the headers of all files; return False if a file has another size than the store's."""
        for name in self._files.names_in(self.folder):
            if not is_index_name(name):
                continue
            path = f"{self.folder}/{name}"
            facts = self._files.facts(path)
            if facts is None or facts.file_bytes != self.file_bytes:
                return False
            file = IndexFile(self._files, path, self.slot_count, self.entry_count)
            file.load_header()
            if file.count > self.entry_count:
                return False
            self.files.append(file)
        return True

    def resume(self) -> None:
        """Continue after the last indexed record of the loaded files."""
        if self.files:
            newest = self.files[-1]
            newest.load_slots(from_file=True)
            if newest.count > 1:
                self._skip_below = newest.end_offset
            self.safe_timestamp_ms = self.files[-2].end_timestamp_ms if len(self.files) > 1 else 0

    def resume_at(self, state: IndexState | None) -> bool:
        """Return to a snapshot's state: remove newer files, cut the newest one; return False if that is impossible."""
        name = state.name if state else ""
        while self.files and self.files[-1].path.rpartition("/")[2] > name:
            newest = self.files.pop()
            newest.close()
            self._aside.remove(newest.path)
            self.folder_unsynced = True
        if state is None:
            return not self.files
        if not self.files or self.files[-1].path.rpartition("/")[2] != name:
            return False
        if not 1 <= state.slots_entries <= state.entries <= self.entry_count:
            return False
        if not self.files[-1].truncate(state.entries, state.numbers, state.slots_entries, self._aside):
            return False
        self.safe_timestamp_ms = self.files[-2].end_timestamp_ms if len(self.files) > 1 else 0
        return True

    def remove_all(self) -> int:
        """Move all files aside; return their number."""
        for file in self.files:
            file.close()
        self.files = []
        names = [name for name in self._files.names_in(self.folder) if is_index_name(name)]
        for name in names:
            self._aside.remove(f"{self.folder}/{name}")
        self.folder_unsynced = self.folder_unsynced or bool(names)
        self._skip_below = -1
        return len(names)

    def _remove(self, file: IndexFile) -> str:
        file.close()
        file.is_removed = True
        self._files.unlink(file.path)
        self.folder_unsynced = True
        return file.path

    def remove_files_below(self, log_min_offset: int) -> list[str]:
        """Delete files whose records no longer exist, but never the last file; return their paths."""
        removed = []
        while (
            len(self.files) > 1
            and self.files[0].end_offset < log_min_offset
            and (self.files[0] not in self.unsynced_files)
        ):
            removed.append(self._remove(self.files.pop(0)))
        return removed

    def wants_slots(self) -> bool:
        """Return whether the newest file's slots on disk are so old that recovery would take noticeably longer."""
        return bool(self.files) and self.files[-1].count - self.files[-1].slots_count >= SLOTS_INTERVAL_ENTRIES

    def close(self) -> None:
        """Release descriptors and memory."""
        for file in self.files:
            file.close()


def _name(time_ms: int) -> str:
    seconds, milliseconds = divmod(time_ms, 1000)
    return datetime.fromtimestamp(seconds).strftime("%Y%m%d%H%M%S") + f"{milliseconds:03d}"


def _time_ms(name: str) -> int:
    try:
        return int(datetime.strptime(name[:14], "%Y%m%d%H%M%S").timestamp()) * 1000 + int(name[14:])
    except ValueError:
        return 0
