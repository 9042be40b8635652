"""Status from the results of a pass, written immediately after relevant changes and periodically otherwise."""

from __future__ import annotations

from typing import Any

from delaymq.api_types.broker import About
from delaymq.api_types.delay import DelayLevel, Lateness, TimedMessages
from msgspec import structs

from delaymq_operator.api import names
from delaymq_operator.api.broker_status import (
    BrokerStatus,
    GroupStatus,
    LatenessStatus,
    LevelStatus,
    StorageStatus,
    TimedStatus,
    VolumesStatus,
)
from delaymq_operator.api.resource import status_patch, timestamp_of_ms
from delaymq_operator.manifests import parse_quantity
from delaymq_operator.reconcile.broker.apply.addresses import ingress_ip
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.claims import capacity, requested, storage_class
from delaymq_operator.reconcile.broker.report.conditions import conditions_of
from delaymq_operator.reconcile.broker.report.replicas import replica_statuses
from delaymq_operator.reconcile.name_servers import refused_addresses
from delaymq_operator.reconcile.ports import Manifest

_FIGURES = ("pending", "nextDue")
"""Figures that change constantly, and alone cause an update at most once per interval."""
_MAX_LEVELS = 4_000
"""Maximum number of levels in a status, for all groups together, since an object has at most about 1 MB."""
_MAX_IMAGES_CHARS = 2_048
"""The maximum that the CRD allows."""
_FIGURES_OF_GROUP = ("pending", "nextDue", "lateness", "delay")
_FIGURES_OF_REPLICA = ("behindBytes", "behindMs")


async def compose_status(p: BrokerPass) -> None:
    """Compose the status."""
    p.status = status_of_pass(p)


async def publish_status(p: BrokerPass) -> None:
    """Write the status if it is due, or if others changed it."""
    after = p.status.to_dict()
    edited = _edited(p)
    known = None if edited else p.memory.status
    before = known if known is not None else dict(p.body.get("status") or {})
    patch = status_patch(before, after)
    if patch is None:
        if edited:
            _remember(p, after, p.body)
        return
    due = p.now_ms - p.memory.status_at_ms >= p.ctx.settings.status_interval_s * 1000
    if not (due or edited) and _without_figures(before) == _without_figures(after):
        return
    stored = await p.ctx.kube.patch("Broker", p.namespace, p.broker.name, patch, subresource="status")
    _remember(p, after, stored)
    p.memory.status_at_ms = p.now_ms


def _remember(p: BrokerPass, written: dict[str, Any], stored: Manifest) -> None:
    p.memory.status = written
    p.memory.stored = stored.get("status") or {}
    p.memory.stored_version = stored["metadata"].get("resourceVersion") or ""


def _edited(p: BrokerPass) -> bool:
    """Return whether the cache contains a newer, different status; the cache may also lag behind."""
    shown = p.body["metadata"].get("resourceVersion") or ""
    known = p.memory.stored_version
    if p.memory.stored is None or not (shown.isdigit() and known.isdigit()) or int(shown) <= int(known):
        return False
    return (p.body.get("status") or {}) != p.memory.stored


def _without_figures(status: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in status.items() if key not in _FIGURES}
    kept["groups"] = [
        {key: _without_progress(value) for key, value in group.items() if key not in _FIGURES_OF_GROUP}
        for group in kept.get("groups") or []
    ]
    return kept


def _without_progress(value: object) -> object:
    if not isinstance(value, list):
        return value
    return [
        {key: each[key] for key in each if key not in _FIGURES_OF_REPLICA} if isinstance(each, dict) else each
        for each in value
    ]


def status_of_pass(p: BrokerPass) -> BrokerStatus:
    """Return the status to write."""
    before = {group.group: group for group in p.broker.status.groups}
    found = [group for group in p.groups if group.made or group.pod]
    most_levels = _MAX_LEVELS // max(1, len(found))
    groups = tuple(group_status(group, before.get(group.index), most_levels) for group in found)
    due = [group.next_due for group in groups if group.next_due is not None]
    pending = [group.pending for group in groups if group.pending is not None]
    selected = names.labels(p.broker.name, "broker")
    return BrokerStatus(
        observed_generation=p.broker.generation,
        defaults=p.defaults,
        size=sum(1 for group in p.groups if group.made),
        ready_groups=sum(1 for group in p.groups if group.ready),
        selector=names.selector_text(selected),
        name_servers=_name_servers(p),
        external_name_servers=_external_name_servers(p),
        image=_images(p),
        conditions=conditions_of(p, groups),
        pending=sum(pending) if pending else None,
        next_due=min(due, default=None),
        levels=_levels_in_force(p),
        volumes=_volumes(p),
        groups=groups,
        analytics=p.analytics.status,
    )


