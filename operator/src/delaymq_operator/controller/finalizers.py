"""Release of resources being deleted in a namespace that is not served, usually because it is being deleted itself.

The operator's RoleBinding is deleted before the finalizers are removed, and without watches kopf does not see the
resources. The chart's ClusterRole permits the operator to remove the finalizers nevertheless (decision 30).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from delaymq_operator.adapters.api_requests import ApiRequests
from delaymq_operator.adapters.kube import list_all
from delaymq_operator.api.names import FINALIZER
from delaymq_operator.controller.controller import Controller, Release
from delaymq_operator.reconcile.context import Key
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable, KubeError
from delaymq_operator.reconcile.ports import Kube, Manifest

_logger = logging.getLogger(__name__)


class StrandedFinalizers:
    """Releases resources being deleted, as kopf does in namespaces that are watched."""

    def __init__(
        self, requests: ApiRequests, kube: Kube, controller: Controller, releases: Mapping[str, Release]
    ) -> None:
        self._requests = requests
        self._kube = kube
        self._controller = controller
        self._releases = releases

    async def any(self, namespace: str) -> bool:
        """Return whether a resource is waiting for `release`; False if the operator may not list them."""
        return bool([body for kind in self._releases for body in await self._held(kind, namespace)])

    async def release(self, namespace: str) -> None:
        """Try once to release every resource that is being deleted; never raises KubeError."""
        for kind, release in self._releases.items():
            for body in await self._held(kind, namespace):
                await self._release(Key(kind, namespace, body["metadata"]["name"]), release)

    async def _held(self, kind: str, namespace: str) -> list[Manifest]:
        try:
            items, _ = await list_all(self._requests, kind, namespace)
        except KubeError as error:
            _logger.debug("resources being deleted in namespace %s could not be listed: %s", namespace, error)
            return []
        return [item for item in items if item["metadata"].get("deletionTimestamp") and _is_held(item)]

    async def _release(self, key: Key, release: Release) -> None:
        try:
            async with self._controller.alone(key):
                waiting = await release(key)
            if waiting is not None:
                _logger.info("finalizer of %s has not been removed yet: %s", key, waiting.message)
                return
            body = await self._kube.get(*key)
            if body is None or not _is_held(body):
                return
            metadata = body["metadata"]
            kept = [each for each in metadata["finalizers"] if each != FINALIZER]
            # With the version, since others change the list too.
            patch = {"metadata": {"finalizers": kept, "resourceVersion": metadata["resourceVersion"]}}
            await self._kube.patch(*key, patch)
            _logger.info("removed the finalizer of %s, whose namespace is not served", key)
        except (KubeError, BrokerUnreachable, BrokerRefused, TimeoutError) as error:
            _logger.info("finalizer of %s cannot be removed yet: %s", key, error)


def _is_held(body: Manifest) -> bool:
    return FINALIZER in (body["metadata"].get("finalizers") or ())
