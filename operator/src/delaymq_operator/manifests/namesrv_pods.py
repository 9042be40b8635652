"""StatefulSet of the NameServers, which store only what brokers and the operator send again.

A change to the only NameServer is first tested by a pod of a separate StatefulSet.
"""

from __future__ import annotations

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.accounts.registration import (
    has_names_rules,
    registration_mounts,
    rules_environment,
    rules_volumes,
)
from delaymq_operator.manifests.broker_pods import REVISIONS_KEPT
from delaymq_operator.manifests.context import Context
from delaymq_operator.manifests.inputs import name_server_inputs
from delaymq_operator.manifests.metadata import Manifest, new_object, selector
from delaymq_operator.manifests.pods import DATA_PATH, container, container_port, pod_template, probes
from delaymq_operator.manifests.tls import tls_environment, tls_mounts, tls_volumes

_GRACE_S = 10
"""A NameServer has nothing to finish."""


def name_server_stateful_set(broker: Broker, context: Context) -> Manifest:
    """Return the StatefulSet of the NameServers."""
    inputs = name_server_inputs(broker)
    found = new_object(broker, "StatefulSet", names.namesrv_objects(broker.name), "namesrv")
    found["metadata"]["annotations"] = {names.INPUTS_ANNOTATION: inputs}
    found["spec"] = {
        "replicas": broker.spec.name_servers.replicas,
        "serviceName": names.namesrv_pods_service(broker.name),
        "selector": {"matchLabels": selector(broker, "namesrv")},
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": REVISIONS_KEPT,
        "template": _template(broker, context, inputs),
    }
    return found


def name_server_trial(broker: Broker, inputs: str, template: Manifest) -> Manifest:
    """Return a StatefulSet of one pod with the NameServers' template, which no Service and no policy selects."""
    found = new_object(broker, "StatefulSet", names.namesrv_trial(broker.name), "namesrv-trial")
    found["metadata"]["annotations"] = {names.INPUTS_ANNOTATION: inputs}
    labels = template["metadata"].get("labels", {}) | names.labels(broker.name, "namesrv-trial")
    found["spec"] = {
        "replicas": 1,
        "serviceName": names.namesrv_pods_service(broker.name),
        "selector": {"matchLabels": selector(broker, "namesrv-trial")},
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 1,
        "template": template | {"metadata": template["metadata"] | {"labels": labels}},
    }
    return found


def _template(broker: Broker, context: Context, inputs: str) -> Manifest:
    command = ["namesrv", "--host", "0.0.0.0", "--listen-port", str(names.NAMESRV_PORT)]
    command += ["--http-port", str(names.NAMESRV_HTTP_PORT), "--store-path", f"{DATA_PATH}/namesrv"]
    made = container("namesrv", context, command, broker.spec.name_servers.resources)
    made["ports"] = [container_port("namesrv", names.NAMESRV_PORT), container_port("http", names.NAMESRV_HTTP_PORT)]
    made["volumeMounts"] = [
        {"name": "data", "mountPath": DATA_PATH},
        *tls_mounts(broker),
        *registration_mounts(broker, wanted=has_names_rules(broker)),
    ]
    environment = tls_environment(broker) | rules_environment(broker)
    if environment:
        made["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    made |= probes("/readyz", https=broker.enforces_tls)
    volumes = [{"name": "data", "emptyDir": {}}, *tls_volumes(broker), *rules_volumes(broker)]
    template = pod_template(broker, "namesrv", None, inputs, made, volumes)
    template["spec"]["terminationGracePeriodSeconds"] = _GRACE_S
    return template
