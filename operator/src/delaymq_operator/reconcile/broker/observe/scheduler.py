"""Comparison of a broker's scheduler state after a restart with the state last observed."""

from __future__ import annotations

from collections.abc import Mapping

from delaymq.api_types.broker import About

from delaymq_operator.api.broker_status import CorrectedLevel, GroupStatus, ResumedStatus
from delaymq_operator.api.resource import timestamp_of_ms
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.memory import SeenOffsets

WENT_BACK = "went-back"
OTHER_STORE = "other-store"
MAX_REPORTED = 100
"""A status with a thousand levels would exceed the size limit of an object; the first ones suffice."""
_MAX_NAMED = 5


def judge(before: GroupStatus | None, seen: SeenOffsets | None, info: About, now_ms: int) -> ResumedStatus:
    """Return the state with which the broker resumed; for a start that was already judged, the previous verdict.

    Offsets only increase. An offset lower than observed before went back: messages in between are delivered again, or
    were lost. An offset that the broker fixed itself is Corrected: after a kill, its file is behind the log, which is
    authoritative.
    """
    if before is not None and before.resumed is not None and before.resumed.boot_id == info.boot_id:
        return before.resumed
    corrected = [
        CorrectedLevel(level=each.level, from_offset=each.from_offset, to_offset=each.to_offset, reason=each.reason)
        for each in info.delay.corrected
    ]
    last = _last_offsets(before, seen, info)
    other_store = before is not None and before.store_id not in (None, info.store_id)
    offsets = {level.level: level.offset for level in info.delay.levels}
    back = [
        CorrectedLevel(
            level=level,
            from_offset=offset,
            to_offset=offsets.get(level, 0),
            reason=OTHER_STORE if other_store else WENT_BACK,
        )
        for level, offset in sorted(last.items())
        if (level in offsets or other_store) and offsets.get(level, 0) < offset
    ]
    return ResumedStatus(
        at=timestamp_of_ms(now_ms),
        boot_id=info.boot_id,
        verdict="WentBack" if back else "Corrected" if corrected else "Intact",
        pending=sum(part.pending for part in info.delay.parts),
        corrected=(*back, *corrected)[:MAX_REPORTED],
    )


def _last_offsets(before: GroupStatus | None, seen: SeenOffsets | None, info: About) -> Mapping[int, int]:
    last = {level.level: level.offset for level in before.delay} if before is not None else {}
    if seen is not None and seen.boot_id != info.boot_id:
        last = {
            level: max(last.get(level, 0), seen.offsets.get(level, 0)) for level in last.keys() | seen.offsets.keys()
        }
    return last


async def judge_schedulers(p: BrokerPass) -> None:
    """Judge each start once, emit an Event, and remember the offsets for the next start."""
    before = {group.group: group for group in p.broker.status.groups}
    for group in p.groups:
        info = group.info
        if info is None:
            continue
        known = p.memory.resumed.get(group.index)
        if known is not None and known.boot_id == info.boot_id:
            group.resumed = known
        else:
            group.resumed = judge(before.get(group.index), p.memory.seen.get(group.index), info, p.now_ms)
            earlier = before.get(group.index)
            if earlier is None or earlier.resumed != group.resumed:
                await _report_verdict(p, group, group.resumed)
            p.memory.resumed[group.index] = group.resumed
        p.memory.seen[group.index] = SeenOffsets(
            boot_id=info.boot_id, offsets={level.level: level.offset for level in info.delay.levels}
        )


async def _report_verdict(p: BrokerPass, group: Group, resumed: ResumedStatus) -> None:
    if resumed.verdict == "WentBack":
        await p.event("Warning", "SchedulerWentBack", verdict_text(group.name, resumed))
    elif resumed.verdict == "Corrected":
        await p.event("Normal", "SchedulerCorrected", verdict_text(group.name, resumed))


def verdict_text(name: str, resumed: ResumedStatus) -> str:
    """Return a sentence about a group."""
    levels = ", ".join(
        f"level {each.level} from {each.from_offset} to {each.to_offset} ({each.reason})"
        for each in resumed.corrected[:_MAX_NAMED]
    )
    levels += ", …" if len(resumed.corrected) > _MAX_NAMED else ""
    if resumed.verdict == "WentBack":
        return (
            f"{name} resumed behind its previous position: {levels}. Delayed messages in between may be delivered "
            "again or lost; check whether its volume was replaced or restored."
        )
    if resumed.verdict == "Corrected":
        return (
            f"{name} corrected delay offsets from its log when it started: {levels}. Such corrections are normal after "
            "a kill; no action is needed."
        )
    return f"{name} resumed at its previous position."
