"""Scan of the log for plain records, which concern only queues and index, by a compiled kernel.

Without compiled kernels, all records are read one at a time by `walk_segment`, which is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from delaymq import kernels
from delaymq.message import names
from delaymq.store.dispatch import DELAYED_TOPICS
from delaymq.store.plain_runs import Stretch
from delaymq.store.recovery.log_scan import HeadTaker, ScanPosition, walk_segment

PIECE_BYTES: Final = 1 << 20
"""Size of a piece. A longer record is read without a kernel."""
MAX_MS: Final = 2**63 - 1
"""Highest store time that a record can contain."""
_WORTHWHILE_RECORDS: Final = 16
_MOST_SINGLE_RECORDS: Final = 1_024
"""Records that are read without a kernel before it is tried again. The number doubles from 1 on after each piece that
starts with fewer than `_WORTHWHILE_RECORDS` plain records."""


_log_scanner = kernels.compiled("LogScanner")

Times: TypeAlias = tuple[int, int, int]
"""Store times of the last three records in ms, oldest first."""
Scanned: TypeAlias = tuple[int, int, int, int, Times, Sequence[tuple[Any, ...]], bytes]
"""Bytes read, records, physical offset and CRC of the last record, times, fields of the stretches in the order of their
first records, and keys packed as INDEXED_KEY."""


class Scanner(Protocol):
    """The kernel `LogScanner` (docs/kernels.md). Its twin, `delaymq_testing.store.log_scanner`, describes it."""

    def scan(self, piece: bytes, base: int, latest_ms: int, times: Times) -> Scanned:
        """Return what the plain records at the start of `piece`, which begins at physical offset `base`, contain.

        The scan ends before the first record that is incomplete, damaged, not plain, or not the next one of its queue.
        `latest_ms` is the highest store time that is believed, `times` are those of the records before.
        """


@runtime_checkable
class IgnoresPlain(Protocol):
    """An observer that needs only some records of a replay: the first one of each segment, those of transactions, and
    those that it names."""

    @property
    def concerned_topics(self) -> Collection[str]:
        """Topics of records that the observer needs."""

    @property
    def concerned_properties(self) -> Collection[str]:
        """Names of properties of records that the observer needs."""


@dataclass(frozen=True, kw_only=True)
class PlainScan:
    """A scanner, and the recipient of what it finds."""

    scanner: Scanner
    receive: Callable[[list[Stretch], bytes], None]
    """Called with the stretches of a piece and their keys."""
    latest_ms: Callable[[], int]
    """Highest store time that is believed."""

    def advance(self, data: mmap | memoryview, base: int, at: ScanPosition) -> int:
        """Read plain records from `at` on, which advances; return their number."""
        position = at.offset - base
        piece = bytes(data[position : position + PIECE_BYTES])
        times = at.third_last_ms, at.before_last_ms, at.last_store_timestamp_ms
        size, records, offset, crc, times, stretches, keys = self.scanner.scan(
            piece, at.offset, self.latest_ms(), times
        )
        if records:
            at.offset, at.last_offset, at.last_crc = at.offset + size, offset, crc
            at.third_last_ms, at.before_last_ms, at.last_store_timestamp_ms = times
            at.records += records
            self.receive([Stretch(*fields) for fields in stretches], keys)
        return records


def scan_for_survey(receive: Callable[[list[Stretch], bytes], None], *, check_crc: bool) -> PlainScan | None:
    """Return the scan of a survey; None without compiled kernels."""
    if _log_scanner is None:
        return None
    # A survey examines records of timed messages.
    scanner = _log_scanner([], [], [names.TIMER_OUT_MS], check_crc, False)
    return PlainScan(scanner=scanner, receive=receive, latest_ms=lambda: MAX_MS)


def scan_for_replay(
    receive: Callable[[list[Stretch], bytes], None], latest_ms: Callable[[], int], observers: Sequence[object]
) -> PlainScan | None:
    """Return the scan of a replay; None without compiled kernels, or if an observer needs every record."""
    concerned = _concerned(observers)
    if concerned is None:
        return None
    scanner = _log_scanner(*concerned, [], False, True)
    return PlainScan(scanner=scanner, receive=receive, latest_ms=latest_ms)


def scanner_for(observers: Sequence[object]) -> Scanner | None:
    """Return a scanner of received records; None without compiled kernels, or if an observer needs every record."""
    concerned = _concerned(observers)
    return None if concerned is None else _log_scanner(*concerned, [], True, True)


def _concerned(observers: Sequence[object]) -> tuple[list[str], list[str]] | None:
    """Return the topics and the names of properties of records that are not plain; None as `scanner_for`."""
    topics, properties = set(DELAYED_TOPICS), {names.DELAY_SCHEDULE_ID}
    for observer in observers:
        if not isinstance(observer, IgnoresPlain):
            return None
        topics.update(observer.concerned_topics)
        properties.update(observer.concerned_properties)
    return None if _log_scanner is None else (sorted(topics), sorted(properties))


def walk(
    data: mmap | memoryview,
    base: int,
    at: ScanPosition,
    take: HeadTaker,
    plain: PlainScan | None,
    *,
    check_crc: bool,
) -> bool:
    """Walk like `walk_segment`, but let `plain`, if it is given, read the plain records.

    The first record is not among them: an observer may need to know where a segment begins.
    """
    if plain is None:
        return bool(walk_segment(data, base, at, take, check_crc=check_crc))
    single = 1
    while (is_complete := walk_segment(data, base, at, take, check_crc=check_crc, most=single)) is None:
        found = plain.advance(data, base, at)
        single = 1 if found >= _WORTHWHILE_RECORDS else min(max(2 * single, 1), _MOST_SINGLE_RECORDS)
    return is_complete
