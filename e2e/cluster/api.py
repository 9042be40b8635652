"""Objects of a cluster, read directly from its API server: each kubectl call takes a fifth of a processor second.

Kinds are named as for kubectl: plural, singular or short, with or without their group.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, NamedTuple

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, ApiException

from cluster.errors import ClusterError

TIMEOUT_S = 30
SHOWN_BYTES = 1000
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""Discovery of all groups in two responses (Kubernetes 1.30 and later)."""


class Resource(NamedTuple):
    """Location of the objects of a kind."""

    path: str
    """Path of the group's version: `/api/v1`."""
    version: str
    """Value of `apiVersion` in objects."""
    kind: str
    plural: str
    namespaced: bool

    def path_of(self, name: str | None, namespace: str | None) -> str:
        """Return the path of one object or of all, in one namespace or (None) in all."""
        words = [self.path, *(["namespaces", namespace] if self.namespaced and namespace else []), self.plural]
        return "/".join([*words, *([name] if name else [])])


class NotFoundError(ClusterError):
    """The object does not exist."""


class ApiReader:
    """Reads with the permissions of a kubeconfig's context. Raises ClusterError with the API server's message."""

    def __init__(self, kubeconfig: Path, context: str) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._connecting = threading.Lock()
        self._client: ApiClient | None = None
        self._resources: dict[str, Resource] = {}

    def get(self, kind: str, name: str | None, namespace: str | None, selector: str | None) -> dict[str, Any]:
        """Return an object, or without a name a list of all that match ``selector``. NotFoundError if it is missing."""
        resource = self._resource(kind)
        found = self._ask(resource.path_of(name, namespace), selector=selector)
        for item in found.get("items", []):
            item.update(apiVersion=resource.version, kind=resource.kind)
        return found

    def _resource(self, kind: str) -> Resource:
        if kind not in self._resources:
            # Definitions may have been added since the last discovery.
            groups = [group for path in ("/api", "/apis") for group in self._ask(path, accept=DISCOVERY)["items"]]
            self._resources = resources_by_name(groups)
        if kind not in self._resources:
            raise ClusterError(f"the API server does not have a resource type {kind!r}")
        return self._resources[kind]

    def _ask(self, path: str, *, accept: str = "application/json", selector: str | None = None) -> dict[str, Any]:
        query = [("labelSelector", selector)] if selector else []
        client = self._connected()
        request = client.param_serialize(
            "GET", path, query_params=query, header_params={"Accept": accept}, auth_settings=["BearerToken"]
        )
        try:
            answer = client.call_api(*request, _request_timeout=TIMEOUT_S)
            body = answer.read()
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as e:
            raise ClusterError(f"GET {path}: {e}") from e
        if answer.status != 200:
            error = NotFoundError if answer.status == 404 else ClusterError
            raise error(f"GET {path}: {answer.status} {body[:SHOWN_BYTES].decode(errors='replace')}")
        found: dict[str, Any] = json.loads(body)
        return found

    def _connected(self) -> ApiClient:
        with self._connecting:
            if self._client is None:
                client = config.new_client_from_config(str(self._kubeconfig), context=self._context)
                # The API server is on this machine.
                client.configuration.proxy = None
                self._client = client
            return self._client


def resources_by_name(groups: list[dict[str, Any]]) -> dict[str, Resource]:
    """Return resources by name; if several have the same name, the first group's, as in kubectl."""
    found: dict[str, Resource] = {}
    for group in groups:
        group_name = group["metadata"].get("name", "")
        version = group["versions"][0]
        api_version = f"{group_name}/{version['version']}" if group_name else version["version"]
        path = f"/apis/{api_version}" if group_name else f"/api/{api_version}"
        for each in version["resources"]:
            kind, plural = each["responseKind"]["kind"], each["resource"]
            resource = Resource(path, api_version, kind, plural, each["scope"] == "Namespaced")
            names = {plural, each.get("singularResource") or kind.lower(), kind.lower(), *each.get("shortNames", ())}
            for name in names:
                found.setdefault(name, resource)
                found.setdefault(f"{name}.{group_name}", resource)
    return found
