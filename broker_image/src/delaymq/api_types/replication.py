"""Types of /api/v1/replication and /api/v1/plain-slaves."""

from typing import Annotated, Literal

import msgspec

from delaymq.api_types.base import Answer, Body, FrozenAnswer

NoteKind = Literal["lost tail", "empty volume", "detached"]
Epoch = Annotated[int, msgspec.Meta(ge=0, description="epoch of the master to which the order applies")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Note(FrozenAnswer, frozen=True):
    """Statement on a member's disk that it does not take over until it has caught up."""

    kind: NoteKind
    epoch: int
    """Newest epoch that the member knew."""
    serial: int


class NoteBody(Body):
    """Note of a member, as POST /api/v1/replication/prepare-detach returns it."""

    kind: NoteKind
    epoch: int
    serial: int


class Register(FrozenAnswer, frozen=True):
    """The register that states which member is the master."""

    reachable: bool
    """Whether the last request succeeded."""
    problem: str = ""


class GroupMember(FrozenAnswer, frozen=True):
    """A member of the group, as this member sees it."""

    name: str
    address: str
    connected: bool
    """Whether this member can send to it; true for this member itself."""
    in_sync: bool
    """Whether the master waits for it; known by the master only."""
    acknowledged: int | None = None
    """Offset up to which it has the log; known by the master only, like the fields below."""
    behind_bytes: int | None = None
    behind_ms: int | None = None
    """Time since it is known to have had everything."""


class Replication(FrozenAnswer, frozen=True):
    """State of a member and of its group. Offsets are physical offsets of the log."""

    cluster: str
    group: str
    member: str
    """Name of the member that responds."""
    role: Literal["Master", "Replica", "Starting", "Failed"]
    epoch: int
    master: str
    """Empty if it is unknown."""
    register: Register
    mode: Literal["ASYNC_MASTER", "SYNC_MASTER"]
    acknowledge: Literal["Appended", "Flushed"]
    failover: Literal["Automatic", "Manual"]
    min_in_sync: int
    in_sync: tuple[str, ...]
    """Members for which the master waits; empty if this member is not the master."""
    begin: int
    end: int
    flushed: int
    confirmed: int
    """End of what all members in sync have, as far as this member knows."""
    note: Note | None
    held: bool
    """Whether requests are held for a switchover."""
    problem: str
    """Why this member is not ready; empty if it is."""
    members: tuple[GroupMember, ...]


class SwitchoverBody(Body):
    """Let a replica in sync take over."""

    target: Name
    epoch: Epoch


class EpochBody(Body):
    """An order that applies to one epoch only."""

    epoch: Epoch


class DetachBody(Body):
    """Wait no longer for a member that has recorded a note."""

    member: Name
    epoch: Epoch
    note: NoteBody


class Detachable(FrozenAnswer, frozen=True):
    """The note of a member that does not take over until it has caught up."""

    note: Note


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
