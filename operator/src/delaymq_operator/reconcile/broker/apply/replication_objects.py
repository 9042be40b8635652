"""Objects of groups with replicas: the secret of the members, their permissions, and the register.

They are not watched, so they are checked from time to time, and when a member reports a problem of its register.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from delaymq_operator.api import names
from delaymq_operator.api.names import MEMBERS_ANNOTATION
from delaymq_operator.manifests import (
    group_service_account,
    read_replication_secrets,
    register_lease,
    register_role,
    register_role_binding,
)
from delaymq_operator.manifests import replication_secret as rendered
from delaymq_operator.manifests.hashes import digest
from delaymq_operator.reconcile.broker.apply.compare import covers
from delaymq_operator.reconcile.broker.apply.ensure import check_ours, ensure
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.errors import KubeError

CHECK_MS: Final = 60_000
"""Interval between checks of objects that are not watched."""
PROBLEM_CHECK_MS: Final = 5_000
_SECRET_BYTES: Final = 32


async def ensure_replication(p: BrokerPass) -> None:
    """Ensure the objects of all groups that have, or had, replicas."""
    groups = [group for group in p.groups if group.replicated and (group.made or not group.surplus)]
    if not groups:
        return
    await _ensure_secrets(p, groups)
    for group in groups:
        await _announce(p, group)
        await _record_members(p, group)
        await _ensure_permissions(p, group)
        await _ensure_register(p, group)


async def _announce(p: BrokerPass, group: Group) -> None:
    """Announce that the only broker of a group will restart, since its store has to be opened as that of a member."""
    plain = next((member for member in group.members if member.pod is not None and not member.known_members), None)
    if plain is not None and not group.surplus:
        what = f"{group.name} gets replicas: its only broker, pod {plain.name}, restarts once when the other pods run"
        await p.event("Normal", "AddingReplicas", what)


async def _ensure_secrets(p: BrokerPass, groups: Sequence[Group]) -> None:
    known = p.memory.replication_secrets
    # A pod that does not become ready may wait for the Secret.
    if all(group.ready and group.index in known for group in groups):
        return
    live = await p.ctx.kube.get("Secret", p.namespace, names.replication_secret(p.broker.name))
    if live is not None:
        check_ours(p, live)
    # A deleted Secret is restored with the same contents, since pods have its files.
    found = known | read_replication_secrets(live)
    for group in groups:
        if group.index not in found:
            found[group.index] = secrets.token_urlsafe(_SECRET_BYTES)
    manifest = rendered(p.broker, found)
    if live is None or live.get("data") != manifest["data"]:
        await p.ctx.kube.apply(manifest)
    p.memory.replication_secrets = found


async def _record_members(p: BrokerPass, group: Group) -> None:
    """Record the number of members at the volumes, before a store becomes that of a member."""
    for member in group.members:
        if member.claim is None:
            continue
        recorded = (member.claim["metadata"].get("annotations") or {}).get(MEMBERS_ANNOTATION)
        wanted = str(group.size) if member.ordinal < group.size else None
        if recorded != wanted:
            patch = {"metadata": {"annotations": {MEMBERS_ANNOTATION: wanted}}}
            name = member.claim["metadata"]["name"]
            member.claim = await p.ctx.kube.patch("PersistentVolumeClaim", p.namespace, name, patch)


async def _ensure_permissions(p: BrokerPass, group: Group) -> None:
    role, binding = register_role(p.broker, group.index), register_role_binding(p.broker, group.index)
    wanted = digest([role, binding])
    if p.broker.spec.pod_template.service_account_name is None:
        await ensure(p, group_service_account(p.broker, group.index))
    if p.memory.granted.get(group.index) == wanted and not _is_due(p, group, "permissions"):
        return
    for kind, desired in (("Role", role), ("RoleBinding", binding)):
        live = await p.ctx.kube.get(kind, p.namespace, desired["metadata"]["name"])
        if live is not None:
            check_ours(p, live)
        if not covers(live, desired):
            await p.ctx.kube.apply(desired)
    p.memory.granted[group.index] = wanted


async def _ensure_register(p: BrokerPass, group: Group) -> None:
    """Create the Lease if it is missing. Only the answers of all members replace its record."""
    if not _is_due(p, group, "register"):
        return
    desired = register_lease(p.broker, group.index)
    name = desired["metadata"]["name"]
    live = await p.ctx.kube.get("Lease", p.namespace, name)
    if live is not None:
        check_ours(p, live)
        return
    try:
        await p.ctx.kube.create(desired)
    except KubeError as error:
        if not error.conflict:
            raise
        return
    if any(member.state is not None for member in group.members):
        what = f"Lease {name} of {group.name} was deleted and is created again"
        await p.event("Warning", "RegisterRecreated", f"{what}: its brokers write the record when all of them respond")


def _is_due(p: BrokerPass, group: Group, what: str) -> bool:
    """Return whether an object is to be checked, and note the check."""
    has_problem = any(member.state is not None and not member.state.register.reachable for member in group.members)
    interval_ms = PROBLEM_CHECK_MS if has_problem else CHECK_MS
    last_ms = p.memory.checked_ms.get((what, group.index))
    if last_ms is not None and p.now_ms - last_ms < interval_ms:
        return False
    p.memory.checked_ms[what, group.index] = p.now_ms
    return True
