"""Reading of a queue for a pull: the records from an offset on, within RocketMQ's limits and a work limit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from delaymq import clock, kernels
from delaymq.broker.filters import Filter
from delaymq.broker.filters.expressions import CODE_BYTES
from delaymq.broker.pull.property_reader import PropertyReader, Row
from delaymq.message.record import FIXED_BYTES, MESSAGE_MAGIC, PLACE, QUEUE_OFFSET_AT, QUEUE_OFFSET_BYTES
from delaymq.store.consume_queue import BLANK_SIZE, ENTRY
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.config import BrokerConfig
    from delaymq.store.message_store import MessageStore

# Entries that a pull with a filter examines, which bound the delay that a rare tag causes for other clients:
MIN_ENTRIES_EXAMINED: Final = 800
MAX_ENTRIES_EXAMINED: Final = 32_000
MAX_PROPERTY_WORK: Final = 3_000
"""The same for properties, which cost more: units of about 1 µs for one pull, and the cost of a record without its
filter.
"""
# Limits for many pulls for rare messages in one turn of the event loop: their total work in this window, and the
# minimum for each. A pull has an overhead of about 60 µs, so a much smaller minimum would mostly pay for the overhead:
PROPERTY_WINDOW_MS: Final = 20
PROPERTY_WORK_PER_WINDOW: Final = 6_000
MIN_PROPERTY_WORK: Final = 500

_WORK_PER_RECORD: Final = 2
_BYTES_PER_UNIT: Final = 1_024

_TAG_AT: Final = ENTRY.size - 4
"""Position of the low 32 bits of an entry's tags code."""
_PLACE_AT: Final = PLACE.unpack_from

FOUND: Final = "FOUND"
NO_MATCHED: Final = "NO_MATCHED_MESSAGE"
WAS_REMOVING: Final = "MESSAGE_WAS_REMOVING"
NO_MESSAGE_IN_QUEUE: Final = "NO_MESSAGE_IN_QUEUE"
OVERFLOW_ONE: Final = "OFFSET_OVERFLOW_ONE"
OVERFLOW_BADLY: Final = "OFFSET_OVERFLOW_BADLY"
TOO_SMALL: Final = "OFFSET_TOO_SMALL"
FOUND_NULL: Final = "OFFSET_FOUND_NULL"

collect_matching: Final = kernels.compiled("collect_matching")
"""Kernel that collects the records of a response (docs/kernels.md); None without compiled kernels."""

_throttled = ThrottledLogger(logging.getLogger(__name__), clock.now_ms)


class PropertyWork:
    """Recent work on properties, limited so that many pulls together do not block other requests for long."""

    __slots__ = ("_began_ms", "_spent")

    def __init__(self) -> None:
        self._began_ms = 0
        self._spent = 0

    def allowed(self, now_ms: int) -> int:
        """Return the units of work for a pull that starts now."""
        if abs(now_ms - self._began_ms) >= PROPERTY_WINDOW_MS:
            self._began_ms = now_ms
            self._spent = 0
        return max(min(PROPERTY_WORK_PER_WINDOW - self._spent, MAX_PROPERTY_WORK), MIN_PROPERTY_WORK)

    def spend(self, units: int) -> None:
        """Record the work of a pull."""
        self._spent += units


class PullLimits(Protocol):
    """Parts of the broker that reading a queue needs: its store, and the limits of one pull."""

    @property
    def config(self) -> BrokerConfig:
        """Configuration in force."""

    @property
    def in_memory_bytes(self) -> int:
        """Distance from the end of the log within which messages are assumed to be in the page cache."""

    @property
    def max_pull_count(self) -> int:
        """Maximum number of messages in a response."""

    @property
    def property_work(self) -> PropertyWork:
        """Limit of all pulls' work on properties."""

    @property
    def store(self) -> MessageStore:
        """The queues and the log."""

    def now_ms(self) -> int:
        """Return the wall clock's time."""


class Pulled(NamedTuple):
    """Result of reading a queue at an offset."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes
    messages: int
    behind_bytes: int = 0
    """Bytes from the last examined record to the end of the log."""


def read_queue(broker: PullLimits, topic: str, queue_id: int, offset: int, max_count: int, wanted: Filter) -> Pulled:
    """Return records from `offset` on with RocketMQ's status. Only confirmed records are visible."""
    store = broker.store
    low, high = store.queue_bounds(topic, queue_id)
    if high < offset <= store.stored_bounds(topic, queue_id)[1]:
        # A new master knows only later how much was confirmed: the consumer may have read it from the former one.
        return Pulled(OVERFLOW_ONE, offset, low, high, b"", 0)
    if high == 0:
        return Pulled(NO_MESSAGE_IN_QUEUE, 0, low, high, b"", 0)
    if offset < low:
        return Pulled(TOO_SMALL, low, low, high, b"", 0)
    if offset == high:
        return Pulled(OVERFLOW_ONE, offset, low, high, b"", 0)
    if offset > high:
        return Pulled(OVERFLOW_BADLY, high, low, high, b"", 0)
    limit = count = max(min(max_count, broker.max_pull_count), 1)
    if wanted.tags is not None or wanted.properties is not None:
        count = min(max(MIN_ENTRIES_EXAMINED, max_count), MAX_ENTRIES_EXAMINED)
    entries = store.read_entries(topic, queue_id, offset, count)
    if not entries:
        return Pulled(FOUND_NULL, min(max(_next_queue_file(store, offset), low), high), low, high, b"", 0)
    collected = _collect_compiled(broker, entries, offset, limit, wanted, low, high)
    return collected or _collect(broker, entries, offset, limit, wanted, low, high)


