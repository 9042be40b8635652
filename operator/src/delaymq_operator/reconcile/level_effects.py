"""Effect that a delay level table would have on a Broker, for dry runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from delaymq_operator.api import Broker, DelayLevelConfig, SpecError, parse_broker
from delaymq_operator.reconcile.ports import Manifest

_MAX_NAMED = 10


def effect_on(body: Manifest, config: DelayLevelConfig) -> str:
    """Return the effect on new and pending messages of a Broker, as a part of a sentence."""
    try:
        broker = parse_broker(body)
    except SpecError:
        return "its spec is invalid"
    if broker.status.levels is None:
        return "its present table is unknown until its brokers are ready"
    before, after = broker.status.levels.split(), config.spec.levels
    pending = _pending(broker)
    common = min(len(before), len(after))
    changed = [number for number in range(1, common + 1) if before[number - 1] != after[number - 1]]
    removed = range(common + 1, len(before) + 1)
    parts = []
    if changed:
        named = _some([f"{n} ({before[n - 1]} → {after[n - 1]})" for n in changed])
        parts.append(f"{'level' if len(changed) == 1 else 'levels'} {named} would change")
    if len(after) > common:
        parts.append(f"{_span(common + 1, len(after))} would be added")
    if removed:
        fate = "be rejected" if config.spec.overflow == "Reject" else f"get level {len(after)}"
        parts.append(f"{_span(removed[0], removed[-1])} would be removed, and messages sent with them would {fate}")
    if not parts:
        return "no level would change"
    concerned = sum(pending.get(number, 0) for number in (*changed, *removed))
    noun = "message" if concerned == 1 else "messages"
    return f"{', '.join(parts)}; {concerned} pending {noun} of changed levels would keep their due times"


def _pending(broker: Broker) -> dict[int, int]:
    """Return the numbers of pending messages by level, in all groups."""
    found: dict[int, int] = {}
    for level in (level for group in broker.status.groups for level in group.delay):
        found[level.level] = found.get(level.level, 0) + level.pending
    return found


def _span(first: int, last: int) -> str:
    return f"level {first}" if first == last else f"levels {first} to {last}"


def _some(parts: Sequence[str]) -> str:
    shown = ", ".join(parts[:_MAX_NAMED])
    return shown if len(parts) <= _MAX_NAMED else f"{shown} and {len(parts) - _MAX_NAMED} more"
