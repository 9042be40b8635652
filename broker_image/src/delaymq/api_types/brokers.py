"""Types of /api/v1/brokers, which the supervisor of several broker groups serves."""

from delaymq.api_types.base import Answer


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
