"""Counts of a store's records by topic, kind and segment (`delaymq store inspect`)."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass, field

from delaymq.message.record import Record
from delaymq.store.reader import Damage, StoreReader
from delaymq.store.tools.record_kinds import kind_of
from delaymq.store.tools.timed_messages import TimedMessages


@dataclass(kw_only=True)
class SegmentCounts:
    """Counts of one file of the log."""

    file: str
    first_offset: int
    file_bytes: int
    records: int = 0
    record_bytes: int = 0
    first_stored_ms: int | None = None
    last_stored_ms: int | None = None
    kinds: dict[str, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class Inspection:
    """Counts of one store."""

    path: str
    open_or_killed: bool
    """Whether the abort marker exists."""
    first_offset: int
    end_offset: int
    records: int
    damaged_places: int
    topics: dict[str, dict[str, int]]
    """Records by topic and kind."""
    kinds: dict[str, int]
    timed: dict[str, int]
    """Timed messages whose record is in the log: `pending`, and the others by the kind of mark that ended them."""
    segments: list[SegmentCounts]
    queues: int

    def as_json(self) -> dict[str, object]:
        """Return the counts for `--json`."""
        return asdict(self)


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Count the records of a store.

    FileNotFoundError: `path` is not a store. NewerFormError: only a newer program can interpret a record.
    """
    reader = StoreReader(path)
    segments = reader.segments()
    counts = [
        SegmentCounts(file=os.path.basename(s.path), first_offset=s.base, file_bytes=s.file_bytes) for s in segments
    ]
    topics: dict[str, Counter[str]] = {}
    segment_kinds: list[Counter[str]] = [Counter() for _ in segments]
    kinds: Counter[str] = Counter()
    timed = TimedMessages()
    records = damaged = number = 0
    end_offset = segments[0].base if segments else 0
    for item in reader.walk():
        if not isinstance(item, Record):
            damaged += isinstance(item, Damage)
            end_offset = max(end_offset, item.offset)
            continue
        while item.physical_offset >= segments[number].end:
            number += 1
        timed.take(item)
        kind = kind_of(item).value
        topics.setdefault(item.topic, Counter())[kind] += 1
        kinds[kind] += 1
        segment_kinds[number][kind] += 1
        records += 1
        count = counts[number]
        count.records += 1
        count.record_bytes += item.size
        if count.first_stored_ms is None:
            count.first_stored_ms = item.store_timestamp_ms
        count.last_stored_ms = item.store_timestamp_ms
    for count, by_kind in zip(counts, segment_kinds, strict=True):
        count.kinds = dict(sorted(by_kind.items()))
    return Inspection(
        path=reader.path,
        open_or_killed=os.path.exists(f"{reader.path}/abort"),
        first_offset=segments[0].base if segments else 0,
        end_offset=end_offset,
        records=records,
        damaged_places=damaged,
        topics={topic: dict(sorted(by_kind.items())) for topic, by_kind in sorted(topics.items())},
        kinds=dict(sorted(kinds.items())),
        timed=timed.counts(),
        segments=counts,
        queues=sum(1 for _ in reader.queues()),
    )
