"""Accounts with which brokers register at their NameServers: created once, rotated on request.

No broker loses access in the process: a group whose pod does not sign yet may register without a signature, and
NameServers receive new accounts long before brokers use them.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any, Final

from delaymq_operator.api import names
from delaymq_operator.manifests import REGISTRATION_VOLUME, Registrations, read_registrations, registers
from delaymq_operator.manifests import registration_secret as rendered
from delaymq_operator.reconcile.broker.apply.ensure import check_ours
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group

KNOWN_AFTER_MS: Final = 600_000
"""Time after which brokers receive new accounts; kubelets update a Secret in NameServer pods within one or two
minutes.
"""
_SEED_BYTES: Final = 32


async def ensure_registrations(p: BrokerPass) -> None:
    """Ensure the Secret; it is read at the start, before a change, and while a group is not ready."""
    if not registers(p.broker):
        return
    kept = p.memory.registrations
    unsigned = tuple(group.index for group in p.groups if _does_not_sign(p, group))
    desired = _rotated(p, kept) if kept is not None else None
    # A pod that does not become ready may wait for the Secret.
    all_ready = all(group.ready for group in p.desired_groups)
    if all_ready and desired is not None and (desired, unsigned) == (kept, p.memory.unsigned):
        return
    live = await p.ctx.kube.get("Secret", p.namespace, names.registration_secret(p.broker.name))
    if live is not None:
        check_ours(p, live)
    # A deleted Secret is restored with the same contents, since pods have its files.
    found = read_registrations(live) or kept or _first(p)
    desired = _rotated(p, found)
    manifest = rendered(p.broker, desired, unsigned)
    if live is None or live.get("data") != manifest["data"]:
        await p.ctx.kube.apply(manifest)
        if desired.newest != found.newest:
            what = "NameServers received new registration accounts; brokers will receive them in 10 minutes"
            await p.event("Normal", "RegistrationRotated", what)
    p.memory.registrations, p.memory.unsigned = desired, unsigned


def _first(p: BrokerPass) -> Registrations:
    seed = secrets.token_urlsafe(_SEED_BYTES)
    return Registrations(seeds={1: seed}, given=1, newest=1, rotation=p.broker.rotate_annotation, since_ms=p.now_ms)


def _rotated(p: BrokerPass, kept: Registrations) -> Registrations:
    """Advance a rotation by one step if it is due; the previous accounts remain valid until the next rotation."""
    if kept.given != kept.newest:
        waited_ms = p.now_ms - kept.since_ms
        if 0 <= waited_ms < KNOWN_AFTER_MS:
            p.requeue((KNOWN_AFTER_MS - waited_ms) / 1000)
            return kept
        return replace(kept, given=kept.newest)
    if p.broker.rotate_annotation == kept.rotation:
        return kept
    p.requeue(KNOWN_AFTER_MS / 1000)
    newest = kept.newest + 1
    seeds = {kept.given: kept.seeds[kept.given], newest: secrets.token_urlsafe(_SEED_BYTES)}
    rotation = p.broker.rotate_annotation
    return Registrations(seeds=seeds, given=kept.given, newest=newest, rotation=rotation, since_ms=p.now_ms)


def _does_not_sign(p: BrokerPass, group: Group) -> bool:
    """Return whether a pod, or the StatefulSet that creates the next one, has no account."""
    pods = [p.cached("Pod", member.name) for member in group.members]
    template = ((group.set.live or {}).get("spec") or {}).get("template")
    return any(each is not None and not _has_account(each) for each in (*pods, template))


def _has_account(pod: dict[str, Any]) -> bool:
    volumes = (pod.get("spec") or {}).get("volumes") or []
    return any(volume.get("name") == REGISTRATION_VOLUME for volume in volumes)
