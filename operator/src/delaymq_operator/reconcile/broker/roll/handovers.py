"""Changes of the master of a group: to another member in sync, and, on request only, to one that may lack messages."""

from __future__ import annotations

import re
from typing import Final

from delaymq.api_types.replication import Replication

from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.names import PROMOTE_ANNOTATION
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.members import Member, is_in_sync
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable

_PROMOTION: Final = re.compile(r"([a-z0-9][-a-z0-9]{0,251})@(0|[1-9][0-9]{0,9})")


def successor_of(group: Group, *, kept: bool = False) -> str:
    """Return the pod of a replica in sync to which the master can hand over, the lowest first; empty: there is none.

    `kept`: only replicas that remain.
    """
    for member in group.members:
        is_candidate = member is not group.master and member.state is not None and member.state.role == "Replica"
        ready = member.pod is not None and member.pod.ready and is_in_sync(group.master, member.name)
        if is_candidate and ready and not (kept and member.surplus):
            return member.name
    return ""


async def hand_over(p: BrokerPass, index: int | None, target: str, why: str) -> None:
    """Let the master of a group hand over to a replica; the next pass observes the new master."""
    group = p.group_of(lambda group: group.index == index)
    master = group.master if group is not None else None
    if group is None or master is None or master.state is None or master.endpoint is None:
        return
    state, endpoint = master.state, master.endpoint
    what = f"{group.name}: {master.name} hands over to {target} {why}"
    p.progressing(Reason.SWITCHING_OVER, f"{what}.")
    try:
        await p.ctx.admin.switch_over(endpoint, target, state.epoch)
    except (BrokerUnreachable, BrokerRefused) as error:
        said = error.message if isinstance(error, BrokerRefused) else str(error)
        p.progressing(Reason.SWITCHING_OVER, f"{group.name}: {master.name} has not handed over to {target}: {said}.")
        return
    await p.event("Normal", "SwitchingOver", f"{what} ({proof_of(state)})")


def proof_of(state: Replication) -> str:
    """Return the facts that justify a change of the master."""
    log = f"log confirmed to {state.confirmed} of {state.end}"
    return f"epoch {state.epoch}, in sync: {', '.join(state.in_sync)}, {log}"


async def may_stop(p: BrokerPass, index: int | None, pod_name: str) -> bool:
    """Return whether stopping a broker leaves its group a master, by a fresh query: roles change without the operator.

    The only broker of a group may always stop.
    """
    group = p.group_of(lambda group: group.index == index)
    if group is None or len([member for member in group.members if not member.surplus]) < 2 or group.master is None:
        return True
    if group.master.name == pod_name:
        # It hands over if it can; otherwise nobody else can be in sync before it restarts.
        return not successor_of(group)
    if group.master.endpoint is None:
        return False
    try:
        fresh = await p.ctx.admin.replication(group.master.endpoint)
    except (BrokerUnreachable, BrokerRefused):
        return False
    return fresh is not None and fresh.role == "Master"


async def promote_on_request(p: BrokerPass) -> None:
    """Promote the member that the annotation names, if its group has no master in that epoch.

    An Event states first which members are missing and what may be lost.
    """
    text = p.broker.promote_annotation
    if not text:
        return
    found = _PROMOTION.fullmatch(text)
    if found is None:
        what = f"The annotation {PROMOTE_ANNOTATION} is {text[:100]!r}"
        p.problem(Reason.PROMOTION_REFUSED, f"{what}: set it to POD@EPOCH, such as demo-broker-0-1@7, or remove it.")
        return
    name, epoch = found[1], int(found[2])
    group = p.group_of(lambda group: any(member.name == name for member in group.members))
    member = next((each for each in group.members if each.name == name), None) if group is not None else None
    if group is None or member is None:
        what = f"The annotation {PROMOTE_ANNOTATION} names {name}, which is no pod of a group"
        p.problem(Reason.PROMOTION_REFUSED, f"{what}: correct or remove it.")
        return
    if member.state is None or member.endpoint is None or member.state.epoch > epoch:
        # It was promoted already, or cannot be now.
        return
    if group.master is not None and group.master.state is not None and group.master.state.epoch >= epoch:
        return
    await p.event("Warning", "Promoting", f"{group.name}: {loss_of(p, group, member)}; {name} is promoted nevertheless")
    try:
        await p.ctx.admin.promote(member.endpoint, epoch)
    except (BrokerUnreachable, BrokerRefused) as error:
        said = error.message if isinstance(error, BrokerRefused) else str(error)
        p.problem(Reason.PROMOTION_REFUSED, f"{name} was not promoted: {said}. Correct or remove {PROMOTE_ANNOTATION}.")
    p.requeue(p.ctx.settings.progress_interval_s)


def loss_of(p: BrokerPass, group: Group, member: Member) -> str:
    """Return what is known about messages that a member lacks: who was in sync according to the last master."""
    state = member.state
    if state is None:
        return f"the log of {member.name} is unknown"
    known = next((each for each in p.broker.status.groups if each.group == group.index), None)
    in_sync = [each.name for each in known.replicas if each.in_sync] if known is not None else []
    absent = [name for name in in_sync if name != member.name and not _responds(group, name)]
    counted = "was in sync" if member.name in in_sync else "was not in sync"
    what = f"{member.name} {counted} with the last master, and has the log of epoch {state.epoch} up to {state.end}"
    if absent:
        return f"{what}; messages that only {', '.join(absent)} may have are lost"
    return what if member.name in in_sync else f"{what}; later messages are lost"


def _responds(group: Group, name: str) -> bool:
    return any(member.name == name and member.state is not None for member in group.members)
