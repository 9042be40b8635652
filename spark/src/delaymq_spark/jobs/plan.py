"""Compaction plan: segments to drop or rewrite, their order, and what pins old ones. Plain Python, a few numbers per
segment.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from delaymq.store.reader import SegmentInfo

PINNING_REASONS = frozenset({"pending", "half_pending", "lost"})
"""Reasons that keep a record regardless of its age."""


class Action(StrEnum):
    """Action for a segment."""

    DROP = "drop"
    REWRITE = "rewrite"
    KEEP = "keep"
    ACTIVE = "active"
    """The segment being written, which is never changed."""


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Totals of records of a segment with the same reason."""

    segment: int
    dead: bool
    reason: str
    messages: int
    bytes: int
    last_due_ms: int | None = None
    replayable: bool = False
    """Whether it is dead only because it was consumed: a group that resets its offsets can still read it."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Dead records of a segment that prove the delivery of delayed records in another."""

    segment: int
    origin_segment: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class PlannedSegment:
    """A segment in the plan. Byte counts are those of records."""

    order: int | None
    """Position in the plan, from 1; None for a segment that is kept."""
    segment: int
    action: Action
    messages: int
    bytes: int
    live_bytes: int
    dead_bytes: int
    reclaimed_bytes: int
    """Dead bytes that the action reclaims."""
    copied_bytes: int
    """Live bytes, and dead bytes that are kept, that it has to copy."""
    kept_bytes: int
    """Dead bytes that must be kept: they prove the delivery of delayed records in segments that are kept."""
    replayable_bytes: int
    """Dead bytes that a group can still read after resetting its offsets."""
    pinning_messages: int
    pinning_bytes: int
    last_due_ms: int | None
    """Due time of the last delayed message in it; None without one."""
    only_pinned: bool
    """Whether only pending messages keep it."""
    file_bytes: int
    """Size of the file on disk; 0 if unknown."""

    @property
    def is_step(self) -> bool:
        """Whether the plan changes it."""
        return self.action in (Action.DROP, Action.REWRITE)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All segments: those that the plan changes, in order, then the others, oldest first."""

    segments: tuple[PlannedSegment, ...]
    min_dead_ratio: float

    @property
    def reclaimable_bytes(self) -> int:
        """The bytes that the plan reclaims."""
        return sum(each.reclaimed_bytes for each in self.segments)

    @property
    def copied_bytes(self) -> int:
        """The bytes that it copies."""
        return sum(each.copied_bytes for each in self.segments)

    @property
    def pins(self) -> list[PlannedSegment]:
        """The segments, oldest first, that contain pending messages and are not being written."""
        found = [each for each in self.segments if each.pinning_messages and each.action is not Action.ACTIVE]
        return sorted(found, key=lambda each: each.segment)

    @property
    def pinned_bytes(self) -> int:
        """The dead bytes that deletion from the front cannot reclaim: the same or an older segment contains
        pending messages.
        """
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
    proofs: Sequence[Proof] = (),
) -> Plan:
    """Make the plan: first drops, oldest first, since they cost nothing; then rewrites, by bytes reclaimed per byte
    copied.

    A segment is rewritten if at least `min_dead_ratio` of its bytes are dead (and any are). The newest segment with
    records is the one being written. Segments in `unread` are kept, since their skipped parts may be live.

    Without its copy, a delivered record of a segment that is kept would count as lost, so such copies are kept too. A
    segment comes after those that contain the origins of its copies, since the plan may be stopped after any of its
    steps.
    """
    by_segment: dict[int, list[Sum]] = {}
    for each in sums:
        by_segment.setdefault(each.segment, []).append(each)
    if not by_segment:
        return Plan(segments=(), min_dead_ratio=min_dead_ratio)
    file_bytes = {file.base: file.file_bytes for file in files}
    stays = dict.fromkeys(unread, Action.KEEP) | {max(by_segment): Action.ACTIVE}
    elsewhere = [each for each in proofs if each.segment != each.origin_segment]
    kept: dict[int, int] = {}
    while True:
        planned = [
            _planned(segment, by_segment[segment], stays.get(segment), file_bytes.get(segment, 0), min_dead_ratio,
                     kept.get(segment, 0))
            for segment in sorted(by_segment)
        ]  # fmt: skip
        staying = {each.segment for each in planned if not each.is_step}
        # Each iteration keeps more segments than the previous one, or is the last.
        found: dict[int, int] = {}
        for proof in elsewhere:
            if proof.origin_segment in staying:
                found[proof.segment] = found.get(proof.segment, 0) + proof.bytes
        if found == kept:
            break
        kept = found
    steps = [each for each in planned if each.action is Action.DROP]
    rewrites = [each for each in planned if each.action is Action.REWRITE]
    steps += sorted(rewrites, key=lambda each: (-each.reclaimed_bytes / each.copied_bytes, each.segment))
    origins: dict[int, set[int]] = {}
    for proof in elsewhere:
        origins.setdefault(proof.segment, set()).add(proof.origin_segment)
    ordered = [replace(each, order=number) for number, each in enumerate(_after_origins(steps, origins), 1)]
    return Plan(segments=(*ordered, *(each for each in planned if not each.is_step)), min_dead_ratio=min_dead_ratio)


def _after_origins(steps: list[PlannedSegment], origins: Mapping[int, set[int]]) -> list[PlannedSegment]:
    """Return the steps in order, but each after those of the segments that contain the origins of its copies."""
    place = {each.segment: at for at, each in enumerate(steps)}
    waits_for = {at: {place[o] for o in origins.get(each.segment, ()) if o in place} for at, each in enumerate(steps)}
    followers: dict[int, list[int]] = {}
    for at, others in waits_for.items():
        for other in others:
            followers.setdefault(other, []).append(at)
    # Origins are older than their copies, so at least one step does not wait for others.
    ready = [at for at, others in waits_for.items() if not others]
    ordered = []
    while ready:
        at = heapq.heappop(ready)
        ordered.append(steps[at])
        for follower in followers.get(at, ()):
            waits_for[follower].discard(at)
            if not waits_for[follower]:
                heapq.heappush(ready, follower)
    return ordered


def _planned(
    segment: int, sums: list[Sum], stays: Action | None, file_bytes: int, min_dead_ratio: float, kept: int
) -> PlannedSegment:
    live = sum(each.bytes for each in sums if not each.dead)
    dead = sum(each.bytes for each in sums if each.dead)
    kept = min(kept, dead)
    pinning = [each for each in sums if each.reason in PINNING_REASONS]
    if stays is not None:
        action = stays
    elif live + kept == 0:
        action = Action.DROP
    elif dead > kept and dead - kept >= min_dead_ratio * (live + dead):
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
        reclaimed_bytes=dead - kept if taken else 0,
        copied_bytes=live + kept if taken else 0,
        kept_bytes=kept,
        replayable_bytes=sum(each.bytes for each in sums if each.replayable),
        pinning_messages=sum(each.messages for each in pinning),
        pinning_bytes=sum(each.bytes for each in pinning),
        last_due_ms=max((each.last_due_ms for each in pinning if each.last_due_ms is not None), default=None),
        only_pinned=bool(pinning) and live == sum(each.bytes for each in pinning),
        file_bytes=file_bytes,
    )
