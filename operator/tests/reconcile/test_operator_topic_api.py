"""Topics and DelayLevelConfigs on a real API server: accepted statuses, finalizers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from delaymq.api_types.delay_settings import LatenessObjective, TopicDelays, TopicDelaySettings
from delaymq_operator.adapters.api_requests import ApiRequests
from delaymq_operator.adapters.credentials import Credentials
from delaymq_operator.adapters.kube import ApiKube
from delaymq_operator.api.names import API_VERSION, FINALIZER, PLURALS
from delaymq_operator.reconcile.context import Key, ReconcileContext, ReconcileSettings, Waiting
from delaymq_operator.reconcile.delay_level_config import reconcile_levels, release_levels
from delaymq_operator.reconcile.ports import BrokerAdmin, Cache, Kube, Manifest, TopicConfig
from delaymq_operator.reconcile.topic import reconcile_topic, release_topic
from delaymq_operator_testing.api_server import ApiServer
from delaymq_operator_testing.worlds.topic import MemoryBrokers, MemoryCache, MemoryKube

POD_ADDRESS = "10.0.0.1"


@dataclass
class Cluster:
    """A namespace of the real API server, a cache that is filled before each reconciliation, an in-memory broker."""

    server: ApiServer
    namespace: str
    requests: ApiRequests
    brokers: MemoryBrokers

    def path(self, kind: str, name: str = "") -> str:
        return f"/apis/{API_VERSION}/namespaces/{self.namespace}/{PLURALS[kind]}/{name}".rstrip("/")

    def create(self, kind: str, name: str, spec: Manifest) -> Key:
        """Create an object with the finalizer that the operator adds when it first observes the object."""
        metadata = {} if kind == "Broker" else {"finalizers": [FINALIZER]}
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name} | metadata, "spec": spec}
        self.server.create(self.path(kind), body)
        return Key(kind, self.namespace, name)

    def broker(self, name: str = "demo", *, levels: str | None = None, **spec: Any) -> None:
        self.create("Broker", name, spec)
        status = {"groups": [{"name": f"{name}-0", "group": 0, "ready": True}], "levels": levels}
        self.server.merge(self.path("Broker", name) + "/status", {"status": status})

    def get(self, key: Key) -> Manifest:
        return self.server.request("GET", self.path(key.kind, key.name))

    def condition(self, key: Key, kind: str = "Ready") -> tuple[str, str]:
        conditions = self.get(key)["status"]["conditions"]
        return next((one["status"], one["reason"]) for one in conditions if one["type"] == kind)

    def exists(self, key: Key) -> bool:
        return any(
            one["metadata"]["name"] == key.name for one in self.server.request("GET", self.path(key.kind))["items"]
        )

    def reconcile(self, key: Key) -> None:
        reconcile = reconcile_topic if key.kind == "Topic" else reconcile_levels
        asyncio.run(_bounded(reconcile(key, self.world())))

    def delete(self, key: Key) -> Waiting | None:
        """Delete an object as the API server and kopf do: release it, then remove the finalizer."""
        self.server.request("DELETE", self.path(key.kind, key.name))
        return self.release(key)

    def release(self, key: Key) -> Waiting | None:
        release = release_topic if key.kind == "Topic" else release_levels
        waiting: Waiting | None = asyncio.run(_bounded(release(key, self.world())))
        if waiting is None:
            self.server.merge(self.path(key.kind, key.name), {"metadata": {"finalizers": None}})
        return waiting

    def world(self) -> ReconcileContext:
        seen = MemoryKube()
        for kind in PLURALS:
            for body in self.server.request("GET", self.path(kind))["items"]:
                seen.objects[kind, self.namespace, body["metadata"]["name"]] = body
        seen.objects["Pod", self.namespace, "demo-broker-0-0"] = {"status": {"podIP": POD_ADDRESS}}
        kube: Kube = ApiKube(self.requests, seen=lambda kind, body: None)
        cache: Cache = MemoryCache(seen)
        admin: BrokerAdmin = self.brokers
        settings = ReconcileSettings(default_image="none")
        return ReconcileContext(kube=kube, cache=cache, admin=admin, settings=settings, clock=lambda: 1_800_000_000_000)


async def _bounded(work: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(30):
        return await work


@pytest.fixture
def cluster(api_server: ApiServer, namespace: str) -> Iterator[Cluster]:
    load = Credentials(kubeconfig=str(api_server.kubeconfig)).load
    requests = ApiRequests(load, threads=2, timeout_s=10, observe=lambda request, status: None)
    brokers = MemoryBrokers(topics_by_host={POD_ADDRESS: {}})
    yield Cluster(api_server, namespace, requests, brokers)
    requests.close()


def test_topic_is_created_and_released_through_finalizer(cluster: Cluster) -> None:
    cluster.broker()
    key = cluster.create("Topic", "orders", {"brokerRef": {"name": "demo"}, "queues": 4})
    cluster.reconcile(key)
    assert cluster.brokers.topics_by_host[POD_ADDRESS]["orders"].write_queues == 4
    assert cluster.condition(key) == ("True", "InEveryGroup")
    row = cluster.server.kubectl("-n", cluster.namespace, "get", "dmqt", "orders", "--no-headers").split()
    assert row[:6] == ["orders", "demo", "orders", "4", "ReadWrite", "InEveryGroup"]
    cluster.brokers.down.add(POD_ADDRESS)
    waiting = cluster.delete(key)
    assert waiting is not None
    assert cluster.condition(key) == ("False", "Deleting")
    cluster.brokers.down.clear()
    assert cluster.release(key) is None
    assert not cluster.exists(key)
    assert not cluster.brokers.topics_by_host[POD_ADDRESS]


def test_pending_messages_are_shown_and_prevent_the_deletion(cluster: Cluster) -> None:
    cluster.broker()
    secret = {"metadata": {"name": "demo-http-token"}, "stringData": {"token": cluster.brokers.token}}
    cluster.server.create(f"/api/v1/namespaces/{cluster.namespace}/secrets", secret)
    objective = {"withinMilliseconds": 5_000, "percent": 99.9}
    spec = {"brokerRef": {"name": "demo"}, "delay": {"maxPendingMessages": 9, "latenessObjective": objective}}
    key = cluster.create("Topic", "orders", spec | {"deletionPolicy": "RefuseWhilePending"})
    due_ms = 1_800_000_060_000
    cluster.brokers.delays_by_host[POD_ADDRESS] = {
        "orders": TopicDelays(
            topic="orders",
            exists=True,
            settings=TopicDelaySettings(),
            pending=3,
            pending_bytes=900,
            next_due_ms=due_ms,
            latest_due_ms=due_ms,
        )
    }
    cluster.reconcile(key)
    found = cluster.brokers.delays_by_host[POD_ADDRESS]["orders"].settings
    assert (found.max_pending_messages, found.when_topic_is_gone) == (9, "recreate")
    assert found.lateness_objective == LatenessObjective(within_ms=5_000, percent=99.9)
    row = cluster.server.kubectl("-n", cluster.namespace, "get", "dmqt", "orders", "--no-headers").split()
    assert row[6:8] == ["3", "2027-01-15T08:01:00Z"]
    assert cluster.get(key)["status"]["delay"]["pendingBytes"] == 900
    before = cluster.get(key)["metadata"]["resourceVersion"]
    cluster.reconcile(key)
    assert cluster.get(key)["metadata"]["resourceVersion"] == before
    waiting = cluster.delete(key)
    assert waiting is not None
    assert "3 delayed messages are pending until 2027-01-15T08:01:00Z" in waiting.message
    cluster.brokers.delays_by_host.clear()
    assert cluster.release(key) is None
    assert not cluster.exists(key)


def test_schema_keeps_written_status(cluster: Cluster) -> None:
    """A status that the API server prunes or rejects would be written again in each reconciliation."""
    cluster.broker()
    cluster.brokers.topics_by_host[POD_ADDRESS]["closed"] = TopicConfig(
        topic="closed", read_queues=0, write_queues=0, permission=0
    )
    keys = [
        cluster.create("Topic", "orders", {"brokerRef": {"name": "demo"}}),
        cluster.create("Topic", "rival", {"brokerRef": {"name": "demo"}, "topicName": "orders"}),
        cluster.create("Topic", "closed", {"brokerRef": {"name": "demo"}}),
        cluster.create("Topic", "lost", {"brokerRef": {"name": "nobody"}}),
        cluster.create("DelayLevelConfig", "unused", {"levels": ["1s", "2h"]}),
        cluster.create("DelayLevelConfig", "long", {"levels": [f"{number}s" for number in range(1, 1001)]}),
    ]
    for key in keys:
        cluster.reconcile(key)
    before = [cluster.get(key)["metadata"]["resourceVersion"] for key in keys]
    for key in keys:
        cluster.reconcile(key)
    assert [cluster.get(key)["metadata"]["resourceVersion"] for key in keys] == before


def test_younger_topic_takes_over_from_deleted_older_one(cluster: Cluster) -> None:
    cluster.broker()
    spec = {"brokerRef": {"name": "demo"}, "topicName": "orders"}
    keys = [cluster.create("Topic", name, spec) for name in ("a", "b")]
    # If both were created in the same second, the uid decides.
    metadata = {key: cluster.get(key)["metadata"] for key in keys}
    older, younger = sorted(keys, key=lambda key: (metadata[key]["creationTimestamp"], metadata[key]["uid"]))
    for key in (older, younger):
        cluster.reconcile(key)
    assert cluster.condition(younger) == ("False", "Conflict")
    assert cluster.delete(older) is None
    assert not cluster.exists(older)
    cluster.reconcile(younger)
    assert cluster.condition(younger) == ("True", "InEveryGroup")
    assert "orders" in cluster.brokers.topics_by_host[POD_ADDRESS]


def test_topic_is_released_when_its_broker_is_deleted(cluster: Cluster) -> None:
    cluster.broker()
    key = cluster.create("Topic", "orders", {"brokerRef": {"name": "demo"}})
    cluster.reconcile(key)
    cluster.brokers.down.add(POD_ADDRESS)
    assert cluster.delete(key) is not None
    cluster.server.request("DELETE", cluster.path("Broker", "demo"))
    assert cluster.release(key) is None
    assert not cluster.exists(key)


def test_retain_can_be_set_during_pending_deletion(cluster: Cluster) -> None:
    cluster.broker()
    key = cluster.create("Topic", "orders", {"brokerRef": {"name": "demo"}})
    cluster.reconcile(key)
    cluster.brokers.down.add(POD_ADDRESS)
    assert cluster.delete(key) is not None
    cluster.server.merge(cluster.path("Topic", "orders"), {"spec": {"deletionPolicy": "Retain"}})
    assert cluster.release(key) is None


def test_levels_are_kept_until_no_broker_uses_them(cluster: Cluster) -> None:
    key = cluster.create("DelayLevelConfig", "short", {"levels": ["1s", "2s"]})
    cluster.broker(delayLevelConfigRef={"name": "short"}, levels="1s 2s")
    cluster.reconcile(key)
    assert cluster.condition(key) == ("True", "Applied")
    assert cluster.get(key)["status"]["usedBy"] == ["demo"]
    waiting = cluster.delete(key)
    assert waiting is not None
    assert "demo" in waiting.message
    assert cluster.condition(key, "InUse") == ("True", "UsedByBrokers")
    cluster.server.merge(cluster.path("Broker", "demo"), {"spec": {"delayLevelConfigRef": None}})
    assert cluster.release(key) is None
    assert not cluster.exists(key)
