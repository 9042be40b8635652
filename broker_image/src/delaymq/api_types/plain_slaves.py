"""Types of /api/v1/plain-slaves."""

from delaymq.api_types.base import Answer


class PlainSlaveRow(Answer):
    """A connected plain slave. Offsets are physical ones, in bytes."""

    address: str
    connected_ms: int
    acknowledged: int
    """End of its log, as it reported."""
    sent: int
    behind_bytes: int
    """Confirmed bytes that it has not acknowledged."""


class FollowedMaster(Answer):
    """Master that this broker follows."""

    address: str
    """Address of its HA port."""
    problem: str | None
    """Why it is not followed now."""
    end: int | None
    """End of its log, as of the last request."""
    behind_bytes: int | None
    """Bytes of its log that are missing here."""
    tables_at_ms: int | None
    """Time from which the tables here are."""
    tables_problem: str | None
    """Why its tables are not available now."""


class PlainSlaves(Answer):
    """Replication over RocketMQ's HA protocol."""

    as_of_ms: int
    begin: int
    """Begin of this broker's log."""
    end: int
    confirmed: int
    slaves: list[PlainSlaveRow]
    master: FollowedMaster | None
    """None if this broker is no plain slave."""