def _collect_compiled(
    broker: PullLimits, entries: bytes, offset: int, limit: int, wanted: Filter, low: int, high: int
) -> Pulled | None:
    """Return what `_collect` returns, from the kernel; None if the pull is left to Python."""
    store, last_at = broker.store, len(entries) - ENTRY.size
    if collect_matching is None or wanted.properties is not None or (wanted.tags is not None and not wanted.codes):
        return None
    (first_offset, _, _), (last_offset, last_size, _) = ENTRY.unpack_from(entries), ENTRY.unpack_from(entries, last_at)
    confirmed = store.confirmed_offset
    if first_offset < store.min_offset or last_offset + last_size > confirmed:
        return None
    limit, max_bytes = _transfer_limits(broker, limit, first_offset)
    collected = collect_matching(
        entries, wanted.codes, *store.open_segment, confirmed, offset, max(limit, 0), max(max_bytes, 0)
    )
    if collected is None:
        return None
    examined, count, records = collected
    behind = store.end_offset - ENTRY.unpack_from(entries, min(examined * ENTRY.size, last_at))[0]
    return Pulled(FOUND if count else NO_MATCHED, offset + examined, low, high, records, count, behind)


def _collect(
    broker: PullLimits, entries: bytes, offset: int, limit: int, wanted: Filter, low: int, high: int
) -> Pulled:
    """Read the records of `entries` up to a limit. Adjacent records are read in one operation."""
    store = broker.store
    confirmed, oldest = store.confirmed_offset, store.min_offset
    first_offset = ENTRY.unpack_from(entries)[0]
    last_offset, last_size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY.size)
    limit, max_bytes = _transfer_limits(broker, limit, first_offset)
    matches = wanted.tags
    passes = wanted.properties
    if matches is None and passes is None and len(entries) <= limit * ENTRY.size:
        records = _in_one_piece(store, entries, offset, oldest, confirmed, max_bytes)
        if records:
            count = len(entries) // ENTRY.size
            return Pulled(FOUND, offset + count, low, high, records, count, store.end_offset - last_offset)
    numbers: list[int] = []
    allowed = 0 if passes is None else broker.property_work.allowed(broker.now_ms())
    properties_of = PropertyReader(store.read_bytes, allowed, *store.open_segment) if passes is not None else None
    rows: Iterable[Row] = enumerate(ENTRY.iter_unpack(entries))
    if oldest <= first_offset and last_offset + last_size <= confirmed:
        # No entry ends the search, so entries that cannot match may be skipped.
        rows = _candidates(entries, wanted, properties_of, limit)
    status = NO_MATCHED
    count = total = start = end = 0
    parts = []
    for examined, (physical_offset, size, tags_code) in rows:
        record_end = physical_offset + size
        if physical_offset < oldest or not 0 < size < BLANK_SIZE:
            # Deleted, or a blank entry where the log was damaged. The queue continues after it.
            status = WAS_REMOVING
        elif record_end > confirmed:
            break
        elif matches is None or matches(tags_code):
            if count and (count >= limit or total + size > max_bytes):
                break
            if properties_of is not None and passes is not None:
                if properties_of.work_left <= 0:
                    break
                properties = properties_of(physical_offset, size)
                # Damaged records are detected and omitted below, with the records of the response.
                if properties is not None:
                    properties_of.work_left -= _WORK_PER_RECORD + wanted.cost * (1 + len(properties) // _BYTES_PER_UNIT)
                    if not passes(properties):
                        continue
            if physical_offset != end:
                if end:
                    parts.append(store.read_bytes(start, end - start))
                start = physical_offset
            end = record_end
            count += 1
            total += size
            numbers.append(offset + examined)
    else:
        examined, physical_offset = len(entries) // ENTRY.size, last_offset
    behind = store.end_offset - physical_offset
    if properties_of is not None:
        broker.property_work.spend(allowed - properties_of.work_left + properties_of.ahead)
    if count:
        parts.append(store.read_bytes(start, end - start))
        records = b"".join(parts) if len(parts) > 1 else parts[0]
        if not _is_complete(records, numbers):
            records, count = _sound_ones(broker, entries[: examined * ENTRY.size], offset, wanted)
        if count:
            return Pulled(FOUND, offset + examined, low, high, records, count, behind)
        status = WAS_REMOVING
    if not examined:
        # Stored but not yet flushed: for consumers, the queue ends here.
        return Pulled(OVERFLOW_ONE, offset, low, high, b"", 0)
    return Pulled(status, offset + examined, low, high, b"", 0, behind)


def _transfer_limits(broker: PullLimits, limit: int, first_offset: int) -> tuple[int, int]:
    """Return the maximum number of records and bytes of a response.

    They are lower if the records are probably no longer in memory.
    """
    config = broker.config
    if broker.store.end_offset - first_offset > broker.in_memory_bytes:
        return min(limit, config.max_transfer_count_on_message_in_disk), config.max_transfer_bytes_on_message_in_disk
    return limit, config.max_transfer_bytes_on_message_in_memory


def _candidates(entries: bytes, wanted: Filter, properties_of: PropertyReader | None, limit: int) -> Iterable[Row]:
    """Return the entries that may match, for a response of at most `limit` records."""
    if properties_of is not None and wanted.needle:
        return properties_of.candidates(entries, wanted.needle, limit + 1)  # the last one ends the response
    has_one_tag = len(wanted.codes) == CODE_BYTES
    return _tagged(entries, wanted.codes) if has_one_tag else enumerate(ENTRY.iter_unpack(entries))


def _next_queue_file(store: MessageStore, queue_offset: int) -> int:
    """Return the queue offset at which the queue file after that of `queue_offset` starts."""
    entries = max(store.options.consume_queue_file_bytes // ENTRY.size, 1)
    return (queue_offset // entries + 1) * entries


def _tagged(entries: bytes, tag: bytes) -> Iterator[Row]:
    """Yield the entries whose tags code ends with these four bytes."""
    at = entries.find(tag, _TAG_AT)
    while at >= 0:
        place, within = divmod(at, ENTRY.size)
        if within == _TAG_AT:
            yield place, ENTRY.unpack_from(entries, at - _TAG_AT)
            at += ENTRY.size
        else:
            at += (_TAG_AT - within) % ENTRY.size
        at = entries.find(tag, at)


def _in_one_piece(
    store: MessageStore, entries: bytes, offset: int, oldest: int, confirmed: int, max_bytes: int
) -> bytes:
    """Return the records of all `entries` if they are adjacent in the log and have valid heads, otherwise nothing.

    This is the layout of a single busy queue. It takes half the work of finding pieces first and checking heads later.
    """
    begin, first_size, _ = ENTRY.unpack_from(entries)
    last_offset, last_size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY.size)
    end = last_offset + last_size
    if begin < oldest or end > confirmed or not FIXED_BYTES <= end - begin <= max_bytes:
        return b""
    if len(entries) > ENTRY.size and ENTRY.unpack_from(entries, ENTRY.size)[0] != begin + first_size:
        return b""
    records = store.read_bytes(begin, end - begin)
    at, stop = 0, len(records) - FIXED_BYTES
    for physical_offset, size, _ in ENTRY.iter_unpack(entries):
        if physical_offset - begin != at or size < FIXED_BYTES or at > stop:
            return b""
        if _PLACE_AT(records, at) != (size, MESSAGE_MAGIC, offset):
            return b""
        at += size
        offset += 1
    return records if at == len(records) else b""


def _is_complete(records: bytes, numbers: list[int]) -> bool:
    """Return whether `records` have these queue offsets in their heads.

    This detects damage without reading the bodies.
    """
    at, stop = 0, len(records) - FIXED_BYTES
    for number in numbers:
        if at > stop:
            return False
        size, magic, stated = _PLACE_AT(records, at)
        if magic != MESSAGE_MAGIC or size < FIXED_BYTES or stated != number:
            return False
        at += size
    return at == len(records)


def _sound_ones(broker: PullLimits, entries: bytes, offset: int, wanted: Filter) -> tuple[bytes, int]:
    """Return the undamaged records of the matching `entries`, the first of which is at `offset`, and their number.

    A client stops reading a response at its first damaged record, so it would lose or wait for all records after it. It
    commits the queue offset that a record states. A damaged one would make it skip messages, so the entry's counts.
    """
    store = broker.store
    parts = []
    for number, (physical_offset, size, tags_code) in enumerate(ENTRY.iter_unpack(entries), offset):
        if physical_offset < store.min_offset or not 0 < size < BLANK_SIZE:
            continue
        if wanted.tags is not None and not wanted.tags(tags_code):
            continue
        record = store.record_at(physical_offset)
        if record is None or record.size != size:
            text = "the record at physical offset %d is damaged and is omitted from pulls"
            _throttled.warning(text, physical_offset, offset=physical_offset)
        elif wanted.properties is None or wanted.properties(record.raw_properties):
            data = store.read_bytes(physical_offset, size)
            if record.queue_offset != number:
                stated = number.to_bytes(QUEUE_OFFSET_BYTES, "big")
                data = data[:QUEUE_OFFSET_AT] + stated + data[QUEUE_OFFSET_AT + QUEUE_OFFSET_BYTES :]
            parts.append(data)
    return b"".join(parts), len(parts)
