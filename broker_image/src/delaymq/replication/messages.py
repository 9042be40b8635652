"""Messages between members. Each states the highest epoch that its sender knows, or the epoch that it concerns.

Messages may be lost, repeated and reordered. A session is numbered by the replica that begins it; messages of other
sessions are ignored.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from delaymq.replication.history import History
from delaymq.replication.model import Note


class Begun(NamedTuple):
    """Announcement of a new master, so that others read the register without delay."""

    epoch: int


class Follow(NamedTuple):
    """Request of a replica to begin a session."""

    epoch: int
    session: int
    incarnation: int
    store_id: str
    note: int
    """Serial of the replica's note; 0 without a note."""


class Accept(NamedTuple):
    """Beginning of a session: the master's epochs, with which the replica finds the end of the common part."""

    epoch: int
    session: int
    store_id: str
    history: History
    begin: int
    """Offset of the oldest byte of the log."""
    end: int


class Frame(NamedTuple):
    """Bytes of the master's log from `start`, or a heartbeat if there are none."""

    epoch: int
    session: int
    start: int
    data: bytes
    confirmed: int
    counted: bool
    """Whether the master confirms nothing without this replica."""


class Ack(NamedTuple):
    """Response to each Frame, and report of flushed bytes."""

    epoch: int
    session: int
    end: int
    """Offset that the replica expects next."""
    acknowledged: int
    expected: int
    """Start of the Frame; a higher one than `end` shows that a Frame is missing. 0 in reports."""


class Ask(NamedTuple):
    """Request of a candidate for the position of another member."""

    epoch: int
    round: int


class Position(NamedTuple):
    """Position of a member, for the decision which member takes over."""

    epoch: int
    round: int
    last_epoch: int
    """Newest epoch that begins at or before `end`."""
    end: int
    """Offset up to which it acknowledges its log."""
    note: Note | None
    is_master: bool
    vacant: str
    """Version in which it found the register without a record; empty if there is one, or if it is the master."""
    is_able: bool = True
    """Whether it could store messages as master; otherwise, its disk is full."""


class HandOver(NamedTuple):
    """Request of a master to the target of a switchover: the log ends at `end`, and appends are held."""

    epoch: int
    session: int
    end: int


Message: TypeAlias = Begun | Follow | Accept | Frame | Ack | Ask | Position | HandOver
