"""Manifests that tests apply, as dicts; with small resources, since many of them share two cores."""

from __future__ import annotations

from typing import Any

from delaymq_testing import any_disk

Manifest = dict[str, Any]

API_VERSION = "delaymq.io/v1alpha1"
LEVELS_TEXT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's levels, used by Brokers without a DelayLevelConfig."""
LEVEL_OF = {delay: number for number, delay in enumerate(LEVELS_TEXT.split(), 1)}

SMALL_STORE = {"mappedFileSizeCommitLog": str(16 << 20), "maxHashSlotNum": "100000", "maxIndexNum": "400000"}
"""Files of the default size would take 1 GiB of a node's disk for each Broker."""
PATIENT = {"waitTimeMillsInSendQueue": "5000"}
"""While other suites run, a process may wait longer for a processor than a broker lets a send wait."""
SMALL_REQUESTS = {"cpu": "10m", "memory": "48Mi"}


def namespace(name: str, *, restricted: bool = True) -> Manifest:
    """Return a namespace that, if restricted, rejects pods that violate Pod Security `restricted`."""
    labels = {"delaymq.io/e2e": "true"}
    if restricted:
        labels |= {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def broker(
    name: str = "demo", *, config: dict[str, str] | None = None, annotations: Any = None, **spec: Any
) -> Manifest:
    """Return a Broker; ``spec`` overrides the defaults here, ``config`` is added to SMALL_STORE and PATIENT."""
    metadata: Manifest = {"name": name}
    if annotations:
        metadata["annotations"] = annotations
    whole = {
        "config": {**SMALL_STORE, **PATIENT, **any_disk.SETTINGS, **(config or {})},
        "storage": {"size": "128Mi"},
        "resources": {"requests": SMALL_REQUESTS},
        "nameServers": {"replicas": 1, "resources": {"requests": SMALL_REQUESTS}},
        **spec,
    }
    return {"apiVersion": API_VERSION, "kind": "Broker", "metadata": metadata, "spec": whole}


def topic(name: str, *, broker: str = "demo", **spec: Any) -> Manifest:
    whole = {"brokerRef": {"name": broker}, **spec}
    return {"apiVersion": API_VERSION, "kind": "Topic", "metadata": {"name": name}, "spec": whole}


def levels(name: str, *delays: str, **spec: Any) -> Manifest:
    whole = {"levels": list(delays), **spec}
    return {"apiVersion": API_VERSION, "kind": "DelayLevelConfig", "metadata": {"name": name}, "spec": whole}


def client_pod(name: str, image: str, *, requests: dict[str, str] | None = None) -> Manifest:
    """Return a pod to run programs in; on the control plane's node, which no test stops."""
    container = {
        "name": "client",
        "image": image,
        "imagePullPolicy": "Never",
        "resources": {"requests": requests or SMALL_REQUESTS},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
