"""The controllers of Endpoints and EndpointSlices for a FakeKube, and the one that mirrors Endpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from delaymq_operator.reconcile.ports import Manifest

SELECTED = "endpointslice-controller.k8s.io"
MIRRORED = "endpointslicemirroring-controller.k8s.io"


class Objects(Protocol):
    """The part of a FakeKube that these controllers use."""

    objects: dict[tuple[str, str, str], Manifest]

    def select(self, kind: str, namespace: str | None, labels: Mapping[str, str]) -> Iterator[Manifest]: ...

    def put(self, body: Manifest) -> Manifest: ...


def run_endpoints(kube: Objects) -> None:
    """Write the Endpoints and EndpointSlice of each Service with a selector, and mirror the Endpoints of others.

    What belongs to a Service that lost its selector remains.
    """
    for service in list(kube.select("Service", None, {})):
        metadata, selector = service["metadata"], service["spec"].get("selector")
        name, namespace = metadata["name"], metadata["namespace"]
        endpoints = kube.objects.get(("Endpoints", namespace, name))
        if selector:
            pods = kube.select("Pod", namespace, selector)
            ips = [pod["status"]["podIP"] for pod in pods if (pod.get("status") or {}).get("podIP")]
            _put(kube, _endpoints("Endpoints", name, namespace, ips))
            _put(kube, _slice(name, namespace, SELECTED, ips))
        elif endpoints is not None:
            _put(kube, _slice(name, namespace, MIRRORED, endpoints["ips"]))
        else:
            mirrored = _slice(name, namespace, MIRRORED, [])["metadata"]["name"]
            kube.objects.pop(("EndpointSlice", namespace, mirrored), None)


def _put(kube: Objects, body: Manifest) -> None:
    live = kube.objects.get((body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]))
    if live is None or live["ips"] != body["ips"]:
        kube.put(body)


def _slice(service: str, namespace: str, manager: str, ips: list[str]) -> Manifest:
    found = _endpoints("EndpointSlice", f"{service}-{manager.partition('-')[0]}", namespace, ips)
    labels: dict[str, Any] = found["metadata"].setdefault("labels", {})
    labels["kubernetes.io/service-name"] = service
    labels["endpointslice.kubernetes.io/managed-by"] = manager
    return found


def _endpoints(kind: str, name: str, namespace: str, ips: list[str]) -> Manifest:
    return {
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "ips": ips,
        "endpoints": [{"addresses": [ip]} for ip in ips],
    }
