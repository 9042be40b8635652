"""Which segments to drop or rewrite, in which order, and what pins old ones. Plain Python: a few numbers a segment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from delaymq.store.reader import SegmentInfo

PINNING_REASONS = frozenset({"pending", "half_pending", "lost"})
"""What holds a record whatever its age."""


class Action(StrEnum):
    """What to do with a segment."""

    DROP = "drop"
    REWRITE = "rewrite"
    KEEP = "keep"
    ACTIVE = "active"
    """The one being written: never touched."""


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Records of one segment and reason."""

    segment: int
    dead: bool
    reason: str
    messages: int
    bytes: int
    last_due_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedSegment:
    """One segment of the plan. Bytes are those of records."""

    order: int | None
    """1 for what comes first; None for what stays."""
    segment: int
    action: Action
    messages: int
    bytes: int
    live_bytes: int
    dead_bytes: int
    reclaimed_bytes: int
    """Dead bytes that the action gives back."""
    copied_bytes: int
    """Live bytes that it has to write again."""
    pinning_messages: int
    pinning_bytes: int
    last_due_ms: int | None
    """When the last delayed message in it is due; None without one."""
    only_pinned: bool
    """Whether nothing but pending messages keeps it."""
    file_bytes: int
    """Of the file on disk; 0 when it is not known."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All segments: those to work on in their order, then the others from the oldest on."""

    segments: tuple[PlannedSegment, ...]
    min_dead_ratio: float

    @property
    def reclaimable_bytes(self) -> int:
        """What the whole plan gives back."""
        return sum(each.reclaimed_bytes for each in self.segments)

    @property
    def copied_bytes(self) -> int:
        """What it writes again."""
        return sum(each.copied_bytes for each in self.segments)

    @property
    def pins(self) -> list[PlannedSegment]:
        """Segments, oldest first, that hold pending messages and are not being written."""
        found = [each for each in self.segments if each.pinning_messages and each.action is not Action.ACTIVE]
        return sorted(found, key=lambda each: each.segment)

    @property
    def pinned_bytes(self) -> int:
        """Dead bytes that deletion from the front cannot reach: the same or an older segment holds pending messages."""
        pins = self.pins
        if not pins:
            return 0
        return sum(
            each.dead_bytes
            for each in self.segments
            if each.segment >= pins[0].segment and each.action is not Action.ACTIVE
        )


def make_plan(
    sums: Iterable[Sum],
    files: Sequence[SegmentInfo] = (),
    *,
    min_dead_ratio: float = 0.25,
    unread: Collection[int] = (),
) -> Plan:
    """Drops first, oldest first: they cost nothing. Then rewrites, most bytes given back for each byte copied first.

    A segment is rewritten when at least `min_dead_ratio` of its bytes are dead (and any are). The newest segment that
    holds records is the one being written. Those in `unread` stay: what was skipped in them may be live.
    """
    by_segment: dict[int, list[Sum]] = {}
    for each in sums:
        by_segment.setdefault(each.segment, []).append(each)
    if not by_segment:
        return Plan(segments=(), min_dead_ratio=min_dead_ratio)
    file_bytes = {file.base: file.file_bytes for file in files}
    active = max(by_segment)
    drops: list[PlannedSegment] = []
    rewrites: list[PlannedSegment] = []
    others: list[PlannedSegment] = []
    for segment in sorted(by_segment):
        stays = Action.ACTIVE if segment == active else Action.KEEP if segment in unread else None
        planned = _planned(segment, by_segment[segment], stays, file_bytes.get(segment, 0), min_dead_ratio)
        place = {Action.DROP: drops, Action.REWRITE: rewrites}.get(planned.action, others)
        place.append(planned)
    rewrites.sort(key=lambda each: (-each.reclaimed_bytes / each.copied_bytes, each.segment))
    ordered = [_numbered(each, number) for number, each in enumerate([*drops, *rewrites], 1)]
    return Plan(segments=(*ordered, *others), min_dead_ratio=min_dead_ratio)


def _planned(
    segment: int, sums: list[Sum], stays: Action | None, file_bytes: int, min_dead_ratio: float
) -> PlannedSegment:
    live = sum(each.bytes for each in sums if not each.dead)
    dead = sum(each.bytes for each in sums if each.dead)
    pinning = [each for each in sums if each.reason in PINNING_REASONS]
    if stays is not None:
        action = stays
    elif live == 0:
        action = Action.DROP
    elif dead and dead >= min_dead_ratio * (live + dead):
        action = Action.REWRITE
    else:
        action = Action.KEEP
    taken = action in (Action.DROP, Action.REWRITE)
    return PlannedSegment(
        order=None,
        segment=segment,
        action=action,
        messages=sum(each.messages for each in sums),
        bytes=live + dead,
        live_bytes=live,
        dead_bytes=dead,
        reclaimed_bytes=dead if taken else 0,
        copied_bytes=live if taken else 0,
        pinning_messages=sum(each.messages for each in pinning),
        pinning_bytes=sum(each.bytes for each in pinning),
        last_due_ms=max((each.last_due_ms for each in pinning if each.last_due_ms is not None), default=None),
        only_pinned=bool(pinning) and live == sum(each.bytes for each in pinning),
        file_bytes=file_bytes,
    )


def _numbered(planned: PlannedSegment, order: int) -> PlannedSegment:
    return replace(planned, order=order)
