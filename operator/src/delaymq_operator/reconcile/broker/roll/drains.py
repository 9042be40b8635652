"""Redirecting writes from a broker: it is withdrawn from the routes, then rejects sends for a moment.

All times are the broker's, so that clocks need not agree and a new operator continues where the last one stopped.
"""

from __future__ import annotations

from typing import Final, Literal

from delaymq.api_types.broker import About, DrainMode
from msgspec.structs import replace

from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.context import ReconcileSettings
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable

ROUTES_S: Final = 30.0
"""Interval at which clients refresh routes (RocketMQ's pollNameServerInterval)."""
DrainStep = Literal["withdraw", "refuse", "done"]


def is_known(info: About) -> bool:
    """Return whether clients know that this broker accepts writes: it has done so for as long as they cache a route."""
    since_ms = max(info.started_at_ms, info.drain.since_ms)
    takes_writes = info.drain.mode == "none" and not info.decommissioned
    return takes_writes and info.as_of_ms - since_ms >= ROUTES_S * 1000


def held_s(info: About) -> float:
    """Return the seconds since the broker's drain mode last changed."""
    return (info.as_of_ms - info.drain.since_ms) / 1000


def next_drain_step(info: About, settings: ReconcileSettings, *, other_known: bool) -> DrainStep:
    """Return the drain mode to request (a repetition renews the lease); done: it accepts no sends, and nobody sends.

    `other_known`: clients know another broker (`is_known`). Otherwise, an infrequent sender may know this one only,
    which a quiet broker cannot reveal.
    """
    drain = info.drain
    if drain.mode == "none":
        return "withdraw"
    if drain.mode == "withdraw":
        since_send_s = (info.as_of_ms - (drain.last_send_ms or 0)) / 1000
        is_quiet = other_known and min(held_s(info), since_send_s) >= settings.quiet_s
        return "refuse" if is_quiet or held_s(info) >= settings.withdraw_max_s else "withdraw"
    return "done" if held_s(info) >= settings.refuse_s else "refuse"


async def request_drain(p: BrokerPass, group: Group, mode: DrainMode) -> bool:
    """Start, renew or end a drain. Return False if the broker was unreachable; then its lease decides."""
    if group.endpoint is None:
        return False
    try:
        now = await p.ctx.admin.drain(group.endpoint, mode, int(p.ctx.settings.drain_lease_s * 1000))
    except (BrokerUnreachable, BrokerRefused) as error:
        group.unreachable = str(error)
        p.memory.undrained_since_ms.setdefault(group.index, p.now_ms)
        return False
    p.memory.undrained_since_ms.pop(group.index, None)
    if group.info is not None:
        # Later steps of the pass use it.
        group.info = replace(group.info, drain=now)
    return True
