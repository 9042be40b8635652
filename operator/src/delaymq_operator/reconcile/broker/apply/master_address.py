"""Services of groups with replicas: without a selector, one EndpointSlice follows the master, which writes its address.

A Service that loses its selector keeps the endpoints that it had, and Kubernetes mirrors its former Endpoints object.
The operator deletes both, after it has created its own slice: the Service always has an endpoint. There is no second
pod of the group before nothing of the selector is left, since clients would reach it.
"""

from __future__ import annotations

from typing import Any, Final

from delaymq_operator.api.names import EPOCH_ANNOTATION
from delaymq_operator.manifests import listen_port, master_endpoint_slice, slice_ports
from delaymq_operator.reconcile.broker.apply.ensure import check_ours
from delaymq_operator.reconcile.broker.apply.replication_objects import CHECK_MS
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
SERVICE_LABEL: Final = "kubernetes.io/service-name"
_SELECTED: Final = "endpointslice-controller.k8s.io"
_MIRRORED: Final = "endpointslicemirroring-controller.k8s.io"
_CLEAN_CHECKS: Final = 2
"""Checks after which nothing of a selector is left: a controller may have observed the Service without it only after
the first one.
"""
_NEXT_CHECK_S: Final = 5.0


async def ensure_slice(p: BrokerPass, group: Group, service: Manifest) -> None:
    """Ensure the EndpointSlice of a Service, given by its manifest."""
    if not _is_due(p, group, service):
        return
    port = (group.pod.port if group.pod is not None else None) or listen_port(p.broker.spec, group.index)
    desired = _desired_slice(p, group, service, port)
    live = await p.ctx.kube.get("EndpointSlice", p.namespace, desired["metadata"]["name"])
    if live is None:
        try:
            await p.ctx.kube.create(desired)
        except KubeError as error:
            if not error.conflict:
                raise
        return
    check_ours(p, live)
    patch: dict[str, Any] = {}
    ports = slice_ports(service, port)
    if _ports(live.get("ports")) != _ports(ports):
        patch["ports"] = ports
    has = [address for endpoint in live.get("endpoints") or [] for address in endpoint.get("addresses") or []]
    wanted = [address for endpoint in desired["endpoints"] for address in endpoint["addresses"]]
    if _epoch(live) == "0" and group.master is None and wanted and has != wanted:
        # No member has written it yet, and the only broker has moved.
        patch["endpoints"] = desired["endpoints"]
    if patch:
        patch["metadata"] = {"resourceVersion": live["metadata"]["resourceVersion"]}
        try:
            await p.ctx.kube.patch("EndpointSlice", p.namespace, desired["metadata"]["name"], patch)
        except KubeError as error:
            # A master has written it in the meantime.
            if not error.conflict:
                raise
            p.memory.checked_ms.pop(_what(group, service), None)


def _desired_slice(p: BrokerPass, group: Group, service: Manifest, port: int) -> Manifest:
    """Return a slice with the address of the master, or of the only broker; without an endpoint if there is neither."""
    cluster_ip = ((group.service or {}).get("spec") or {}).get("clusterIP") or ""
    address = group.pod.ip if group.pod is not None and not group.masterless else None
    kind = "IPv6" if ":" in (address or cluster_ip) else "IPv4"
    found = master_endpoint_slice(p.broker, group.index, service, port, address, kind)
    if group.master is not None and group.master.state is not None:
        found["metadata"]["annotations"][EPOCH_ANNOTATION] = str(group.master.state.epoch)
    return found


async def drop_selected_endpoints(p: BrokerPass, group: Group, services: list[str]) -> bool:
    """Delete the endpoints of former selectors; return whether none are left, so that there may be other pods."""
    clean = p.memory.leftovers.get(group.index, 0)
    last_ms = p.memory.checked_ms.get(("leftovers", group.index))
    interval_ms = CHECK_MS if clean >= _CLEAN_CHECKS else _NEXT_CHECK_S * 1000
    if clean and last_ms is not None and p.now_ms - last_ms < interval_ms:
        return True
    p.memory.checked_ms["leftovers", group.index] = p.now_ms
    found = False
    for service in services:
        found = await _drop(p, service) or found
    if found:
        p.memory.leftovers[group.index] = 0
        p.requeue(p.ctx.settings.progress_interval_s)
        return False
    p.memory.leftovers[group.index] = clean + 1
    if clean + 1 < _CLEAN_CHECKS:
        p.requeue(_NEXT_CHECK_S)
    return True


async def _drop(p: BrokerPass, service: str) -> bool:
    slices = await p.ctx.kube.list("EndpointSlice", p.namespace, labels={SERVICE_LABEL: service})
    endpoints = await p.ctx.kube.get("Endpoints", p.namespace, service)
    if endpoints is not None:
        uid = endpoints["metadata"]["uid"]
        await p.ctx.kube.delete("Endpoints", p.namespace, service, uid=uid)
    managers = {_SELECTED, _MIRRORED}
    former = [each for each in slices if (each["metadata"].get("labels") or {}).get(MANAGER_LABEL) in managers]
    for each in former:
        metadata = each["metadata"]
        await p.ctx.kube.delete("EndpointSlice", p.namespace, metadata["name"], uid=metadata["uid"])
    return endpoints is not None or bool(former)


def _what(group: Group, service: Manifest) -> tuple[str, int]:
    return service["metadata"]["name"], group.index


def _is_due(p: BrokerPass, group: Group, service: Manifest) -> bool:
    """Return whether the slice is to be checked, and note the check: always until the group serves by it."""
    last_ms = p.memory.checked_ms.get(_what(group, service))
    is_settled = group.ready and group.master is not None and group.set.settled
    if last_ms is not None and is_settled and p.now_ms - last_ms < CHECK_MS:
        return False
    p.memory.checked_ms[_what(group, service)] = p.now_ms
    return True


def _ports(ports: object) -> list[tuple[object, object]]:
    found = ports if isinstance(ports, list) else []
    return sorted((str(each.get("name")), int(each.get("port") or 0)) for each in found)


def _epoch(live: Manifest) -> str:
    return str((live["metadata"].get("annotations") or {}).get(EPOCH_ANNOTATION, "0"))
