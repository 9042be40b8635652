"""A store in memory for tests of the delivery: real records in one byte string, a flushed part, and crashes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from delaymq.message.hashing import tags_code
from delaymq.message.levels import DelayLevels
from delaymq.message.marks import parse_due
from delaymq.message.names import (
    DELAY,
    DELAY_KEY,
    DELAY_SCHEDULE_ID,
    DUE,
    KEYS,
    REAL_TOPIC,
    SCHEDULE_TOPIC,
    TAGS,
    TIMER_TOPIC,
    UNIQUE_KEY,
)
from delaymq.message.properties import encode_properties
from delaymq.message.record import Record, decode_record, encode_record
from delaymq.store.disk.own_folder import UsesFolder
from delaymq.store.dispatch import recorded_due_ms
from delaymq.store.index.key_index import indexed_delay_key
from delaymq.store.model import Dispatched, DispatchObserver, KeepsFiles, LiveObserver, NewRecord
from delaymq.store.plain_runs import Copied, EncodeCopies
from delaymq.store.retention import ExpiredLog

from delaymq_testing.schedule.memory_files import MemoryFiles

_ENTRY = struct.Struct(">qiq")

SEGMENT_BYTES = 4_096
"""Size of the segments by which the index counts records."""


class MemoryConfigFiles:
    """Config files as bytes; `save` keeps the old content as `.bak`, `load` falls back to it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def load(self, name: str, parse: Callable[[bytes], Any], *, max_bytes: int = 0) -> Any:
        for each in (name, name + ".bak"):
            if each in self.files:
                try:
                    return parse(self.files[each])
                except ValueError:
                    pass
        return None

    def save(self, name: str, data: bytes, *, max_bytes: int = 0) -> None:
        if name in self.files:
            self.files[name + ".bak"] = self.files[name]
        self.files[name] = data

    def remove(self, name: str) -> None:
        for each in (name, name + ".bak"):
            self.files.pop(each, None)


