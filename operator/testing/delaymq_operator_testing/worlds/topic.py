"""Simulated cluster for Topics and DelayLevelConfigs: objects in memory, brokers with topics, an adjustable clock.

The same objects serve as API server and as cache; `frozen` lets the cache show an earlier state.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from delaymq.api_types.broker import DrainMode
from delaymq.api_types.delay_settings import TopicDelays, TopicDelaySettings
from delaymq_operator.api.names import FINALIZER, TOKEN_KEY, token_secret
from delaymq_operator.api.topic import claim_of
from delaymq_operator.reconcile.context import Key, ReconcileContext, ReconcileSettings
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable, KubeError
from delaymq_operator.reconcile.ports import (
    AdminAccount,
    BrokerAdmin,
    Cache,
    Endpoint,
    Kube,
    Manifest,
    ServerTrust,
    TopicConfig,
)
from msgspec import structs

from delaymq_operator_testing.trees import copied

NAMESPACE = "ns"
START_MS = 1_700_000_000_000
OWN_TOPICS = ("demo", "demo-0", "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest")


@dataclass
class MemoryKube:
    """Objects by kind, namespace and name, with counted requests and recorded Events."""

    objects: dict[tuple[str, str, str], Manifest] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    """Type, reason, message."""
    frozen: dict[tuple[str, str, str], Manifest] | None = None
    """State that the cache shows in place of `objects`."""

    def add(self, kind: str, name: str, spec: Manifest, **metadata: Any) -> Manifest:
        number = len(self.objects)
        body = {
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"uid-{number:04}",
                "generation": 1,
                "creationTimestamp": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z",
            }
            | metadata,
            "spec": spec,
        }
        self.objects[kind, NAMESPACE, name] = body
        return body

    def change(self, kind: str, name: str, **spec: Any) -> None:
        """Change a spec as a user does: the generation is incremented."""
        body = copied(self.objects[kind, NAMESPACE, name])
        body["spec"] |= spec
        body["metadata"]["generation"] += 1
        self.objects[kind, NAMESPACE, name] = body

    def mark_deleted(self, kind: str, name: str) -> None:
        """Mark an object as deleted, as Kubernetes does if it has a finalizer."""
        body = copied(self.objects[kind, NAMESPACE, name])
        body["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        self.objects[kind, NAMESPACE, name] = body

    def remove(self, kind: str, name: str) -> None:
        del self.objects[kind, NAMESPACE, name]

    # Methods of the port Kube.

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        self.requests["get"] += 1
        return self.objects.get((kind, namespace, name))

    async def list(
        self, kind: str, namespace: str | None = None, *, labels: Mapping[str, str] | None = None
    ) -> list[Manifest]:
        self.requests["list"] += 1
        return _all(self.objects, kind, namespace)

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        self.requests["patch"] += 1
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise KubeError(404, "NotFound", f"{kind} {name} not found")
        assert subresource == "status"
        assert set(patch) == {"status"}
        body = copied(found)
        status = body.get("status", {}) | copied(patch["status"])
        body["status"] = {key: value for key, value in status.items() if value is not None}
        self.objects[kind, namespace, name] = body
        return body

    async def apply(self, manifest: Manifest) -> Manifest:
        raise AssertionError("nothing is applied for a Topic")

    async def delete(self, kind: str, namespace: str, name: str, **options: Any) -> None:
        raise AssertionError("nothing is deleted for a Topic")

    async def event(self, about: Manifest, *, type: str, reason: str, message: str) -> None:  # noqa: A002
        self.requests["event"] += 1
        self.events.append((type, reason, message))


class MemoryCache:
    """Implementation of the port Cache on the same objects."""

    def __init__(self, kube: MemoryKube) -> None:
        self._kube = kube

    @property
    def _shown(self) -> dict[tuple[str, str, str], Manifest]:
        return self._kube.objects if self._kube.frozen is None else self._kube.frozen

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._shown.get((kind, namespace, name))

    def all(self, kind: str, namespace: str | None = None) -> list[Manifest]:
        return _all(self._shown, kind, namespace)

    def owned(self, kind: str, owner_uid: str) -> list[Manifest]:
        raise AssertionError("a Topic owns nothing")

    def conflicting_topics(self, topic: Manifest) -> list[Manifest]:
        others = self.all("Topic", topic["metadata"]["namespace"])
        return [
            other
            for other in others
            if claim_of(other) == claim_of(topic) and other["metadata"]["name"] != topic["metadata"]["name"]
        ]

    def labelled(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Manifest]:
        raise AssertionError("nothing of a Topic is found by label")


def _all(objects: dict[tuple[str, str, str], Manifest], kind: str, namespace: str | None) -> list[Manifest]:
    return [body for key, body in objects.items() if key[0] == kind and namespace in (None, key[1])]


@dataclass
class MemoryBrokers:
    """Implementation of the port BrokerAdmin: brokers by host, NameServers by address; `down` ones do not respond."""

    topics_by_host: dict[str, dict[str, TopicConfig]] = field(default_factory=dict)
    orders_by_address: dict[str, dict[str, str]] = field(default_factory=dict)
    trusts: dict[str, ServerTrust | None] = field(default_factory=dict)
    """How each NameServer was verified in the last request; None: the connection was in plaintext."""
    down: set[str] = field(default_factory=set)
    delays_by_host: dict[str, dict[str, TopicDelays]] = field(default_factory=dict)
    too_old: set[str] = field(default_factory=set)
    """Hosts of brokers without delay settings."""
    token: str = "secret"
    refusing: dict[str, str] = field(default_factory=dict)
    """Host → message with which it rejects every change."""
    calls: list[tuple[str, ...]] = field(default_factory=list)
    slow: bool = False
    """Whether other tasks run before a broker responds."""

    def asked(self, what: str) -> int:
        return sum(call[0] == what for call in self.calls)

    def _at(self, what: str, host: str, *more: str) -> None:
        self.calls.append((what, host, *more))
        if host in self.down:
            raise BrokerUnreachable(host, "connection refused")
        if what not in ("topics", "orders", "delays", "topic_delays") and host in self.refusing:
            raise BrokerRefused(host, "1", self.refusing[host])

    async def topics(self, endpoint: Endpoint) -> dict[str, TopicConfig]:
        self._at("topics", endpoint.host)
        if self.slow:
            await asyncio.sleep(0.01)
        return dict(self.topics_by_host[endpoint.host])

    async def rule_versions(self, endpoint: Endpoint) -> Mapping[str, int]:
        raise AssertionError("Topics do not concern rules")

    async def put_topic(self, endpoint: Endpoint, config: TopicConfig) -> None:
        self._at("put_topic", endpoint.host, config.topic)
        known = self.topics_by_host[endpoint.host].get(config.topic)
        order = known.order if known is not None else False
        self.topics_by_host[endpoint.host][config.topic] = replace(config, order=order)

    async def delete_topic(self, endpoint: Endpoint, topic: str) -> None:
        self._at("delete_topic", endpoint.host, topic)
        self.topics_by_host[endpoint.host].pop(topic, None)

    async def delays(self, endpoint: Endpoint) -> dict[str, TopicDelays]:
        self._http("delays", endpoint)
        return dict(self.delays_by_host.get(endpoint.host, {}))

    async def topic_delays(self, endpoint: Endpoint, topic: str) -> TopicDelays | None:
        self._http("topic_delays", endpoint, topic)
        return self.delays_by_host.get(endpoint.host, {}).get(topic)

    async def set_topic_delays(self, endpoint: Endpoint, topic: str, settings: TopicDelaySettings) -> TopicDelays:
        self._http("set_topic_delays", endpoint, topic)
        known = self.delays_by_host.setdefault(endpoint.host, {})
        before = known.get(topic) or TopicDelays(
            topic=topic, exists=True, settings=settings, pending=0, pending_bytes=0
        )
        known[topic] = structs.replace(before, settings=settings)
        return known[topic]

    def _http(self, what: str, endpoint: Endpoint, *more: str) -> None:
        self._at(what, endpoint.host, *more)
        if endpoint.host in self.too_old:
            raise BrokerRefused(endpoint.host, "not_found", "GET /api/v1/delay/settings does not exist")
        if endpoint.token != self.token:
            raise BrokerRefused(endpoint.host, "unauthorized", "the token is missing or wrong")

    async def orders(
        self, address: str, *, account: AdminAccount | None = None, tls: ServerTrust | None = None
    ) -> Mapping[str, str]:
        self._at("orders", address)
        self.trusts[address] = tls
        return dict(self.orders_by_address.get(address, {}))

    async def put_order(
        self,
        addresses: tuple[str, ...],
        topic: str,
        text: str | None,
        *,
        account: AdminAccount | None = None,
        tls: ServerTrust | None = None,
    ) -> None:
        for address in addresses:
            self._at("put_order", address, topic, str(text))
            self.trusts[address] = tls
            orders = self.orders_by_address.setdefault(address, {})
            orders.pop(topic, None)
            if text is not None:
                orders[topic] = text

    async def delete_route(
        self,
        addresses: tuple[str, ...],
        topic: str,
        *,
        cluster: str,
        account: AdminAccount | None = None,
        tls: ServerTrust | None = None,
    ) -> None:
        for address in addresses:
            self._at("delete_route", address, topic, cluster)
            self.trusts[address] = tls

    async def info(self, endpoint: Endpoint) -> NoReturn:
        raise AssertionError("not asked for a Topic")

    async def drain(self, endpoint: Endpoint, mode: DrainMode, lease_ms: int) -> NoReturn:
        raise AssertionError("not asked for a Topic")

    async def set_settings(self, endpoint: Endpoint, settings: Mapping[str, str]) -> NoReturn:
        raise AssertionError("not asked for a Topic")

    async def switch_over(self, endpoint: Endpoint, target: str, epoch: int) -> NoReturn:
        raise AssertionError("not asked for a Topic")

    async def promote(self, endpoint: Endpoint, epoch: int) -> NoReturn:
        raise AssertionError("not asked for a Topic")

    async def detach(self, endpoint: Endpoint, master: Endpoint, member: str, epoch: int) -> NoReturn:
        raise AssertionError("not asked for a Topic")

    remaining = decommission = replication = info


class TopicWorld:
    """A cluster with a Broker `demo` of `groups` groups in namespace `ns`."""

    def __init__(self, *, groups: int = 2, name_servers: int = 1, cluster_domain: str = "svc") -> None:
        self.kube = MemoryKube()
        self.brokers = MemoryBrokers()
        self.now_ms = START_MS
        self.settings = ReconcileSettings(default_image="none", cluster_domain=cluster_domain)
        self._admin: BrokerAdmin = self.brokers
        self.world = self._world()
        if groups:
            self.add_broker(groups=groups, name_servers=name_servers)

    def _world(self) -> ReconcileContext:
        kube: Kube = self.kube  # type: ignore[assignment]
        cache: Cache = MemoryCache(self.kube)
        return ReconcileContext(
            kube=kube, cache=cache, admin=self._admin, settings=self.settings, clock=lambda: self.now_ms
        )

    def use_admin(self, admin: BrokerAdmin) -> None:
        """Replace the in-memory brokers by another adapter, such as that of real brokers."""
        self._admin = admin
        self.world = self._world()

    def restart_operator(self) -> None:
        """Discard the operator's memory."""
        self.world = self._world()

    def add_broker(self, name: str = "demo", *, groups: int = 1, name_servers: int = 1) -> None:
        self.kube.add("Broker", name, {"size": groups, "nameServers": {"replicas": name_servers}})
        self.set_token(self.brokers.token, name)
        for number in range(groups):
            self.start_group(number, name)

    def annotate(self, kind: str, name: str, annotation: str, text: str | None) -> None:
        """Set or (None) remove an annotation, which does not change the generation."""
        body = copied(self.kube.objects[kind, NAMESPACE, name])
        annotations = body["metadata"].setdefault("annotations", {})
        annotations.pop(annotation, None)
        if text is not None:
            annotations[annotation] = text
        self.kube.objects[kind, NAMESPACE, name] = body

    def set_token(self, token: str, broker: str = "demo") -> None:
        """Write the Secret with the token of the brokers' HTTP interfaces."""
        data = {TOKEN_KEY: base64.b64encode(token.encode()).decode()}
        self.kube.objects["Secret", NAMESPACE, token_secret(broker)] = {"data": data}

    def set_pending(self, number: int, topic: str, pending: int, latest_due_ms: int, broker: str = "demo") -> None:
        """Let messages be pending for a topic, of which the first is due in a minute."""
        known = self.brokers.delays_by_host.setdefault(self.host(number, broker), {})
        before = known.get(topic) or TopicDelays(
            topic=topic, exists=True, settings=TopicDelaySettings(), pending=0, pending_bytes=0
        )
        dues = (self.now_ms + 60_000, latest_due_ms) if pending else (None, None)
        known[topic] = structs.replace(
            before, pending=pending, pending_bytes=300 * pending, next_due_ms=dues[0], latest_due_ms=dues[1]
        )

    def delay_settings(self, number: int, topic: str, broker: str = "demo") -> TopicDelaySettings:
        """Return the delay settings of a topic on a broker."""
        found = self.brokers.delays_by_host.get(self.host(number, broker), {}).get(topic)
        return TopicDelaySettings() if found is None else found.settings

    def start_group(self, number: int, broker: str = "demo") -> None:
        """Add a pod with an address and a broker, and report the group as ready in the Broker's status."""
        host = self.host(number, broker)
        self.brokers.topics_by_host.setdefault(
            host, {topic: TopicConfig(topic=topic, read_queues=8, write_queues=8) for topic in OWN_TOPICS}
        )
        pod = self.kube.add("Pod", f"{broker}-broker-{number}-0", {})
        pod["status"] = {"podIP": host}
        self.set_ready(number, True, broker)

    def set_ready(self, number: int, ready: bool, broker: str = "demo") -> None:
        body = copied(self.kube.objects["Broker", NAMESPACE, broker])
        groups = {one["group"]: one for one in body.setdefault("status", {}).get("groups", [])}
        groups[number] = {"name": f"{broker}-{number}", "group": number, "ready": ready}
        body["status"]["groups"] = list(groups.values())
        self.kube.objects["Broker", NAMESPACE, broker] = body

    def kill_broker(self, name: str = "demo") -> None:
        """Remove the Broker resource."""
        self.kube.remove("Broker", name)

    def begin_deletion_of_broker(self, name: str = "demo") -> None:
        """Mark the Broker as deleted, as `kubectl delete` in the foreground does."""
        self.kube.mark_deleted("Broker", name)

    @staticmethod
    def host(number: int, broker: str = "demo") -> str:
        return f"{broker}-host-{number}"

    @staticmethod
    def name_server(number: int = 0, broker: str = "demo") -> str:
        return f"{broker}-namesrv-{number}.{broker}-namesrv-pods.{NAMESPACE}.svc:9876"

    def add_topic(self, name: str, *, broker: str = "demo", **spec: Any) -> Key:
        self.kube.add("Topic", name, {"brokerRef": {"name": broker}} | spec, finalizers=[FINALIZER])
        return Key("Topic", NAMESPACE, name)

    def add_levels(self, name: str, *levels: str, **spec: Any) -> Key:
        self.kube.add("DelayLevelConfig", name, {"levels": list(levels)} | spec)
        return Key("DelayLevelConfig", NAMESPACE, name)

    def on(self, number: int, topic: str, broker: str = "demo") -> TopicConfig | None:
        """Return the topic's configuration on a broker."""
        return self.brokers.topics_by_host[self.host(number, broker)].get(topic)

    def put_by_hand(self, number: int, topic: str, **values: Any) -> None:
        """Change a topic on a broker directly, as mqadmin does."""
        topics = self.brokers.topics_by_host[self.host(number)]
        known = topics.get(topic, TopicConfig(topic=topic, read_queues=8, write_queues=8))
        topics[topic] = replace(known, **values)

    def status(self, key: Key) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects[key].get("status", {})
        return found

    def condition(self, key: Key, kind: str = "Ready") -> tuple[str, str, str]:
        """Return status, reason and message of a condition."""
        conditions = self.status(key).get("conditions", [])
        return next(
            ((one["status"], one["reason"], one["message"]) for one in conditions if one["type"] == kind), ("", "", "")
        )

    def later(self, seconds: float = 10.0) -> None:
        self.now_ms += int(seconds * 1000)
