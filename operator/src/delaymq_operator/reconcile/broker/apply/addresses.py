"""Services of groups, and the addresses that brokers advertise, which must not change, since offset message ids contain
them.
"""

from __future__ import annotations

from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.names import ADVERTISED_IP_ANNOTATION
from delaymq_operator.manifests import (
    group_external_service,
    group_service,
    name_server_external_service,
    services_of,
)
from delaymq_operator.reconcile.broker.apply.ensure import ensure
from delaymq_operator.reconcile.broker.apply.master_address import drop_selected_endpoints, ensure_slice
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

_NODE_PORT_LOOK_S = 30.0


async def ensure_addresses(p: BrokerPass) -> None:
    """Ensure that each group has its Services, and that its address is known or reported as pending."""
    for group in p.groups:
        if group.surplus and not group.made:
            continue
        group.service = await _ensure_group_service(p, group)
        await _remember_address(p, group)
        if not await _ensure_external_service(p, group):
            continue  # Without its ports, no pod is created or restarted.
        group.address = advertised_address(p, group)
        if group.address is None and not group.surplus:
            _report_pending(p, group)
        if group.replicated:
            group.follows_master = await drop_selected_endpoints(p, group, services_of(p.broker, group.index))


async def _ensure_group_service(p: BrokerPass, group: Group) -> Manifest:
    had = cluster_ip_of(group.service) or next(filter(None, map(annotated_ip, group.claims)), None)
    port = group.pod.port if group.pod is not None else None
    desired = group_service(p.broker, group.index, had, port, selects=not group.replicated)
    try:
        return await _ensure_service(p, group, desired)
    except KubeError as error:
        if not (error.invalid and had and group.service is None):
            raise
        what = f"the previous address {had} of {group.name} is not available ({error.message})"
        await p.event("Warning", "AddressChanged", f"{what}: the group gets another address")
        del desired["spec"]["clusterIP"]
        return await _ensure_service(p, group, desired)


async def _ensure_service(p: BrokerPass, group: Group, desired: Manifest) -> Manifest:
    """Ensure a Service; before it loses its selector, the EndpointSlice that follows the master exists."""
    if not group.replicated:
        return await ensure(p, desired)
    if group.service is not None:
        await ensure_slice(p, group, desired)
        return await ensure(p, desired)
    group.service = await ensure(p, desired)
    await ensure_slice(p, group, desired)
    return group.service


def cluster_ip_of(service: Manifest | None) -> str | None:
    """Return the ClusterIP of a Service."""
    found: str | None = ((service or {}).get("spec") or {}).get("clusterIP")
    return found if found and found != "None" else None


def annotated_ip(claim: Manifest | None) -> str | None:
    """Return the address stored with a group's volume."""
    found: str | None = (((claim or {}).get("metadata") or {}).get("annotations") or {}).get(ADVERTISED_IP_ANNOTATION)
    return found


async def _remember_address(p: BrokerPass, group: Group) -> None:
    """Store the address with the volumes, which outlive the Service and the Broker."""
    address = cluster_ip_of(group.service)
    for member in group.members:
        if member.claim is None or address is None or annotated_ip(member.claim) == address:
            continue
        patch = {"metadata": {"annotations": {ADVERTISED_IP_ANNOTATION: address}}}
        name = member.claim["metadata"]["name"]
        member.claim = await p.ctx.kube.patch("PersistentVolumeClaim", p.namespace, name, patch)


async def _ensure_external_service(p: BrokerPass, group: Group) -> bool:
    """Ensure the external Service; return False if its node ports are in use."""
    desired = group_external_service(p.broker, group.index, selects=not group.replicated)
    try:
        group.external = None if desired is None else await _ensure_service(p, group, desired)
    except KubeError as error:
        if desired is None or not _is_taken_port(error):
            raise
        ports = ", ".join(str(port["port"]) for port in desired["spec"]["ports"])
        report_port_taken(p, f"{group.name} requires the node ports {ports}", "brokerNodePort", error)
        return False
    return True


def _is_taken_port(error: KubeError) -> bool:
    return error.invalid and "port" in error.message.lower() and "allocated" in error.message.lower()


def report_port_taken(p: BrokerPass, what: str, field: str, error: KubeError) -> None:
    """Report that a node port belongs to another Service."""
    p.not_applied(
        Reason.NODE_PORT_TAKEN,
        f"{what}: {error.message}. Set spec.external.{field} to a free port, or delete the Service that uses it.",
    )
    p.requeue(_NODE_PORT_LOOK_S)


def ingress_ip(service: Manifest | None) -> str | None:
    """Return the IP address of a load balancer; offset message ids cannot contain a host name."""
    ingress = (((service or {}).get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return next((each["ip"] for each in ingress if each.get("ip")), None)


def advertised_address(p: BrokerPass, group: Group) -> str | None:
    """Return the address that a group advertises to clients."""
    external = p.broker.spec.external
    if external is None:
        return cluster_ip_of(group.service)
    return external.advertised_address or ingress_ip(group.external)


def _report_pending(p: BrokerPass, group: Group) -> None:
    what = f"The Service of {group.name} has no address yet"
    if p.broker.spec.external is not None:
        what = f"The load balancer of {group.name} has no IP address yet"
    advice = (
        ("wait for it, or set spec.external.advertisedAddress to an IP address")
        if p.broker.spec.external
        else "wait for it"
    )
    p.not_applied(Reason.ADDRESS_PENDING, f"{what}: {advice}.")
    p.requeue(p.ctx.settings.progress_interval_s)


async def ensure_name_server_address(p: BrokerPass) -> None:
    """Ensure the Service through which external clients reach the NameServers."""
    desired = name_server_external_service(p.broker)
    if desired is None:
        return
    try:
        await ensure(p, desired)
    except KubeError as error:
        if not _is_taken_port(error):
            raise
        port = desired["spec"]["ports"][0].get("nodePort")
        report_port_taken(p, f"The NameServers require the node port {port}", "nameServerNodePort", error)
