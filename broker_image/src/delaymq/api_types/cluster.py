"""Types of /api/v1/cluster, and of /api/v1/brokers, which the supervisor of several broker groups serves."""

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


class BrokerProcess(Answer):
    """One broker group of this machine."""

    broker_name: str
    address: str | None
    """Address that the broker advertises; None while it does not run."""
    path: str
    """Prefix of the paths of the broker's own HTTP interface, such as /brokers/broker-a."""
    state: str
    restarts: int
    """Number of times that its process was started again."""


class Brokers(Answer):
    """All broker groups of this process."""

    brokers: list[BrokerProcess]
