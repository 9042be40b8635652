"""In-memory brokers for the operator: one process for each running pod of a FakeKube, one store for each claim.

Clients send to any broker in their routes and refresh them only after `ROUTE_REFRESH_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from delaymq.api_types.broker import About, Drain, DrainMode, Remaining, UnconsumedRow
from delaymq.api_types.delay import Correction, Delay, DelayLevel, TimedMessages
from delaymq.api_types.delay_settings import TopicDelays, TopicDelaySettings
from delaymq.api_types.replication import Replication
from delaymq.config import BrokerConfig, build, parse_properties_text, to_properties_text
from delaymq_operator.api.names import COMPONENT_LABEL, NAMESRV_PORT
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import AdminAccount, Endpoint, ServerTrust, TopicConfig
from msgspec.structs import replace

from delaymq_operator_testing.fakes.groups import FakeGroups
from delaymq_operator_testing.fakes.kube import FakeKube
from delaymq_operator_testing.fakes.rules import FakeRules

ROUTE_REFRESH_MS = 5_000


@dataclass
class FakeStore:
    """Content of a volume."""

    store_id: str
    offsets: dict[int, int] = field(default_factory=lambda: {1: 10, 3: 4})
    pending: int = 0
    timed: TimedMessages | None = None
    """None: the broker is older than timed messages."""
    unconsumed: int = 0
    corrected: tuple[Correction, ...] = ()
    """Corrections that the next start reports."""


@dataclass
class FakeBroker:
    """A running broker process."""

    name: str
    pod_uid: str
    boot_id: str
    started_at_ms: int
    store: FakeStore
    settings: dict[str, str]
    token: str
    address: str
    drain: Drain
    decommissioned: bool = False
    enforces_tls: bool = False
    members: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the members of its group; empty: it has no replicas."""


