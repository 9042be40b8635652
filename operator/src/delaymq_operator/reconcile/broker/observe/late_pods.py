"""Pods that are not ready, with the time since when and the last Warning Event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from delaymq_operator.api import names
from delaymq_operator.api.conditions import ConditionType, find_condition
from delaymq_operator.api.resource import ms_of_timestamp, timestamp_of_ms
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group, LatePod
from delaymq_operator.reconcile.broker.model.memory import LastWarning
from delaymq_operator.reconcile.broker.model.pods import MAX_MESSAGE_CHARS, Pod
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

_EVENTS_AFTER_MS: Final = 15_000
"""Time before the Events of a pod are read, since a starting pod is briefly not ready."""
_EVENTS_REPEAT_MS: Final = 15_000
_MAX_EVENT_LOOKUPS: Final = 4
"""Maximum number of requests for Events per pass; further pods follow in the next passes."""
_CLOCKS_DIFFER_MS: Final = 30_000
"""Tolerated clock difference, since Events contain the time of another machine."""
_KEPT_MS: Final = 3_600_000
_FAILED_CREATE: Final = "FailedCreate"


async def find_late_pods(p: BrokerPass) -> None:
    """Find every pod that should exist and is not ready."""
    missing = set()
    for name, live, pod, group in _places(p):
        if live["metadata"].get("deletionTimestamp") or (pod is not None and (pod.ready or pod.terminating)):
            continue
        if pod is None:
            missing.add(name)
        since_ms = pod.unready_since_ms if pod is not None else _missing_since(p, name)
        if since_ms is None or p.now_ms - since_ms < _EVENTS_AFTER_MS:
            continue
        about = (name, pod.uid) if pod is not None else (live["metadata"]["name"], live["metadata"]["uid"])
        warning = await last_warning(p, *about)
        if warning is not None and pod is None and warning.at_ms < since_ms - _CLOCKS_DIFFER_MS:
            # The warning concerns an earlier pod: the StatefulSet keeps its name and uid.
            warning = None
        p.late_pods[name] = LatePod(
            name=name,
            since_ms=since_ms,
            what=_describe(name, live["metadata"]["name"], pod, group, since_ms),
            warning=f"Last warning: {warning.reason}: {warning.message}" if warning is not None else "",
            cannot_be_made=pod is None and warning is not None and warning.reason == _FAILED_CREATE,
            has_problem=pod is not None and pod.problem is not None,
        )
    since = p.memory.missing_since_ms
    p.memory.missing_since_ms = {name: at_ms for name, at_ms in since.items() if name in missing}


def _places(p: BrokerPass) -> Iterator[tuple[str, Manifest, Pod | None, Group | None]]:
    """Yield the name of a pod, its StatefulSet, the pod and its group, if the StatefulSet exists."""
    if p.own_name_servers and p.name_servers.live is not None:
        pods = {pod.name: pod for pod in p.name_server_pods}
        for ordinal in range(p.name_servers.live["spec"].get("replicas", 1)):
            name = names.namesrv_pod(p.broker.name, ordinal)
            yield name, p.name_servers.live, pods.get(name), None
    for group in p.desired_groups:
        if group.set.live is None:
            continue
        for member in group.members:
            if member.ordinal < group.set.live["spec"].get("replicas", 1):
                about = group if member.pod is group.pod else None
                yield member.name, group.set.live, member.pod, about


def _missing_since(p: BrokerPass, name: str) -> int:
    """Return the time since which a pod has been missing; after its start, the operator uses the time in the status."""
    start_ms = p.now_ms
    ready = find_condition(p.broker.status.conditions, ConditionType.READY)
    if p.is_first and ready is not None and ready.status == "False":
        start_ms = min(start_ms, ms_of_timestamp(ready.last_transition_time) or start_ms)
    return p.memory.missing_since_ms.setdefault(name, start_ms)


def _describe(name: str, stateful_set: str, pod: Pod | None, group: Group | None, since_ms: int) -> str:
    since = timestamp_of_ms(since_ms)
    if pod is None:
        return f"Pod {name} has been missing since {since}; see `kubectl describe statefulset {stateful_set}`"
    why = "; ".join(group.info.not_ready) if group is not None and group.info is not None else pod.waits_for
    described = f"Pod {name} has not been ready since {since}{f' ({why})' if why else ''}"
    return f"{described}; see `kubectl describe pod {name}` and `kubectl logs {name}`"


async def last_warning(p: BrokerPass, name: str, uid: str) -> LastWarning | None:
    """Return the newest Warning Event about an object, cached for some seconds; also None if Events may not be read."""
    looked_ms, found = p.memory.warnings.get(uid, (None, None))
    if (looked_ms is not None and p.now_ms - looked_ms < _EVENTS_REPEAT_MS) or p.event_lookups >= _MAX_EVENT_LOOKUPS:
        return found
    p.event_lookups += 1
    try:
        fields = {"regarding.name": name, "type": "Warning"}
        events = await p.ctx.kube.list("Event", p.namespace, fields=fields)
        found = newest_warning(events, uid)
    except KubeError:
        # Events only explain: the previous one is still the best available.
        pass
    kept = p.memory.warnings.items()
    p.memory.warnings = {key: value for key, value in kept if p.now_ms - value[0] < _KEPT_MS}
    p.memory.warnings[uid] = (p.now_ms, found)
    return found


def newest_warning(events: list[Manifest], uid: str) -> LastWarning | None:
    """Return the newest Warning among Events (events.k8s.io/v1) about the object with this uid."""
    ours = [event for event in events if (event.get("regarding") or {}).get("uid") == uid]
    newest = max(ours, key=_at_ms, default=None)
    if newest is None:
        return None
    message = str(newest.get("note") or "").strip()[:MAX_MESSAGE_CHARS]
    return LastWarning(reason=str(newest.get("reason") or "Warning"), message=message, at_ms=_at_ms(newest))


def _at_ms(event: dict[str, Any]) -> int:
    """Return the time of the last occurrence. Events of the older API have only the deprecated fields."""
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("eventTime"),
        event.get("deprecatedLastTimestamp"),
        (event.get("metadata") or {}).get("creationTimestamp"),
    )
    return max((ms_of_timestamp(time) or 0 for time in times if isinstance(time, str)), default=0)
