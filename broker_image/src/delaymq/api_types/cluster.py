"""Types of /api/v1/cluster."""

from delaymq.api_types.base import Answer


class BrokerRow(Answer):
    """One broker."""

    broker_name: str
    broker_id: int
    """0 for the master."""
    address: str
    cluster: str


class NameServerRow(Answer):
    """One of this broker's NameServers."""

    address: str
    registered: bool
    problem: str | None


class Cluster(Answer):
    """Brokers of the cluster, and this broker's NameServers."""

    as_of_ms: int
    cluster_name: str
    brokers: list[BrokerRow]
    name_servers: list[NameServerRow]
