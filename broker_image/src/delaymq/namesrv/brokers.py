"""Broker data of a NameServer."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.protocol.bodies import DataVersion, TopicConfig


@dataclass(slots=True)
class BrokerGroup:
    """Brokers of one name: a master and its slaves."""

    name: str
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    """Broker id → address."""
    topics: dict[str, bytes] = field(default_factory=dict)
    """Topics with queues of this group → payer (`shares`); avoids searching all topics."""


@dataclass(slots=True)
class LiveBroker:
    """One registered address."""

    address: str
    name: str
    broker_id: int
    ha_address: str
    data_version: DataVersion
    payer: bytes
    """Payer of the registration (`shares`)."""
    seen_ms: int
    lost_ms: int | None = None
    """Time at which its last registering connection closed; None after a new registration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Content of request 103."""

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str
    data_version: DataVersion
    topics: dict[str, TopicConfig]
