"""/api/v1/cluster."""

from delaymq.api_types.base import Answer


class BrokerRow(Answer):
    """One broker."""

    broker_name: str
    broker_id: int
    """0 is the master."""
    address: str
    cluster: str


class NameServerRow(Answer):
    """One NameServer of this broker."""

    address: str
    registered: bool
    problem: str | None


class Cluster(Answer):
    """The cluster."""

    as_of_ms: int
    cluster_name: str
    brokers: list[BrokerRow]
    name_servers: list[NameServerRow]
