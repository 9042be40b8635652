"""A Broker on a real API server with real controllers; only nodes and storage are simulated.

The brokers come from fakes/brokers.py and find their pods in a mirror of the namespace.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import Callable
from typing import Any

from delaymq_operator.adapters.api_requests import ApiRequests
from delaymq_operator.adapters.credentials import Credentials
from delaymq_operator.adapters.kinds import KINDS
from delaymq_operator.adapters.kube import ApiKube
from delaymq_operator.reconcile.broker import reconcile_broker
from delaymq_operator.reconcile.context import Key, Memory, ReconcileContext, ReconcileSettings
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

from delaymq_operator_testing.api_server import ApiServer
from delaymq_operator_testing.fakes.brokers import FakeBrokers
from delaymq_operator_testing.fakes.kube import BAD_IMAGES, FakeCache, FakeKube

MIRRORED = (
    "Broker",
    "DelayLevelConfig",
    "StatefulSet",
    "Pod",
    "Service",
    "ConfigMap",
    "ServiceAccount",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "Secret",
)
TICK_MS = 1_000
BOUND_S = 90.0
PAUSE_S = 0.05
"""Pause between two steps, since controllers run in real time."""


class ApiWorld:
    """A namespace with the Broker `demo`, as a context manager."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self.now_ms = int(time.time() * 1000)
        self.settings = ReconcileSettings(default_image="delaymq/broker:1")
        self.mirror = FakeKube(lambda: self.now_ms)
        self.brokers = FakeBrokers(self.mirror, lambda: self.now_ms, namespace=namespace)
        self.cache = FakeCache(self.mirror)
        self.memory = Memory()
        self.key = Key("Broker", namespace, "demo")
        self.calls: list[tuple[str, str]] = []
        """Requests of the operator, as (verb, kind)."""
        self.failures: list[KubeError] = []
        self._addresses = itertools.count(1)
        self._requests = ApiRequests(
            Credentials(str(server.kubeconfig)).load,
            threads=2,
            timeout_s=30,
            observe=lambda request, status: self.calls.append((request.verb, request.kind)),
        )
        self._kube = ApiKube(self._requests, seen=lambda kind, found: None)

    def __enter__(self) -> ApiWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()

    # Actions of a user.

    def path(self, kind: str, name: str = "") -> str:
        return KINDS[kind].path(self.namespace, name)

    def create(self, **spec: Any) -> None:
        body = {"apiVersion": "delaymq.io/v1alpha1", "kind": "Broker", "metadata": {"name": "demo"}, "spec": spec}
        self.server.create(self.path("Broker"), body)

    def change(self, **spec: Any) -> None:
        self.merge("Broker", "demo", {"spec": spec})

    def merge(self, kind: str, name: str, patch: Manifest, subresource: str = "") -> None:
        self.server.merge(self.path(kind, name) + (f"/{subresource}" if subresource else ""), patch)

    def delete(self, kind: str, name: str) -> None:
        self.server.request("DELETE", self.path(kind, name))

    # Observed state.

    def get(self, kind: str, name: str) -> Manifest | None:
        return self.mirror.objects.get((kind, self.namespace, name))

    def existing(self, kind: str, name: str) -> Manifest:
        """Return an object that must exist."""
        found = self.get(kind, name)
        assert found is not None, f"there is no {kind} {name}"
        return found

    def names(self, kind: str) -> list[str]:
        return [body["metadata"]["name"] for body in self.mirror.select(kind, self.namespace, {})]

    def uid(self, kind: str, name: str) -> str:
        body = self.get(kind, name)
        return str(body["metadata"]["uid"]) if body is not None else ""

    @property
    def status(self) -> Manifest:
        found: Manifest = (self.get("Broker", "demo") or {}).get("status") or {}
        return found

    def condition(self, kind: str) -> Manifest:
        return next((item for item in self.status.get("conditions", []) if item["type"] == kind), {})

    def reason(self, kind: str) -> str:
        return str(self.condition(kind).get("reason", ""))

    @property
    def settled(self) -> bool:
        broker = self.get("Broker", "demo")
        return (
            broker is not None
            and self.status.get("observedGeneration") == broker["metadata"]["generation"]
            and self.reason("Progressing") == "Settled"
            and self.reason("Ready") == "AllGroupsReady"
        )

    # Time.

    def look(self) -> None:
        """Update the mirror and the cache."""
        self.mirror.objects = {}
        for kind in MIRRORED:
            for body in self.server.request("GET", self.path(kind))["items"]:
                body.setdefault("kind", kind)
                self.mirror.objects[kind, self.namespace, body["metadata"]["name"]] = body
        self.brokers.tick()
        self.cache.sync()

    def run_pods(self) -> None:
        """Simulate kubelets and storage."""
        for body in self.mirror.select("Pod", self.namespace, {}):
            name = body["metadata"]["name"]
            if "deletionTimestamp" in body["metadata"]:
                continue
            bad = body["spec"]["containers"][0]["image"] in BAD_IMAGES
            bad = bad or not self.mirror.has_volume(body["metadata"])
            if bad or (body.get("status") or {}).get("phase") == "Running":
                continue
            status: Manifest = {
                "phase": "Running",
                "podIP": f"10.1.0.{next(self._addresses)}",
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            self.merge("Pod", name, {"status": status}, "status")
        for body in self.mirror.select("PersistentVolumeClaim", self.namespace, {}):
            size = body["spec"]["resources"]["requests"]["storage"]
            if self.mirror.stays_as_it_is(body, size):
                continue
            status = {"phase": "Bound", "capacity": {"storage": size}}
            if any((body.get("status") or {}).get(key) != value for key, value in status.items()):
                self.merge("PersistentVolumeClaim", body["metadata"]["name"], {"status": status}, "status")

    def world(self) -> ReconcileContext:
        return ReconcileContext(
            kube=self._kube,
            cache=self.cache,
            admin=self.brokers,
            settings=self.settings,
            clock=lambda: self.now_ms,
            memory=self.memory,
        )

    def step(self) -> None:
        """Advance the clock and the simulated parts, and reconcile once."""
        self.now_ms += TICK_MS
        self.look()
        self.run_pods()
        try:
            asyncio.run(reconcile_broker(self.key, self.world()))
        except KubeError as error:
            self.failures.append(error)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step until the condition is met or, by default, the Broker is settled in two successive steps."""
        ends = time.monotonic() + BOUND_S
        calm = 0
        while time.monotonic() < ends:
            self.step()
            time.sleep(PAUSE_S)
            self.look()
            calm = calm + 1 if (until() if until is not None else self.settled) else 0
            if calm >= (1 if until is not None else 2):
                return
        raise AssertionError(f"it never came to this: {copy.deepcopy(self.status)}, failures {self.failures[-3:]}")
