"""Consumer offsets, delay offsets and consume queue ranges of a store.

These small tables are read on the driver. Read them before the log, so that they are never ahead of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from delaymq.store.reader import QUEUE_ENTRY, SegmentInfo

from delaymq_spark.store.address import StoreAddress
from delaymq_spark.store.remote import MAX_OFFSET, fetch_positions, unusable
from delaymq_spark.store.segments import NAME_DIGITS, Skipped, StorePath, check_store_path, is_address, list_segments

_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<before>[{,]\s*)(?P<key>-?\d+)(?=\s*:)')
"""RocketMQ's broker writes integer keys without quotes: {1:3}. Strings are skipped as a whole."""
MAX_TABLE_BYTES: Final = 256 << 20
"""Tables have some megabytes at most; a foreign file must not fill the driver's memory."""
_UNUSABLE: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors of JSON with other members than expected; Python's accepts Infinity as a number."""
_BLANK_SIZE: Final = 2_147_483_647
_Table = TypeVar("_Table")


@dataclass(frozen=True, kw_only=True)
class QueueRange:
    """Range of entries in the files of one consume queue; in a store in use, the files lag behind the log."""

    min_number: int
    """Number of the first entry whose record is still in the log."""
    max_number: int
    """Number of the next entry."""


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Positions and segments of one store."""

    path: str
    store_id: str | None = None
    """None in a store that only RocketMQ's broker has written."""
    open_or_killed: bool = False
    """Whether the abort marker exists."""
    segments: tuple[SegmentInfo, ...] = ()
    consumer_offsets: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    """(topic, group) → queue id → next queue offset to consume."""
    delay_offsets: Mapping[int, int] = field(default_factory=dict)
    """Level → queue offset below which all entries are delivered."""
    deleted_topics: Mapping[str, int] = field(default_factory=dict)
    """Topic → end of the log at its deletion; its older records are in no queue."""
    queues: Mapping[tuple[str, int], QueueRange] = field(default_factory=dict)
    """(topic, queue id) → range of entries."""
    known_topics: frozenset[str] | None = None
    """Topics with a configuration or a queue; None if the store does not state them reliably."""
    known_to: int = 0
    """Physical offset below which any record of another topic was stored before that topic was deleted."""
    skipped: tuple[Skipped, ...] = ()
    """Unreadable tables, and files in the log's folder that are not segments."""


def read_positions(path: str | os.PathLike[str] | StoreAddress) -> Positions:
    """Return the positions of the store at `path`, from a running broker or from files.

    If a table is missing or damaged, its backup is read. StorePathError.
    """
    store = path if isinstance(path, StoreAddress) else check_store_path(os.fspath(path))
    return _fetched(store) if is_address(store) else _read_folder(str(store))


def _fetched(store: StorePath) -> Positions:
    stated = fetch_positions(store)
    # Requested after the positions, so that they are never ahead of it.
    listing = list_segments(store)
    try:
        return Positions(
            path=str(store),
            store_id=stated.store_id,
            open_or_killed=True,
            segments=listing.segments,
            consumer_offsets=_consumer_offsets({"offsetTable": stated.consumer_offsets}),
            delay_offsets=_delay_offsets({"offsetTable": stated.delay_offsets}),
            deleted_topics=_deleted_topics(stated.deleted_topics),
            queues=_queues(stated.queues),
        )
    except (TypeError, ValueError) as error:
        raise unusable(str(store), str(error)) from None


def _queues(rows: Iterable[Sequence[str | int]]) -> dict[tuple[str, int], QueueRange]:
    """ValueError or TypeError for rows of another form."""
    return {
        (str(topic), int(queue_id)): QueueRange(min_number=int(low), max_number=int(high))
        for topic, queue_id, low, high in rows
    }


def _read_folder(store: str) -> Positions:
    skipped: list[Skipped] = []
    consumers = _read(f"{store}/config/consumerOffset.json", _consumer_offsets, skipped)
    delays = _read(f"{store}/config/delayOffset.json", _delay_offsets, skipped)
    deleted = _read(f"{store}/delaymq/deleted_topics.json", _deleted_topics, skipped)
    store_id = _read(f"{store}/delaymq/state.json", lambda content: str(content["storeId"]), skipped)
    listing = list_segments(store)
    log_start = listing.segments[0].base if listing.segments else 0
    queues, known_to = _queue_ranges(store, log_start)
    # Read after the queues: RocketMQ's broker saves the configuration of a topic before it stores its first message. So
    # each topic that has a queue is in the table, unless it was deleted meanwhile.
    topics = _read(f"{store}/config/topics.json", _topics, skipped)
    open_or_killed = os.path.exists(f"{store}/abort")
    if not topics or (store_id is not None and open_or_killed):
        # DelayMQ's broker writes queues after the log, and keeps a table of deleted topics.
        topics = None
    return Positions(
        path=store,
        store_id=store_id,
        open_or_killed=open_or_killed,
        segments=listing.segments,
        consumer_offsets=consumers or {},
        delay_offsets=delays or {},
        deleted_topics=deleted or {},
        queues=queues,
        known_topics=None if topics is None else topics.union(topic for topic, _ in queues),
        known_to=known_to,
        skipped=(*listing.skipped, *listing.gaps, *skipped),
    )


