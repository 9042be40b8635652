"""Groups with replicas: the register and its permissions, the master's address, the secret, and their part of a pod.

The master writes its own address, so a failover needs no operator. Brokers may change their group's Lease and
EndpointSlices only, and create none: RBAC cannot restrict creation by name.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.context import Context, GroupContext
from delaymq_operator.manifests.metadata import Manifest, new_object, secret_data, selector
from delaymq_operator.manifests.services import listen_port

MEMBERS_VARIABLE: Final = "DELAYMQ_HA_MEMBERS"
"""Variable by which a pod was created as a member of a group."""
SECRET_PATH: Final = "/etc/delaymq-replication"
SECRET_FILE: Final = "secret"
ACCOUNT_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_S: Final = 3600
"""Lifetime of the token; the kubelet replaces it in time."""
_ZONE: Final = "topology.kubernetes.io/zone"
_ROLES: Final = {"Async": "ASYNC_MASTER", "Sync": "SYNC_MASTER"}
_RBAC: Final = "rbac.authorization.k8s.io"


def services_of(broker: Broker, group: int) -> list[str]:
    """Return the Services through which clients reach a group."""
    found = [names.group_object(broker.name, group)]
    if broker.spec.external is not None:
        found.append(names.group_external_service(broker.name, group))
    return found


def group_account(broker: Broker, group: int) -> str:
    """Return the service account of a group with replicas."""
    return broker.spec.pod_template.service_account_name or names.group_object(broker.name, group)


def group_service_account(broker: Broker, group: int) -> Manifest:
    """Return the account of a group's pods, so that no group can change the register of another one."""
    found = new_object(broker, "ServiceAccount", names.group_object(broker.name, group), "broker", group)
    found["automountServiceAccountToken"] = False
    return found


def register_role(broker: Broker, group: int) -> Manifest:
    """Return the permissions of a group's pods."""
    name = names.group_register(broker.name, group)
    found = new_object(broker, "Role", name, "broker", group)
    slices = [names.master_slice(service) for service in services_of(broker, group)]
    found["rules"] = [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [name],
            "verbs": ["get", "update", "patch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "resourceNames": slices,
            "verbs": ["get", "update", "patch"],
        },
    ]
    return found


def register_role_binding(broker: Broker, group: int) -> Manifest:
    """Return the binding of these permissions to the group's pods."""
    name = names.group_register(broker.name, group)
    found = new_object(broker, "RoleBinding", name, "broker", group)
    found["roleRef"] = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    account = {"kind": "ServiceAccount", "name": group_account(broker, group), "namespace": broker.namespace}
    found["subjects"] = [account]
    return found


def register_lease(broker: Broker, group: int) -> Manifest:
    """Return the register without a record. It is created only; the brokers write it."""
    return new_object(broker, "Lease", names.group_register(broker.name, group), "broker", group)


def master_endpoint_slice(
    broker: Broker, group: int, service: Mapping[str, Any], port: int, address: str | None, address_type: str
) -> Manifest:
    """Return the EndpointSlice of a Service without a selector. It is created only, since the master changes it.

    `port` is the port of the group's current broker, and `address` its address, if it has one.
    """
    name = service["metadata"]["name"]
    found = new_object(broker, "EndpointSlice", names.master_slice(name), "broker", group)
    found["metadata"]["labels"] |= {
        "kubernetes.io/service-name": name,
        "endpointslice.kubernetes.io/managed-by": names.MANAGED_BY_VALUE,
    }
    found["metadata"]["annotations"] = {names.EPOCH_ANNOTATION: "0"}
    found["addressType"] = address_type
    found["endpoints"] = [{"addresses": [address], "conditions": {"ready": True}}] if address else []
    found["ports"] = slice_ports(service, port)
    return found


def slice_ports(service: Mapping[str, Any], port: int) -> list[Manifest]:
    """Return the ports of a slice: without a selector, a Service finds the port of the pod by its name there."""
    numbers = {"http": names.BROKER_HTTP_PORT, "broker": port, "fast": port - names.FAST_PORT_DISTANCE}
    stated = [each["name"] for each in service["spec"]["ports"]]
    return [{"name": name, "port": numbers[name.partition("-")[0]], "protocol": "TCP"} for name in stated]


def replication_secret(broker: Broker, secrets: Mapping[int, str]) -> Manifest:
    """Return the Secret with the secret of each group, of which a pod mounts its own only."""
    found = new_object(broker, "Secret", names.replication_secret(broker.name), "broker")
    found["type"] = "Opaque"
    found["data"] = secret_data({_group_key(group): f"{text}\n" for group, text in secrets.items()})
    return found


