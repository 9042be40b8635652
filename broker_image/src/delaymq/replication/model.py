"""Values of replication: the register's record, settings, notes, and the state of a member that is on its disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from delaymq.replication.history import History


class Acknowledge(Enum):
    """Bytes that a member acknowledges."""

    APPENDED = "Appended"
    """Bytes in its log. A power loss may destroy them."""
    FLUSHED = "Flushed"
    """Bytes on its disk."""


class Failover(Enum):
    """Whether a member takes over from another member without an order."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class Settings(NamedTuple):
    """Settings of a group, equal on all of its members. Times only decide when a member tries something."""

    acknowledge: Acknowledge = Acknowledge.APPENDED
    waits_for_replicas: bool = True
    """Whether responses to sends wait for replicas (SYNC_MASTER)."""
    failover: Failover = Failover.AUTOMATIC
    min_in_sync: int = 1
    """Number of in-sync members, including the master, below which no send is stored."""
    replica_timeout_ms: int = 2_000
    """Time for which a replica may be silent or behind before it is removed from the in-sync set."""
    renew_ms: int = 1_000
    lease_ms: int = 10_000
    register_timeout_ms: int = 1_000
    heartbeat_ms: int = 300
    retry_ms: int = 500
    """Time between attempts to follow a master, to ask for positions, and to read the register without a master."""
    defer_ms: int = 1_000
    """Time that a candidate leaves to members with longer logs."""
    hand_over_ms: int = 3_000
    """Longest time for which a switchover holds appends."""
    relief_ms: int = 5_000
    """Time for which the disk of a master is full before it looks for a replica that can store messages."""
    batch_bytes: int = (1 << 18) - 4_096
    """Bytes in a Frame: with its head, less than the size at which receivers allocate a larger buffer."""
    window_bytes: int = 1 << 22
    """Bytes sent to a replica beyond those it has."""

    @property
    def missing_ms(self) -> int:
        """Time after which a renewal of the register is missing."""
        return self.renew_ms * 3 // 2


class Record(NamedTuple):
    """Content of the register: the only statement of who is master."""

    epoch: int
    master: str
    """Member that began the epoch; empty before the first epoch."""
    incarnation: int
    """Process of the master: a restarted process does not continue an epoch."""
    in_sync: frozenset[str]
    """Members of which each has everything that is confirmed."""


class ReplicaState(NamedTuple):
    """A replica, as its master sees it."""

    is_connected: bool
    acknowledged: int
    """Offset up to which it has acknowledged the log in this epoch."""
    behind_ms: int
    """Time since it is known to have had everything."""


class NoteKind(Enum):
    """Reasons for a member not to be a candidate until it has caught up."""

    LOST_TAIL = "lost tail"
    """It may have lost bytes that it had acknowledged."""
    EMPTY = "empty volume"
    DETACHED = "detached"
    """An administrator ordered the master not to wait for it."""


class Note(NamedTuple):
    """Statement on a member's disk that it is no candidate until it has caught up."""

    kind: NoteKind
    epoch: int
    """Highest epoch that the member knew when it recorded the note."""
    serial: int


@dataclass(slots=True)
class LogState:
    """Log of this member, and what is on its disk about it. Offsets are physical offsets of the commit log."""

    store_id: str
    """An empty log adopts the id of the master's store; no other log does."""
    history: History
    end: int
    flushed: int
    """Reports of appends and flushes are independent: it may be higher than `end` for a moment."""
    confirmed: int
    """Known confirmed offset: no cut below it takes place."""
    note: Note | None = None
    begin: int = 0
    """Offset of the oldest byte. An empty log may begin at that of the master's log."""

    was_killed: bool = False
    """Whether the previous process did not stop cleanly: what is not in the log, such as consumer offsets, may be older
    on this disk than on those of replicas.
    """

    def acknowledged(self, acknowledge: Acknowledge) -> int:
        """Return the offset up to which this member acknowledges its log."""
        return min(self.flushed, self.end) if acknowledge is Acknowledge.FLUSHED else self.end


class SendAnswer(Enum):
    """Response to a send that is stored on the master, with RocketMQ's response code."""

    CONFIRMED = 0
    NO_REPLICA = 11
    """Stored, and no replica is in sync (SLAVE_NOT_AVAILABLE)."""
    NOT_CONFIRMED = 12
    """Stored, and not confirmed by enough members (FLUSH_SLAVE_TIMEOUT)."""
