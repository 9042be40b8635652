"""What a NameServer knows of brokers."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.protocol.bodies import DataVersion, TopicConfig


@dataclass(slots=True)
class BrokerGroup:
    """A broker's name: one master and its slaves."""

    name: str
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    """Broker id → address."""
    topics: dict[str, bytes] = field(default_factory=dict)
    """Those with queues of this group, so that nothing has to look through all topics for them → who brought them."""


@dataclass(slots=True)
class LiveBroker:
    """One registered address."""

    address: str
    name: str
    broker_id: int
    ha_address: str
    data_version: DataVersion
    payer: bytes
    """Who brought it (`shares`)."""
    seen_ms: int
    lost_ms: int | None = None
    """When the last connection over which it was registered closed, if it has not registered since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What request 103 says."""

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str
    data_version: DataVersion
    topics: dict[str, TopicConfig]
