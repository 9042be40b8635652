"""StatefulSet of a broker group: a pod and a volume for each of its brokers."""

from __future__ import annotations

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.accounts.access import access_environment, access_mounts, access_volumes
from delaymq_operator.manifests.accounts.registration import (
    account_environment,
    account_volumes,
    registers,
    registration_mounts,
)
from delaymq_operator.manifests.context import Context, GroupContext
from delaymq_operator.manifests.inputs import broker_inputs
from delaymq_operator.manifests.metadata import Manifest, new_object, selector
from delaymq_operator.manifests.pods import DATA_PATH, container, container_port, pod_template, probes
from delaymq_operator.manifests.replication import (
    place_members,
    replication_environment,
    replication_mounts,
    replication_volumes,
)
from delaymq_operator.manifests.services import listen_port
from delaymq_operator.manifests.tls import tls_client_environment, tls_environment, tls_mounts, tls_volumes

CONF_PATH = "/etc/delaymq"
REVISIONS_KEPT = 3
"""Older revisions are not needed, since a StatefulSet is never rolled back automatically."""
VOLUME_RETENTION = "persistentVolumeClaimRetentionPolicy"


def broker_stateful_set(broker: Broker, context: Context, group: GroupContext) -> Manifest:
    """Return the StatefulSet of a group. Only the operator restarts its pods (OnDelete)."""
    inputs = broker_inputs(broker, context, group.group, group.advertised_address, group.members)
    found = new_object(broker, "StatefulSet", names.group_object(broker.name, group.group), "broker", group.group)
    found["metadata"]["annotations"] = {names.INPUTS_ANNOTATION: inputs}
    found["spec"] = {
        "replicas": max(1, group.members),
        "serviceName": names.broker_pods_service(broker.name),
        "selector": {"matchLabels": selector(broker, "broker", group.group)},
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": REVISIONS_KEPT,
        VOLUME_RETENTION: volume_retention(broker),
        "template": _template(broker, context, group, inputs),
        "volumeClaimTemplates": [_claim(broker, group)],
    }
    return found


def volume_retention(broker: Broker) -> Manifest:
    """Return the retention policy of the volume. Scaling to 0 by hand, to stop a broker, keeps it; the operator
    never does so.
    """
    return {"whenDeleted": "Delete" if broker.spec.storage.delete_claim else "Retain", "whenScaled": "Retain"}


def _template(broker: Broker, context: Context, group: GroupContext, inputs: str) -> Manifest:
    spec = broker.spec
    port = listen_port(spec, group.group)
    command = ["broker", "-c", f"{CONF_PATH}/{names.BROKER_CONF_KEY}", "--host", "0.0.0.0"]
    made = container("broker", context, command, spec.resources)
    made["env"] = _environment(broker, context, group, port)
    made["ports"] = [
        container_port("broker", port),
        container_port("fast", port - names.FAST_PORT_DISTANCE),
        container_port("http", names.BROKER_HTTP_PORT),
    ]
    made["volumeMounts"] = [
        {"name": names.STORE_VOLUME, "mountPath": DATA_PATH},
        {"name": "conf", "mountPath": CONF_PATH, "readOnly": True},
        *tls_mounts(broker),
        *access_mounts(broker),
        *registration_mounts(broker, wanted=registers(broker)),
        *replication_mounts(group),
    ]
    made |= probes("/readyz", https=broker.enforces_tls)
    conf = {"name": "conf", "configMap": {"name": names.broker_config_map(broker.name), "defaultMode": 0o444}}
    volumes = [conf, *tls_volumes(broker), *access_volumes(broker), *account_volumes(broker, group.group)]
    volumes += replication_volumes(broker, group)
    template = pod_template(broker, "broker", group.group, inputs, made, volumes)
    place_members(broker, group, template["spec"])
    template["spec"]["terminationGracePeriodSeconds"] = spec.pod_template.termination_grace_period_seconds
    return template


def _environment(broker: Broker, context: Context, group: GroupContext, port: int) -> list[Manifest]:
    """Return the variables that differ between groups or are reserved; a user's variable of the same name has no
    effect.
    """
    servers, domain = broker.spec.name_servers, context.cluster_domain
    own_servers = names.namesrv_pod_addresses(broker.name, broker.namespace, servers.replicas, domain)
    addresses = servers.addresses or own_servers
    own = {
        "DELAYMQ_BROKER_NAME": names.rocketmq_broker_name(broker.name, group.group),
        "DELAYMQ_BROKER_CLUSTER_NAME": broker.name,
        "DELAYMQ_BROKER_IP1": group.advertised_address,
        "DELAYMQ_BROKER_IP2": group.advertised_address,
        "DELAYMQ_LISTEN_PORT": str(port),
        "DELAYMQ_NAMESRV_ADDR": ";".join(addresses),
        "DELAYMQ_STORE_PATH_ROOT_DIR": f"{DATA_PATH}/store",
        **tls_environment(broker),
        **tls_client_environment(broker),
        **access_environment(broker, group.admin_needs_tls),
        **account_environment(broker),
    }
    token = {"secretKeyRef": {"name": names.token_secret(broker.name), "key": names.TOKEN_KEY}}
    replication = replication_environment(broker, context, group)
    taken = {*own, "DELAYMQ_HTTP_TOKEN", *(entry["name"] for entry in replication)}
    users = {entry.name: entry.value for entry in broker.spec.pod_template.env if entry.name not in taken}
    return [
        *({"name": name, "value": value} for name, value in own.items()),
        {"name": "DELAYMQ_HTTP_TOKEN", "valueFrom": token},
        *replication,
        *({"name": name, "value": value} for name, value in users.items()),
    ]


def _claim(broker: Broker, group: GroupContext) -> Manifest:
    storage = broker.spec.storage
    found: Manifest = {
        "metadata": {"name": names.STORE_VOLUME, "labels": names.labels(broker.name, "broker", group.group)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": group.storage_size}},
        },
    }
    if storage.storage_class_name is not None:
        found["spec"]["storageClassName"] = storage.storage_class_name
    return found