def read_replication_secrets(secret: Mapping[str, Any] | None) -> dict[int, str]:
    """Return the secrets by group; unreadable ones are omitted."""
    found = {}
    for key, encoded in ((secret or {}).get("data") or {}).items():
        number = key.removeprefix("group-")
        try:
            text = base64.b64decode(encoded, validate=True).decode().strip()
        except (TypeError, ValueError):
            continue
        if number.isdecimal() and text:
            found[int(number)] = text
    return found


def _group_key(group: int) -> str:
    return f"group-{group}"


# In pods.


def members_text(pod: Mapping[str, Any] | None) -> str:
    """Return the members that a pod, or the template of one, knows; empty if it is no member of a group."""
    containers = (((pod or {}).get("spec") or {}).get("containers")) or [{}]
    entries = containers[0].get("env") or []
    return next((entry.get("value") or "" for entry in entries if entry.get("name") == MEMBERS_VARIABLE), "")


def replication_environment(broker: Broker, context: Context, group: GroupContext) -> list[Manifest]:
    """Return the variables of a member; none without replicas."""
    if not group.members:
        return []
    spec = broker.spec.replication
    number, namespace = group.group, broker.namespace
    port = listen_port(broker.spec, number)
    members = ";".join(
        f"{names.group_pod(broker.name, number, ordinal)}="
        f"{names.group_pod_host(broker.name, namespace, number, ordinal, context.cluster_domain)}:{port}"
        for ordinal in range(group.members)
    )
    slices = ",".join(names.master_slice(service) for service in services_of(broker, number))
    # A master without any replica would report SLAVE_NOT_AVAILABLE for each message.
    role = _ROLES[spec.mode if group.members > 1 else "Async"]
    values = {
        "DELAYMQ_BROKER_ROLE": role,
        MEMBERS_VARIABLE: members,
        "DELAYMQ_HA_SECRET_FILE": f"{SECRET_PATH}/{SECRET_FILE}",
        "DELAYMQ_REPLICA_REGISTER": f"kubernetes:{namespace}/{names.group_register(broker.name, number)}",
        "DELAYMQ_REPLICA_ENDPOINT": f"kubernetes:{namespace}/{slices}",
        "DELAYMQ_MIN_IN_SYNC_REPLICAS": str(min(spec.min_in_sync, group.members)),
        "DELAYMQ_REPLICA_ACKNOWLEDGE": spec.acknowledge,
        "DELAYMQ_REPLICA_FAILOVER": spec.failover,
    }
    if broker.spec.tls is not None and not broker.spec.name_servers.addresses:
        # Also for connections to NameServers, of which only the operator's own certainly accept it.
        values["DELAYMQ_TLS_ENABLE"] = "true"
    fields = {
        "DELAYMQ_HA_MEMBER_NAME": "metadata.name",
        "DELAYMQ_REPLICA_ENDPOINT_ADDRESS": "status.podIP",
    }
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]


def replication_mounts(group: GroupContext) -> list[Manifest]:
    """Return the mounts of a member. They do not use subPath, since such a mount would never be updated."""
    if not group.members:
        return []
    return [
        {"name": "replication", "mountPath": SECRET_PATH, "readOnly": True},
        {"name": "account", "mountPath": ACCOUNT_PATH, "readOnly": True},
    ]


def replication_volumes(broker: Broker, group: GroupContext) -> list[Manifest]:
    """Return the volumes of a member: its group's secret, and a short-lived token for the register."""
    if not group.members:
        return []
    items = [{"key": _group_key(group.group), "path": SECRET_FILE}]
    secret = {"secretName": names.replication_secret(broker.name), "items": items, "defaultMode": 0o440}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_S}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    projected = {"defaultMode": 0o440, "sources": sources}
    return [{"name": "replication", "secret": secret}, {"name": "account", "projected": projected}]


def place_members(broker: Broker, group: GroupContext, pod: Manifest) -> None:
    """Give a pod its account, and keep the members of its group on different nodes and, if possible, in zones.

    Different nodes are required: two copies on one node would be lost with it, although the status shows two.
    """
    if not group.members:
        return
    pod["serviceAccountName"] = group_account(broker, group.group)
    labels = {"matchLabels": selector(broker, "broker", group.group)}
    if "podAntiAffinity" not in (broker.spec.pod_template.affinity or {}):
        apart = {"labelSelector": labels, "topologyKey": "kubernetes.io/hostname"}
        pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = [apart]
    constraints = pod.setdefault("topologySpreadConstraints", [])
    if not any(each.get("topologyKey") == _ZONE for each in constraints):
        spread = {"maxSkew": 1, "topologyKey": _ZONE, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": labels}
        constraints.append(spread)


def replication_inputs(broker: Broker, members: int) -> dict[str, Any]:
    """Return the settings whose change restarts the brokers of a group; empty without replicas."""
    spec = broker.spec.replication
    if not members:
        return {}
    return {
        "members": members,
        "mode": spec.mode,
        "minInSync": spec.min_in_sync,
        "acknowledge": spec.acknowledge,
        "failover": spec.failover,
    }