@dataclass
class FakeBrokers:
    """Implementation of the port BrokerAdmin."""

    kube: FakeKube
    clock: Callable[[], int]
    namespace: str = "default"
    stores: dict[str, FakeStore] = field(default_factory=dict)
    """Stores by claim."""
    running: dict[str, FakeBroker] = field(default_factory=dict)
    """Processes by pod."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Calls that change a broker, as (action, pod)."""
    mute: set[str] = field(default_factory=set)
    """Pods whose brokers do not respond."""
    sends_failed: int = 0
    traffic: bool = True
    rules: FakeRules = field(init=False)
    groups: FakeGroups = field(init=False)
    _boots: int = 0

    def __post_init__(self) -> None:
        self.rules = FakeRules(self.kube, self.namespace, self.clock)
        self.groups = FakeGroups(self.kube, self.namespace, self.running)

    def tick(self) -> None:
        """Start and stop processes with their pods, expire leases, and send messages of clients."""
        for name in list(self.running):
            body = self.kube.objects.get(("Pod", self.namespace, name))
            if body is None or body["metadata"]["uid"] != self.running[name].pod_uid:
                del self.running[name]
        for body in self.kube.select("Pod", self.namespace, {"app.kubernetes.io/component": "broker"}):
            name = body["metadata"]["name"]
            if (body.get("status") or {}).get("phase") == "Running" and name not in self.running:
                self.running[name] = self._start(body)
        self.rules.tick([*self.running, *self._name_servers()])
        self.groups.tick()
        now_ms = self.clock()
        for broker in self.running.values():
            ends_ms = broker.drain.lease_ends_ms
            if ends_ms is not None and ends_ms <= now_ms:
                broker.drain = replace(broker.drain, mode="none", since_ms=now_ms, lease_ends_ms=None)
            moved = broker.drain.mode != "none" and now_ms - broker.drain.since_ms >= ROUTE_REFRESH_MS
            if self.traffic and broker.drain.mode != "refuse" and not moved:
                broker.drain = replace(broker.drain, last_send_ms=now_ms, sends=broker.drain.sends + 1)

    def _start(self, pod: dict[str, object]) -> FakeBroker:
        metadata, spec = pod["metadata"], pod["spec"]
        assert isinstance(metadata, dict)
        assert isinstance(spec, dict)
        self._boots += 1
        claim = f"store-{metadata['name']}"
        store = self.stores.setdefault(claim, FakeStore(store_id=f"store-of-{claim}-{self._boots}"))
        instance = metadata["labels"]["app.kubernetes.io/instance"]
        conf = self.kube.objects["ConfigMap", self.namespace, f"{instance}-broker-conf"]["data"]["broker.conf"]
        config, _ = build(BrokerConfig, parse_properties_text(conf))
        environment = {entry["name"]: entry.get("value", "") for entry in spec["containers"][0]["env"]}
        secret = self.kube.objects["Secret", self.namespace, f"{instance}-http-token"]["data"]["token"]
        return FakeBroker(
            name=environment["DELAYMQ_BROKER_NAME"],
            pod_uid=metadata["uid"],
            boot_id=f"boot-{self._boots}",
            started_at_ms=self.clock(),
            store=store,
            settings=parse_properties_text(to_properties_text(config)),
            token=secret,
            drain=Drain(mode="none", since_ms=self.clock()),
            address=f"{environment['DELAYMQ_BROKER_IP1']}:{environment['DELAYMQ_LISTEN_PORT']}",
            enforces_tls=environment.get("DELAYMQ_TLS_SERVER_MODE") == "enforcing",
            members=dict(word.split("=") for word in environment.get("DELAYMQ_HA_MEMBERS", "").split(";") if word),
        )

    def _find(self, endpoint: Endpoint) -> tuple[str, FakeBroker]:
        for name, broker in self.running.items():
            body = self.kube.objects.get(("Pod", self.namespace, name)) or {}
            if (body.get("status") or {}).get("podIP") == endpoint.host and name not in self.mute:
                if broker.enforces_tls and (endpoint.tls is None or not endpoint.https):
                    raise BrokerUnreachable(endpoint.host, "the peer probably accepts only TLS")
                if endpoint.https and not broker.enforces_tls:
                    raise BrokerUnreachable(endpoint.host, "its HTTP has no TLS")
                return name, broker
        raise BrokerUnreachable(endpoint.host, "no response within 5 s")

    async def rule_versions(self, endpoint: Endpoint) -> Mapping[str, int]:
        for name, address in self._name_servers().items():
            if endpoint.host == address and name not in self.mute:
                assert endpoint.broker_port == NAMESRV_PORT
                return self.rules.versions(name, endpoint.account)
        name, _ = self._find(endpoint)
        return self.rules.versions(name, endpoint.account)

    def _name_servers(self) -> dict[str, str]:
        """Return the addresses of running NameServers by pod."""
        return {
            body["metadata"]["name"]: body["status"]["podIP"]
            for body in self.kube.select("Pod", self.namespace, {COMPONENT_LABEL: "namesrv"})
            if (body.get("status") or {}).get("phase") == "Running"
        }

    async def info(self, endpoint: Endpoint) -> About:
        _, broker = self._find(endpoint)
        store = broker.store
        pending = {1: store.pending}
        levels = tuple(
            DelayLevel(
                level=level,
                delay_ms=1000,
                in_table=True,
                offset=offset,
                max_offset=offset + pending.get(level, 0),
                pending=pending.get(level, 0),
            )
            for level, offset in sorted(store.offsets.items())
        )
        return About(
            as_of_ms=self.clock(),
            version="0.1.0",
            broker_name=broker.name,
            cluster_name="demo",
            store_id=store.store_id,
            boot_id=broker.boot_id,
            started_at_ms=broker.started_at_ms,
            ready=True,
            address=broker.address,
            drain=broker.drain,
            decommissioned=broker.decommissioned,
            settings=dict(broker.settings),
            delay=Delay(as_of_ms=self.clock(), levels=levels, corrected=store.corrected, timed=store.timed),
        )

    async def replication(self, endpoint: Endpoint) -> Replication | None:
        name, _ = self._find(endpoint)
        return self.groups.state(name)

    async def switch_over(self, endpoint: Endpoint, target: str, epoch: int) -> None:
        name, _ = self._find(endpoint)
        self.groups.switch_over(name, target, epoch)
        self.calls.append((f"switchover to {target}", name))

    async def promote(self, endpoint: Endpoint, epoch: int) -> None:
        name, _ = self._find(endpoint)
        self.groups.promote(name, epoch)
        self.calls.append(("promote", name))

    async def detach(self, endpoint: Endpoint, master: Endpoint, member: str, epoch: int) -> None:
        name, _ = self._find(endpoint)
        assert name == member
        self.groups.detach(self._find(master)[0], member, epoch)
        self.calls.append(("detach", name))

    async def remaining(self, endpoint: Endpoint) -> Remaining:
        _, broker = self._find(endpoint)
        store = broker.store
        rows = (UnconsumedRow(group="workers", topic="orders", messages=store.unconsumed),) if store.unconsumed else ()
        return Remaining(
            as_of_ms=self.clock(),
            pending_delays=store.pending + (store.timed.pending if store.timed is not None else 0),
            unconsumed_messages=store.unconsumed,
            unconsumed=rows,
            active_groups=("workers",),
        )

    async def drain(self, endpoint: Endpoint, mode: DrainMode, lease_ms: int) -> Drain:
        name, broker = self._find(endpoint)
        now_ms = self.clock()
        if mode != broker.drain.mode:
            self.calls.append((mode, name))
            broker.drain = replace(broker.drain, mode=mode, since_ms=now_ms)
        ends_ms = None if mode == "none" else now_ms + lease_ms
        broker.drain = replace(broker.drain, lease_ends_ms=ends_ms)
        return broker.drain

    async def decommission(self, endpoint: Endpoint) -> None:
        name, broker = self._find(endpoint)
        self.calls.append(("decommission", name))
        broker.decommissioned = True

    async def set_settings(self, endpoint: Endpoint, settings: Mapping[str, str]) -> None:
        name, broker = self._find(endpoint)
        if "refuse.me" in settings.values():
            raise BrokerRefused(endpoint.host, "1", "that cannot be")
        self.calls.append(("set " + " ".join(sorted(settings)), name))
        broker.settings |= settings

    async def topics(self, endpoint: Endpoint) -> dict[str, TopicConfig]:
        raise AssertionError("topics are not the Broker's")

    async def put_topic(self, endpoint: Endpoint, config: TopicConfig) -> None:
        raise AssertionError("topics are not the Broker's")

    async def delays(self, endpoint: Endpoint) -> dict[str, TopicDelays]:
        raise AssertionError("topics are not the Broker's")

    async def topic_delays(self, endpoint: Endpoint, topic: str) -> TopicDelays | None:
        raise AssertionError("topics are not the Broker's")

    async def set_topic_delays(self, endpoint: Endpoint, topic: str, settings: TopicDelaySettings) -> TopicDelays:
        raise AssertionError("topics are not the Broker's")

    async def delete_topic(self, endpoint: Endpoint, topic: str) -> None:
        raise AssertionError("topics are not the Broker's")

    async def delete_route(
        self,
        addresses: tuple[str, ...],
        topic: str,
        *,
        cluster: str,
        account: AdminAccount | None = None,
        tls: ServerTrust | None = None,
    ) -> None:
        raise AssertionError("topics are not the Broker's")

    async def orders(
        self, address: str, *, account: AdminAccount | None = None, tls: ServerTrust | None = None
    ) -> Mapping[str, str]:
        raise AssertionError("not asked for a Broker")

    async def put_order(
        self,
        addresses: tuple[str, ...],
        topic: str,
        text: str | None,
        *,
        account: AdminAccount | None = None,
        tls: ServerTrust | None = None,
    ) -> None:
        raise AssertionError("topics are not the Broker's")
