"""Output of a member: effects, which are performed immediately and in their order.

Their completion is reported by events, in the same order for all effects on the disk.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from delaymq.replication.history import History
from delaymq.replication.messages import Message
from delaymq.replication.model import Note, Record


class ReadRegister(NamedTuple):
    """Read the register linearizably."""

    request: int


class WriteRegister(NamedTuple):
    """Replace the record if the version is `expected`, once, without retries."""

    request: int
    expected: str
    record: Record


class Send(NamedTuple):
    """Send a message; it may be lost."""

    member: str
    message: Message


class SendLog(NamedTuple):
    """Send a Frame with the bytes from `start` up to at most `end`; with no bytes if both are equal."""

    member: str
    epoch: int
    session: int
    start: int
    end: int
    confirmed: int
    counted: bool


class Disconnect(NamedTuple):
    """Close the connection with a member that sent an impossible message."""

    member: str
    reason: str


class AppendRaw(NamedTuple):
    """Append bytes of the master's log at `start`, the end of the log. Completed by Appended."""

    start: int
    data: bytes


class CutTo(NamedTuple):
    """Cut the log, and everything derived from it, to `offset`. Completed by CutDone."""

    offset: int


class DiscardLog(NamedTuple):
    """Discard the log, and everything derived from it, and restart the process with an empty one.

    The master does not have the bytes any more that would continue it. The note that precedes this effect must be on
    disk before.
    """

    reason: str


class PersistEpochs(NamedTuple):
    """Replace `epochs.json` and sync it. Completed by Persisted."""

    number: int
    store_id: str
    history: History


class PersistNote(NamedTuple):
    """Replace or delete the note and sync the folder. Completed by Persisted."""

    number: int
    note: Note | None


class BecomeMaster(NamedTuple):
    """Accept sends, hand over, check transactions. The epoch starts at the end of the log."""

    epoch: int
    start: int


class StopBeingMaster(NamedTuple):
    """Refuse sends that are not stored, also those that are held, then reset the connections of clients."""

    epoch: int
    reason: str


class HoldAppends(NamedTuple):
    """Hold new sends, or stop holding them."""

    held: bool


class SetConfirmed(NamedTuple):
    """Readers may read up to `offset`. Never falls while a process runs."""

    offset: int


class ReportLoss(NamedTuple):
    """A takeover that may lose confirmed messages after `offset` is about to be attempted."""

    epoch: int
    """Epoch that would begin."""
    offset: int
    is_ordered: bool
    """Whether an administrator ordered it; otherwise, all members of the in-sync set may have lost bytes."""


class ReadyToDetach(NamedTuple):
    """The note is on disk: proof for the order Detach."""

    note: Note


class Refused(NamedTuple):
    """An order has no effect."""

    reason: str


class Failed(NamedTuple):
    """The member takes part no longer, until it is restarted."""

    reason: str


Effect: TypeAlias = (
    ReadRegister
    | WriteRegister
    | Send
    | SendLog
    | Disconnect
    | AppendRaw
    | CutTo
    | DiscardLog
    | PersistEpochs
    | PersistNote
    | BecomeMaster
    | StopBeingMaster
    | HoldAppends
    | SetConfirmed
    | ReportLoss
    | ReadyToDetach
    | Refused
    | Failed
)
