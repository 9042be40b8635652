"""What the reconcilers need from outside, as protocols; adapters/ fulfils them, tests fake them.

Kinds are named by their bare word (`Pod`, `StatefulSet`, `Broker`); the adapter knows group, version and plural.
Objects are plain dicts as the API server shows them. Times are ms since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from delaymq.api_types.broker import About, Drain, DrainMode, Remaining

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object, as JSON shows it."""

EventType = Literal["Normal", "Warning"]
Propagation = Literal["Background", "Foreground", "Orphan"]

NO_LABELS: Mapping[str, str] = {}


class Kube(Protocol):
    """The API server. Every call may raise KubeError."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object now, or None."""

    async def list(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str] = NO_LABELS,
        fields: Mapping[str, str] = NO_LABELS,
    ) -> list[Manifest]:
        """The objects now, in one namespace or in all, that carry all `labels` and have all `fields`, such as
        {"regarding.name": "demo-broker-0"}."""

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply by force under the operator's field manager; the object as it is then."""

    async def create(self, manifest: Manifest) -> Manifest:
        """The object as it is made; KubeError 409 when there is one of this name, 404 when its kind is not known."""

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Manifest, *, subresource: str | None = None
    ) -> Manifest:
        """JSON merge patch; KubeError 404 when it is absent, 409 if `patch` states an old resourceVersion."""

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
        """Deletes; an object that is absent is fine, one of another `uid` or resourceVersion is KubeError 409."""

    async def event(self, about: Manifest, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        """Says something about an object; repeats are counted, not added. It never raises."""


class Cache(Protocol):
    """What the watches saw last: possibly a moment old, and never to be changed by the reader."""

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object, or None."""

    def owned(self, kind: str, owner_uid: str) -> list[Manifest]:
        """Objects with an ownerReference to `owner_uid`."""

    def all(self, kind: str, namespace: str | None = None) -> list[Manifest]:
        """Objects of a kind, in one namespace or in all."""

    def conflicting_topics(self, topic: Manifest) -> list[Manifest]:
        """Other Topics that name the same topic of the same Broker."""

    def labelled(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Objects that carry all `labels`."""


@dataclass(frozen=True, kw_only=True)
class AdminAccount:
    """An administrator's account of brokers with access control."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a broker is reached, its HTTP token, and who asks over RocketMQ's protocol."""

    host: str
    broker_port: int
    http_port: int
    token: str = field(repr=False)
    account: AdminAccount | None = None


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """A topic of one broker. `permission`: 4 read + 2 write (+ 1 inherit)."""

    topic: str
    read_queues: int
    write_queues: int
    permission: int = 6
    order: bool = False
    """As the NameServers' order settings say; brokers take it from there, `put_topic` changes nothing of it."""
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    """Handed back as it was: 1 unit, 2 unit subscription."""


class BrokerAdmin(Protocol):
    """Brokers and NameServers. Every call may raise BrokerUnreachable or BrokerRefused."""

    async def info(self, endpoint: Endpoint) -> About:
        """State, settings and delays of a broker."""

    async def remaining(self, endpoint: Endpoint) -> Remaining:
        """What is still undelivered or unconsumed."""

    async def drain(self, endpoint: Endpoint, mode: DrainMode, lease_ms: int) -> Drain:
        """withdraw: routes say read-only; refuse: sends are also refused; none: as usual. It ends with the lease."""

    async def decommission(self, endpoint: Endpoint) -> None:
        """Takes the broker out of the routes for good."""

    async def set_settings(self, endpoint: Endpoint, settings: Mapping[str, str]) -> None:
        """Changes hot configuration keys of a running broker (request code 25)."""

    async def topics(self, endpoint: Endpoint) -> dict[str, TopicConfig]:
        """All topics of a broker by name."""

    async def put_topic(self, endpoint: Endpoint, config: TopicConfig) -> None:
        """Creates or changes a topic on a broker."""

    async def delete_topic(self, endpoint: Endpoint, topic: str) -> None:
        """Deletes a topic on a broker; an absent one is fine."""

    async def delete_route(
        self, addresses: tuple[str, ...], topic: str, *, cluster: str, account: AdminAccount | None = None
    ) -> None:
        """Takes a topic of one cluster out of the routes of all NameServers (`host:port`); an absent one is fine.

        External NameServers may have other clusters with a topic of that name.
        """

    async def orders(self, address: str) -> Mapping[str, str]:
        """The order configurations that one NameServer keeps (219, ORDER_TOPIC_CONFIG): topic → text."""

    async def put_order(
        self, addresses: tuple[str, ...], topic: str, text: str | None, *, account: AdminAccount | None = None
    ) -> None:
        """Sets or (None) removes a topic's order configuration on all NameServers."""