def group_status(group: Group, before: GroupStatus | None, most_levels: int) -> GroupStatus:
    """Return the status of a group. For an unresponsive broker, the last figures are kept: its next start is judged
    by them.
    """
    known = before if before is not None else GroupStatus(name=group.name, group=group.index)
    found = structs.replace(
        known,
        name=group.name,
        pod=group.pod.name if group.pod is not None else None,
        node=group.pod.node if group.pod is not None else None,
        ready=group.ready,
        master=group.master.name if group.master is not None else None,
        epoch=group.master.state.epoch if group.master is not None and group.master.state is not None else known.epoch,
        replicas=replica_statuses(group, known.replicas),
        writable=group.writable,
        drain=group.info.drain.mode if group.info is not None else "none",
        storage=StorageStatus(requested=requested(group.claim), capacity=capacity(group.claim))
        if group.claim is not None
        else None,
        resumed=group.resumed or known.resumed,
    )
    return _with_info(found, group.info, most_levels) if group.info is not None else found


def _with_info(found: GroupStatus, info: About, most_levels: int) -> GroupStatus:
    delay = info.delay
    due_ms = [part.next_due_ms for part in delay.parts if part.next_due_ms is not None]
    return structs.replace(
        found,
        address=info.address or None,
        version=info.version,
        started_at=timestamp_of_ms(info.started_at_ms),
        store_id=info.store_id,
        pending=sum(part.pending for part in delay.parts),
        next_due=timestamp_of_ms(min(due_ms)) if due_ms else None,
        lateness=_lateness([part.lateness for part in delay.parts]),
        delay=tuple(_level(level) for level in _levels_in_use(delay.levels, most_levels)),
        timed=_timed(delay.timed) if delay.timed is not None else None,
    )


def _volumes(p: BrokerPass) -> VolumesStatus | None:
    """Return the volume limits, including requested sizes: if a volume is larger, a rejected growth is set back to
    its request.
    """
    claims = [claim for group in p.groups for claim in group.claims if capacity(claim) is not None]
    sizes = [size for claim in claims for size in (capacity(claim), requested(claim)) if size is not None]
    if not sizes:
        return None
    classes = {storage_class(claim) for claim in claims}
    return VolumesStatus(
        smallest=min(sizes, key=parse_quantity), storage_class_name=classes.pop() if len(classes) == 1 else None
    )


def _levels_in_use(levels: tuple[DelayLevel, ...], most: int) -> list[DelayLevel]:
    """Return the levels that ever had a message, in order; if there are too many, those with the most pending
    messages.
    """
    used = [level for level in levels if level.max_offset > 0 or level.offset > 0]
    if len(used) <= most:
        return used
    chosen = sorted(used, key=lambda level: (-level.pending, -level.max_offset))[:most]
    return sorted(chosen, key=lambda level: level.level)


def _level(level: DelayLevel) -> LevelStatus:
    return LevelStatus(
        level=level.level,
        delay_ms=level.delay_ms,
        offset=level.offset,
        max_offset=level.max_offset,
        pending=level.pending,
        next_due=timestamp_of_ms(level.next_due_ms) if level.next_due_ms is not None else None,
    )


def _timed(timed: TimedMessages) -> TimedStatus:
    return TimedStatus(
        pending=timed.pending,
        next_due=timestamp_of_ms(timed.next_due_ms) if timed.next_due_ms is not None else None,
    )


def _lateness(measured: list[Lateness]) -> LatenessStatus | None:
    """Return the maximum of all levels and of timed messages, since percentiles cannot be added."""
    if not measured:
        return None
    return LatenessStatus(
        p50_ms=max(each.p50_ms for each in measured),
        p99_ms=max(each.p99_ms for each in measured),
        max_ms=max(each.max_ms for each in measured),
    )


def _name_servers(p: BrokerPass) -> tuple[str, ...]:
    if refused_addresses(p.broker, p.ctx):
        return p.broker.status.name_servers  # brokers keep the addresses that they use
    own = (names.namesrv_client_address(p.broker.name, p.namespace),)
    return own if p.own_name_servers else p.broker.spec.name_servers.addresses


def _external_name_servers(p: BrokerPass) -> tuple[str, ...]:
    external = p.broker.spec.external
    if external is None:
        return ()
    if not p.own_name_servers:
        return p.broker.spec.name_servers.addresses
    service = p.cached("Service", names.namesrv_external_service(p.broker.name))
    if external.type == "NodePort":
        address, port = external.advertised_address, external.name_server_node_port
    else:
        address, port = ingress_ip(service), names.NAMESRV_PORT
    if address is None or service is None:
        return ()
    return (f"[{address}]:{port}" if ":" in address else f"{address}:{port}",)


def _images(p: BrokerPass) -> str | None:
    """Return the brokers' images in the order of their groups: several during a rollout, none while none runs."""
    images = dict.fromkeys(pod.image for group in p.groups for pod in group.pods if pod.image)
    return ", ".join(image for image in images if image)[:_MAX_IMAGES_CHARS] or None


def _levels_in_force(p: BrokerPass) -> str | None:
    """Return the table that all responsive brokers have; while they differ, the last reported one."""
    tables = {" ".join(group.info.settings.get("messageDelayLevel", "").split()) for group in p.groups if group.info}
    return tables.pop() or None if len(tables) == 1 else p.broker.status.levels
