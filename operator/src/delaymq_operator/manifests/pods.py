"""Common parts of broker and NameServer pods: security, placement, probes, overrides."""

from __future__ import annotations

from typing import Any

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker, ResourceRequirements
from delaymq_operator.api.names import Component
from delaymq_operator.manifests.context import Context
from delaymq_operator.manifests.metadata import Manifest, selector

USER_ID = 10001
"""User ID of the image; volumes belong to its group."""
DATA_PATH = "/var/lib/delaymq"


def pod_template(
    broker: Broker, component: Component, group: int | None, inputs: str, container: Manifest, volumes: list[Manifest]
) -> Manifest:
    """Return the pod template of a StatefulSet. The hash in its annotation creates a new revision if a restart is
    required.
    """
    spec, added = broker.spec, broker.spec.pod_template
    pod: Manifest = {
        "serviceAccountName": added.service_account_name or names.broker_objects(broker.name),
        "automountServiceAccountToken": False,
        # Variables of Services would look like settings: a Service delaymq-x sets DELAYMQ_X_PORT.
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "affinity": _spread_over_nodes(broker, component) | (added.affinity or {}),
        "containers": [_hardened(container, broker)],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}, *volumes],
    }
    optional: dict[str, Any] = {
        "imagePullSecrets": [{"name": reference.name} for reference in spec.image_pull_secrets],
        "nodeSelector": dict(sorted(added.node_selector.items())),
        "tolerations": list(added.tolerations),
        "topologySpreadConstraints": [
            {"labelSelector": {"matchLabels": selector(broker, component)}} | constraint
            for constraint in added.topology_spread_constraints
        ],
        "priorityClassName": added.priority_class_name,
    }
    pod |= {key: value for key, value in optional.items() if value}
    own = {names.INPUTS_ANNOTATION: inputs}
    if broker.enforces_tls:
        own[names.HTTP_SCHEME_ANNOTATION] = "https"
    return {
        "metadata": {
            "labels": dict(sorted(added.labels.items())) | names.labels(broker.name, component, group),
            "annotations": dict(sorted(added.annotations.items())) | own,
        },
        "spec": pod,
    }


def pod_security() -> Manifest:
    """Return the security context of a pod of the restricted standard; volumes belong to the image's group."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """Return the security context of its container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def container(name: str, context: Context, command: list[str], resources: ResourceRequirements) -> Manifest:
    """Return a container of the image, to be completed with ports, probes and mounts."""
    found: Manifest = {"name": name, "image": context.image, "args": command}
    amounts = {"requests": dict(sorted(resources.requests.items())), "limits": dict(sorted(resources.limits.items()))}
    found["resources"] = {key: value for key, value in amounts.items() if value}
    return found


def container_port(name: str, port: int) -> Manifest:
    """Return a named port."""
    return {"name": name, "containerPort": port, "protocol": "TCP"}


def probes(ready_path: str, *, https: bool) -> Manifest:
    """Return HTTP probes. A broker's HTTP opens after recovery, which can take long with a large store: it is given
    an hour.
    """
    return {
        "startupProbe": _probe("/livez", https, period_s=1, failures=3600),
        "readinessProbe": _probe(ready_path, https, period_s=2, failures=3),
        "livenessProbe": _probe("/livez", https, period_s=10, failures=6),
    }


def _probe(path: str, https: bool, *, period_s: int, failures: int) -> Manifest:
    get = {"path": path, "port": "http"}
    return {
        # Without a scheme, it is HTTP.
        "httpGet": get | {"scheme": "HTTPS"} if https else get,
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }


def _hardened(container: Manifest, broker: Broker) -> Manifest:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, *container.get("volumeMounts", [])]
    return container | {
        "imagePullPolicy": broker.spec.image_pull_policy,
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }


def _spread_over_nodes(broker: Broker, component: Component) -> Manifest:
    """Return a preference, not a requirement, for different nodes: two pods on one node are better than one
    unscheduled pod.
    """
    term = {"labelSelector": {"matchLabels": selector(broker, component)}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
