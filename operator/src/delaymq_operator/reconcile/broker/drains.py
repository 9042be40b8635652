"""Moving writes away from a broker: first out of the routes, then, for a moment, sends are refused.

All times are the broker's own, so that clocks need not agree and a new operator goes on where the last one was.
"""

from __future__ import annotations

from typing import Literal

from delaymq_operator.reconcile.broker.state import BrokerPass, Group
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import BrokerInfo, DrainMode
from delaymq_operator.reconcile.world import ReconcileSettings

DrainStep = Literal["withdraw", "refuse", "done"]


def next_drain_step(info: BrokerInfo, settings: ReconcileSettings) -> DrainStep:
    """What to ask the broker for now (a repetition renews the lease); done: it takes no sends, and nobody sends."""
    drain = info.drain
    since_ms = drain.since_ms if drain.since_ms is not None else info.as_of_ms
    held_ms = info.as_of_ms - since_ms
    if drain.mode == "none":
        return "withdraw"
    if drain.mode == "withdraw":
        quiet_ms = info.as_of_ms - max(since_ms, drain.last_send_ms or 0)
        is_quiet = quiet_ms >= settings.quiet_s * 1000
        return "refuse" if is_quiet or held_ms >= settings.withdraw_max_s * 1000 else "withdraw"
    return "done" if held_ms >= settings.refuse_s * 1000 else "refuse"


async def ask_to_drain(p: BrokerPass, group: Group, mode: DrainMode) -> bool:
    """Begins, renews or ends a drain. False when the broker could not be asked; then its lease decides."""
    if group.endpoint is None:
        return False
    try:
        await p.world.admin.drain(group.endpoint, mode, int(p.world.settings.drain_lease_s * 1000))
    except (BrokerUnreachable, BrokerRefused) as error:
        group.unreachable = str(error)
        p.memory.undrained_since_ms.setdefault(group.index, p.now_ms)
        return False
    p.memory.undrained_since_ms.pop(group.index, None)
    return True