class MemoryFlush:
    """A flush of everything that was appended when it was made."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._end = store.end_offset

    def run(self) -> None:
        pass

    def finish(self) -> OSError | None:
        self._store.flushed_offset = max(self._store.flushed_offset, self._end)
        return None


class MemoryStore:
    """The methods of the message store that delivery uses; opening one on an old one's bytes replays them."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        levels: DelayLevels,
        observers: Collection[DispatchObserver] = (),
        log: bytes = b"",
        files: dict[str, bytes] | None = None,
        snapshot: tuple[int, dict[str, object]] | None = None,
        min_offset: int = 0,
        timeline_files: MemoryFiles | None = None,
        format_version: int = 1,
    ) -> None:
        self.levels = levels
        self.format_version = format_version
        self.failure: str | None = None
        self.expired_end = 0
        self.log = bytearray(log)
        self.min_offset = min_offset
        self.flushed_offset = len(log)
        self.last_store_timestamp_ms = 0
        self.last_offset = -1
        self.config_files = self.own_files = MemoryConfigFiles({} if files is None else files)
        self.observers: list[LiveObserver] = [*observers]
        self.refuse: Callable[[NewRecord], Exception | None] = lambda message: None
        self.fail_after: Callable[[NewRecord], Exception | None] = lambda message: None
        self.entries: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.first_entry: dict[tuple[str, int], int] = {}
        self.keys: dict[tuple[str, str], list[int]] = {}
        self._now_ms = now_ms
        end, states = snapshot if snapshot is not None else (min_offset, {})
        for observer in observers:
            if isinstance(observer, UsesFolder):
                observer.use_folder(timeline_files or MemoryFiles(), SEGMENT_BYTES)  # type: ignore[arg-type]
            try:
                observer.restore(states.get(observer.name) if snapshot is not None else None)
            except ValueError:
                # As in the store's recovery: the snapshot is not used, and the whole log is replayed.
                end = min_offset
                observer.restore(None)
        position = min_offset
        while position < len(self.log):
            record = decode_record(self.log, position)
            self._dispatch(record, observed=position >= end)
            position += record.size

    largest_record_bytes = 1 << 30

    @property
    def end_offset(self) -> int:
        return len(self.log)

    has_all_keys = True
    index_files = 0

    def raise_format_version(self, version: int) -> None:
        self.format_version = max(self.format_version, version)

    def index_steps(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yields what an index without collisions contains."""
        for offset in reversed(self.keys.get((topic, key), [])):
            if offset >= self.min_offset:
                yield None
                yield offset

    def expired_log(self, now_ms: int) -> ExpiredLog:
        return ExpiredLog(self.expired_end, 0, is_urgent=True)

    def fail(self, reason: str) -> None:
        self.failure = reason

    def snapshot(self) -> tuple[int, dict[str, object]]:
        states = {observer.name: observer.state() for observer in self.observers}
        for observer in self.observers:
            if isinstance(observer, KeepsFiles) and (files := observer.state_files()) is not None:
                files.write()
                files.finish(is_published=True)
        return self.end_offset, states

    def append(self, message: NewRecord) -> Dispatched:
        dispatched = self._append(message)
        if (error := self.fail_after(message)) is not None:
            raise error
        return dispatched

    def append_copies(self, copies: Sequence[NewRecord], appended: list[Dispatched]) -> None:
        failure = None
        for copy in copies:
            appended.append(self._append(copy))
            failure = failure or self.fail_after(copy)
        if failure is not None:
            raise failure

    def append_encoded_copies(self, topic: str, encode: EncodeCopies) -> Copied | None:
        """Return None: `append_copies` has to append them, whose failures tests choose."""
        return None

    def _append(self, message: NewRecord) -> Dispatched:
        if (error := self.refuse(message)) is not None:
            raise error
        queue_offset = self.next_queue_offset(message.topic, message.queue_id)
        self.last_store_timestamp_ms = max(self._now_ms(), self.last_store_timestamp_ms)
        position = len(self.log)
        properties = dict(message.properties)
        if message.statement is not None:
            properties[message.statement.name] = message.statement.at(position)
        self.log += encode_record(
            topic=message.topic.encode("utf-8", "surrogateescape"),
            queue_id=message.queue_id,
            queue_offset=queue_offset,
            physical_offset=position,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            store_timestamp_ms=self.last_store_timestamp_ms,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            body=message.body,
            properties=encode_properties(properties),
        )
        self.last_offset = position
        return self._dispatch(decode_record(self.log, position), observed=True)

    def _dispatch(self, record: Record, *, observed: bool) -> Dispatched:
        properties = record.properties
        code = tags_code(properties.get(TAGS, ""))
        if record.topic == SCHEDULE_TOPIC and int(properties.get(DELAY, "0")) > 0:
            due_ms = parse_due(properties.get(DUE, ""), record.queue_id, record.queue_offset)
            level = int(properties[DELAY])
            code = due_ms if due_ms is not None else record.store_timestamp_ms + self.levels.delay_ms(level)
        if record.topic == TIMER_TOPIC:
            code = recorded_due_ms(properties, record.physical_offset) or code
        key = (record.topic, record.queue_id)
        queue = self.entries.setdefault(key, [])
        self.first_entry.setdefault(key, record.queue_offset)
        queue.append((record.physical_offset, record.size, code))
        self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, record.store_timestamp_ms)
        dispatched = Dispatched(
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.physical_offset,
            record.size,
            record.sys_flag,
            record.store_timestamp_ms,
            record.born_timestamp_ms,
            record.body_crc,
            record.reconsume_times,
            record.prepared_transaction_offset,
            properties,
            code,
        )
        keys = [properties.get(UNIQUE_KEY, ""), *properties.get(KEYS, "").split(" ")]
        if record.topic == TIMER_TOPIC and DELAY_KEY in properties:
            keys.append(indexed_delay_key(properties[REAL_TOPIC], properties[DELAY_KEY]))
        keys.append(properties.get(DELAY_SCHEDULE_ID, ""))
        for each in filter(None, keys):
            self.keys.setdefault((record.topic, each), []).append(record.physical_offset)
        if observed:
            for observer in self.observers:
                observer.dispatch(dispatched)
        return dispatched

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        key = (topic, queue_id)
        return self.first_entry.get(key, 0) + len(self.entries.get(key, ()))

    @property
    def durable_offset(self) -> int:
        return self.flushed_offset

    def stored_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        first = self.first_entry.get((topic, queue_id), 0)
        entries = self.entries.get((topic, queue_id), [])
        there = [index for index, entry in enumerate(entries) if entry[0] >= self.min_offset]
        return first + (there[0] if there else len(entries)), first + len(entries)

    def queues(self) -> Iterable[tuple[str, int]]:
        return list(self.entries)

    def read_entries(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        at = offset - self.first_entry.get((topic, queue_id), 0)
        if at < 0:
            return b""
        return b"".join(_ENTRY.pack(*entry) for entry in self.entries.get((topic, queue_id), [])[at : at + count])

    def read_bytes(self, physical_offset: int, size: int) -> bytes:
        assert 0 <= physical_offset <= physical_offset + size <= len(self.log)
        if physical_offset < self.min_offset:
            return b""
        return bytes(self.log[physical_offset : physical_offset + size])

    def record_at(self, physical_offset: int) -> Record | None:
        try:
            return decode_record(self.log, physical_offset)
        except ValueError:
            return None

    def flush_task(self) -> MemoryFlush | None:
        return MemoryFlush(self) if self.flushed_offset < self.end_offset else None

    def flush(self) -> None:
        self.flushed_offset = self.end_offset

    def records(self) -> list[Record]:
        """Every record of the log, in order."""
        found = []
        position = self.min_offset
        while position < len(self.log):
            record = decode_record(self.log, position, check_crc=False)
            found.append(record)
            position += record.size
        return found
