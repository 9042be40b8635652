"""Input of a member: events and orders."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from delaymq.replication.messages import Message
from delaymq.replication.model import Note, Record


class Tick(NamedTuple):
    """Passage of time, at least every 100 ms."""


class Received(NamedTuple):
    """A message of an authenticated member."""

    sender: str
    message: Message


class ConnectionLost(NamedTuple):
    """End of the connection with a member."""

    member: str


class MembersListed(NamedTuple):
    """Names of all members of the group, which have changed."""

    members: frozenset[str]


class RegisterRead(NamedTuple):
    """Result of a linearizable read. Versions are compared for equality only."""

    request: int
    version: str
    record: Record | None
    """None if there is no record, or none any more."""


class RegisterWritten(NamedTuple):
    """The write took place."""

    request: int
    version: str


class RegisterConflict(NamedTuple):
    """The write did not and will not take place. Adapters must not repeat writes, or this would not be certain."""

    request: int


class RegisterFailed(NamedTuple):
    """A read failed, or it is not known whether a write takes place."""

    request: int


class Appended(NamedTuple):
    """The log ends at `end`: after AppendRaw, or after appends of the master itself.

    After AppendRaw, the log may end before the appended bytes, which begin a record that is not complete yet. This part
    is forgotten when the session ends.
    """

    end: int


class AppendFailed(NamedTuple):
    """The bytes of AppendRaw could not be appended. Those of later ones that are in progress are not appended either,
    which is reported for each."""


class Trimmed(NamedTuple):
    """The log begins at `begin`, because older segments were deleted."""

    begin: int


class Flushed(NamedTuple):
    """The log up to `end` is on disk."""

    end: int


class CutDone(NamedTuple):
    """CutTo is complete and on disk."""


class Persisted(NamedTuple):
    """PersistEpochs or PersistNote with this number is on disk."""

    number: int


class Lacks(NamedTuple):
    """A replica lacks something besides the log that a master needs, or has everything: until then, it does not join
    the set."""

    member: str
    lacks: bool


class Able(NamedTuple):
    """This member could store messages as master, or could not: its disk is full."""

    is_able: bool


class SwitchOver(NamedTuple):
    """Order to the master of `epoch`: let `target` take over."""

    target: str
    epoch: int


class Promote(NamedTuple):
    """Order to a member: take over from `epoch` although confirmed messages may be lost."""

    epoch: int


class PrepareDetach(NamedTuple):
    """Order to a member: record that it is no candidate until it has caught up. The result is ReadyToDetach."""

    epoch: int


class Detach(NamedTuple):
    """Order to the master of `epoch`: do not wait for `member` any more, which recorded `note` in this epoch."""

    member: str
    epoch: int
    note: Note


Order: TypeAlias = SwitchOver | Promote | PrepareDetach | Detach
Event: TypeAlias = (
    Tick
    | Received
    | ConnectionLost
    | MembersListed
    | RegisterRead
    | RegisterWritten
    | RegisterConflict
    | RegisterFailed
    | Appended
    | AppendFailed
    | Trimmed
    | Flushed
    | CutDone
    | Persisted
    | Lacks
    | Able
    | Order
)