def parse_table(data: bytes) -> Any:
    """Parse a table written by RocketMQ's or DelayMQ's broker. ValueError."""
    text = _BARE_KEY.sub(lambda m: m[0] if m["key"] is None else f'{m["before"]}"{m["key"]}"', data.decode("utf-8"))
    return json.loads(text)


def _read(file: str, parse: Callable[[Any], _Table], skipped: list[Skipped]) -> _Table | None:
    for candidate in (file, f"{file}.bak"):
        try:
            with open(candidate, "rb") as table:
                data = table.read(MAX_TABLE_BYTES + 1)
            if len(data) > MAX_TABLE_BYTES:
                raise ValueError(f"more than {MAX_TABLE_BYTES} bytes")
            return parse(parse_table(data))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (*_UNUSABLE, OSError) as error:
            skipped.append(Skipped(candidate, 0, -1, 0, f"cannot be read: {str(error)[:200]}"))
    return None


def _consumer_offsets(content: Any) -> dict[tuple[str, str], dict[int, int]]:
    found = {}
    for key, offsets in content["offsetTable"].items():
        topic, at, group = key.partition("@")
        if at:
            found[topic, group] = {_queue_id(queue): _offset(offset) for queue, offset in offsets.items()}
    return found


def _delay_offsets(content: Any) -> dict[int, int]:
    return {_queue_id(level): _offset(offset) for level, offset in content["offsetTable"].items()}


def _deleted_topics(content: Any) -> dict[str, int]:
    return {str(topic): _offset(end) for topic, end in content.items()}


def _topics(content: Any) -> frozenset[str]:
    return frozenset(str(topic) for topic in content["topicConfigTable"])


def _queue_id(stated: Any) -> int:
    """ValueError beyond 32 bits, the width on the wire and of Spark's column."""
    number = int(stated)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{number:.3g} is not a queue id")
    return number


def _offset(stated: Any) -> int:
    """ValueError beyond 64 bits."""
    number = int(stated)
    if not -MAX_OFFSET <= number <= MAX_OFFSET:
        raise ValueError(f"{number:.3g} is not an offset")
    return number


def _queue_ranges(store: str, log_start: int) -> tuple[dict[tuple[str, int], QueueRange], int]:
    """Return the ranges of the queues, and the end of the last record that any of them refers to."""
    found, known_to = {}, 0
    for topic in _names(f"{store}/consumequeue"):
        for name in _names(f"{store}/consumequeue/{topic}"):
            if name.isascii() and name.isdigit():
                queue = _queue_range(f"{store}/consumequeue/{topic}/{name}", log_start)
                if queue is not None:
                    found[topic, int(name)], end = queue
                    known_to = max(known_to, end)
    return found, known_to


def _queue_range(folder: str, log_start: int) -> tuple[QueueRange, int] | None:
    files = [(int(name), f"{folder}/{name}") for name in _names(folder) if len(name) == NAME_DIGITS and name.isdigit()]
    min_number: int | None = None
    max_number = files[0][0] // QUEUE_ENTRY.size if files else 0
    end = 0
    for start, file in files:
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            first = start // QUEUE_ENTRY.size
            count = os.fstat(descriptor).st_size // QUEUE_ENTRY.size
            used = _first(count, partial(_is_unused, descriptor))
            if used:
                max_number = max(max_number, first + used)
                end = max(end, _end(descriptor, used - 1))
            if min_number is None:
                live = _first(used, partial(_is_live, descriptor, log_start))
                min_number = first + live if live < used else None
        finally:
            os.close(descriptor)
    if not files:
        return None
    return QueueRange(min_number=max_number if min_number is None else min_number, max_number=max_number), end


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """Return the first of 0…count-1 for which `holds` is true, or `count`; `holds` must be monotonic."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _entry(descriptor: int, number: int) -> tuple[int, int]:
    data = os.pread(descriptor, QUEUE_ENTRY.size, number * QUEUE_ENTRY.size)
    if len(data) < QUEUE_ENTRY.size:
        return 0, 0
    offset, size, _ = QUEUE_ENTRY.unpack(data)
    return offset, size


def _end(descriptor: int, number: int) -> int:
    """Return the physical offset of the end of an entry's record; 0 for a filler at the beginning of the queue."""
    offset, size = _entry(descriptor, number)
    return 0 if size == _BLANK_SIZE else offset + size


def _is_unused(descriptor: int, number: int) -> bool:
    return _entry(descriptor, number)[1] <= 0


def _is_live(descriptor: int, log_start: int, number: int) -> bool:
    offset, size = _entry(descriptor, number)
    return offset >= log_start and size != _BLANK_SIZE


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
