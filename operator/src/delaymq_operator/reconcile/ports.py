"""Ports of the reconcilers to external systems, as protocols; adapters/ implements them, tests fake them.

Kinds are given by name (`Pod`, `StatefulSet`, `Broker`); the adapter has group, version and plural. Objects are plain
dicts as returned by the API server. Times are ms since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from delaymq.api_types.broker import About, Drain, DrainMode, Remaining
from delaymq.api_types.delay_settings import TopicDelays, TopicDelaySettings
from delaymq.api_types.replication import Replication

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as JSON data."""

EventType = Literal["Normal", "Warning"]
Propagation = Literal["Background", "Foreground", "Orphan"]

NO_LABELS: Mapping[str, str] = {}


class Kube(Protocol):
    """The API server. Every call may raise KubeError."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the current object, or None."""

    async def list(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] = NO_LABELS,
        fields: Mapping[str, str] = NO_LABELS,
    ) -> list[Manifest]:
        """Return the current objects, in one namespace or in all, with all `labels` and all `fields`, such as
        {"regarding.name": "demo-broker-0"}.
        """

    async def apply(self, manifest: Manifest) -> Manifest:
        """Apply server-side, by force, under the operator's field manager; return the resulting object."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object and return it. KubeError 409 if the name exists, 404 if the API does not have its kind."""

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        """Apply a JSON merge patch. KubeError 404 if the object is absent, 409 if `patch` contains an outdated
        resourceVersion.
        """

    async def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: Propagation = "Background",
    ) -> None:
        """Delete an object; an absent one is not an error. KubeError 409 if its `uid` or resourceVersion differs."""

    async def event(self, about: Manifest, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        """Emit an Event about an object; repeated Events are counted, not added. It never raises."""


class Cache(Protocol):
    """The last observed objects: possibly slightly outdated, and never to be changed by the reader."""

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the object, or None."""

    def owned(self, kind: str, owner_uid: str) -> list[Manifest]:
        """Return objects with an ownerReference to `owner_uid`."""

    def all(self, kind: str, namespace: str | None = None) -> list[Manifest]:
        """Return objects of a kind, in one namespace or in all."""

    def conflicting_topics(self, topic: Manifest) -> list[Manifest]:
        """Return other Topics with the same topic of the same Broker."""

    def labelled(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return objects with all `labels`."""


@dataclass(frozen=True, kw_only=True)
class AdminAccount:
    """An administrator's account for brokers with access control."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ServerTrust:
    """How the certificate in a Secret is verified when a server shows it."""

    secret_name: str
    ca: str = field(repr=False)
    """Certificates of trusted issuers, PEM."""
    name: str
    """Name or address that it must contain, since the operator connects to the addresses of pods."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Address of a broker, its HTTP token, and the account for RocketMQ's protocol."""

    host: str
    broker_port: int
    http_port: int
    token: str = field(repr=False)
    account: AdminAccount | None = None
    tls: ServerTrust | None = None
    """None: plaintext."""
    https: bool = False
    """Whether its HTTP port requires TLS."""


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """A topic on a broker. `permission`: 4 read + 2 write (+ 1 inherit)."""

    topic: str
    read_queues: int
    write_queues: int
    permission: int = 6
    order: bool = False
    """Order flag from the NameServers' settings, where brokers read it; `put_topic` does not change it."""
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    """System flags, sent back unchanged: 1 unit, 2 unit subscription."""


class BrokerAdmin(Protocol):
    """Brokers and NameServers. Every call may raise BrokerUnreachable or BrokerRefused."""

    async def info(self, endpoint: Endpoint) -> About:
        """Return the state, settings and delays of a broker."""

    async def remaining(self, endpoint: Endpoint) -> Remaining:
        """Return the numbers of undelivered and unconsumed messages."""

    async def drain(self, endpoint: Endpoint, mode: DrainMode, lease_ms: int) -> Drain:
        """Set the drain mode: withdraw (routes declare the broker read-only), refuse (sends are rejected as well) or
        none. It ends with the lease.
        """

    async def decommission(self, endpoint: Endpoint) -> None:
        """Remove the broker from the routes permanently."""

    async def replication(self, endpoint: Endpoint) -> Replication | None:
        """Return a member's view of its group; None if the broker has no replicas."""

    async def switch_over(self, endpoint: Endpoint, target: str, epoch: int) -> None:
        """Let a master hand over to `target`. BrokerRefused with the reason if it does not."""

    async def promote(self, endpoint: Endpoint, epoch: int) -> None:
        """Let a member become master although it may lack messages. BrokerRefused with the reason if it does not."""

    async def detach(self, endpoint: Endpoint, master: Endpoint, member: str, epoch: int) -> None:
        """Let a member record that it is no candidate, and its master count it no longer."""

    async def set_settings(self, endpoint: Endpoint, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker (request code 25)."""

    async def rule_versions(self, endpoint: Endpoint) -> Mapping[str, int]:
        """Return the version of the rules in force, by the path of each rule file on the broker or NameServer: the
        counter of its dataVersion.
        """

    async def topics(self, endpoint: Endpoint) -> dict[str, TopicConfig]:
        """Return all topics of a broker by name."""

    async def put_topic(self, endpoint: Endpoint, config: TopicConfig) -> None:
        """Create or change a topic on a broker."""

    async def delays(self, endpoint: Endpoint) -> dict[str, TopicDelays]:
        """Return delay settings and pending messages of all topics that have any, by name."""

    async def topic_delays(self, endpoint: Endpoint, topic: str) -> TopicDelays | None:
        """Return delay settings and pending messages of a topic; None without such a topic."""

    async def set_topic_delays(self, endpoint: Endpoint, topic: str, settings: TopicDelaySettings) -> TopicDelays:
        """Replace the delay settings of a topic."""

    async def delete_topic(self, endpoint: Endpoint, topic: str) -> None:
        """Delete a topic on a broker; an absent topic is not an error."""

    async def delete_route(
        self,
        addresses: tuple[str, ...],
        topic: str,
        *,
        cluster: str,
        account: AdminAccount | None = None,
        tls: ServerTrust | None = None,
    ) -> None:
        """Remove a topic of a cluster from the routes of all NameServers (`host:port`); an absent topic is not an
        error.

        External NameServers may have other clusters with a topic of that name.
        """

    async def orders(
        self, address: str, *, account: AdminAccount | None = None, tls: ServerTrust | None = None
    ) -> Mapping[str, str]:
        """Return the order configurations of a NameServer (219, ORDER_TOPIC_CONFIG): topic → text."""

    async def put_order(
        self,
        addresses: tuple[str, ...],
        topic: str,
        text: str | None,
        *,
        account: AdminAccount | None = None,
        tls: ServerTrust | None = None,
    ) -> None:
        """Set or (None) remove a topic's order configuration on all NameServers."""
