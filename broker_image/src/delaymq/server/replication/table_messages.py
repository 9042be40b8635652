"""Messages between members about the tables of the broker, which the server handles itself."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from delaymq.replication.messages import Message

MAX_PART_BYTES: Final = 1 << 20
"""Maximum size of the entries in a part. Only a single entry can exceed the usual size."""
COMPLETE: Final = 1
"""Flag of the part with which the replica has all tables."""
WRITE: Final = 2
"""Flag of a part that the replica acknowledges only when topics, groups and delay settings are in their files."""


class TablePart(NamedTuple):
    """Changed entries of one table of the master."""

    epoch: int
    session: int
    """Session of the replica, as in Follow."""
    serial: int
    """Number of the part in the session, from 1."""
    table: int
    """Number of the table (`delaymq.broker.tables.entries`)."""
    flags: int
    data: bytes
    """JSON object: names of entries with their values, null for those that were deleted."""


class TableAck(NamedTuple):
    """Statement of a replica that it has all parts of the session up to `serial`."""

    epoch: int
    session: int
    serial: int


class TableReceived(NamedTuple):
    """A message about tables, from an authenticated member."""

    sender: str
    message: TablePart | TableAck


LinkMessage: TypeAlias = Message | TablePart | TableAck
