"""Data types and protocols of the store: its input, its output and the results of recovery."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

from delaymq.message.record import Record
from delaymq.message.timed_marks import Statement


class Reserve(IntEnum):
    """Space for records that are stored although others are rejected, because the disk is full."""

    NONE = 0
    MARKS = 1
    """The end of the last segment, for marks about pending messages."""
    CARRYING = 2
    """A further segment, for carrying pending messages forward."""


class NewRecord(NamedTuple):
    """A message to append; the store assigns offsets and store time."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    is_copy: bool = False
    """Whether it is a copy of a record in the log. The only limit is then the segment size, because the limit on
    record sizes may have been lowered since."""
    statement: Statement | None = None
    """Statement of form 2 that the record makes. The store adds it to the properties, with the record's offset."""
    property_bytes: bytes | None = None
    """Encoded `properties`, if the caller has them."""
    body_crc: int | None = None
    """CRC of the body as in a record, if it is known from one."""
    reserve: Reserve = Reserve.NONE
    """Space that the record may use on a full disk."""


def again(
    record: Record,
    topic: str,
    queue_id: int,
    properties: dict[str, str],
    statement: Statement | None,
    *,
    property_bytes: bytes | None = None,
    body_crc: int | None = None,
    reserve: Reserve = Reserve.NONE,
) -> NewRecord:
    """Return a record of the log as it is to be stored again, in a queue and with properties of its own."""
    return NewRecord(
        topic,
        queue_id,
        record.body,
        properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        is_copy=True,
        statement=statement,
        property_bytes=property_bytes,
        body_crc=body_crc,
        reserve=reserve,
    )


class Dispatched(NamedTuple):
    """A record as queues, index and observers receive it, live or replayed."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    sys_flag: int
    store_timestamp_ms: int
    born_timestamp_ms: int
    body_crc: int
    reconsume_times: int
    prepared_transaction_offset: int
    properties: dict[str, str]
    tags_code: int
    """Hash of the tags; the due time in ms for a delayed record of the schedule topic."""


class LiveObserver(Protocol):
    """Observer of every appended record; its state is saved in snapshots."""

    name: str
    """Key of its state in snapshots."""

    def dispatch(self, record: Dispatched) -> None:
        """Process one record."""

    def state(self) -> object:
        """Return the state to save in a snapshot, as JSON-compatible data."""


class StateFiles(Protocol):
    """Files of an observer to which its state in a snapshot refers."""

    def write(self) -> None:
        """Write and sync the files; runs in any thread, before the snapshot is written. OSError.

        May complete the state that refers to them.
        """

    def finish(self, *, is_published: bool) -> None:
        """Take note of whether the snapshot was written; runs on the event loop."""


@runtime_checkable
class KeepsFiles(Protocol):
    """A live observer with a state in files of its own."""

    def state_files(self) -> StateFiles | None:
        """Return the files to which the state that `state` returned last refers, if any."""


class DispatchObserver(LiveObserver, Protocol):
    """Observer of every record in log order, live and replayed."""

    def restore(self, state: object | None) -> None:
        """Restore the state before the replay; None if there is no valid snapshot and the whole log is replayed.

        ValueError if the state is not one of this observer; the store then calls the method again with None.
        """


class StoreTask(Protocol):
    """System calls to be made off the event loop: `run` in any thread, then always `finish` on the loop."""

    def run(self) -> None:
        """Make the calls. Never raises; `finish` reports a failure."""

    def finish(self) -> OSError | None:
        """Apply the result; return the error, or None."""


@dataclass(frozen=True, slots=True)
class Correction:
    """One repair by recovery."""

    what: str
    """Kind, such as `torn-tail`: a label value of the counter."""
    file: str
    """Path below the store."""
    offset: int
    """Byte in that file, or physical offset for the log."""
    detail: str
    """Description as a sentence."""


@dataclass(slots=True)
class RecoveryReport:
    """Findings and repairs of the recovery at the opening of a store."""

    clean: bool = True
    """Whether the last stop was clean."""
    snapshot_used: bool = False
    snapshot_end: int = 0
    """End of the log that the used snapshot describes; 0 without one."""
    corrections: list[Correction] = field(default_factory=list)
    replayed_records: int = 0
    replayed_bytes: int = 0
    duration_ms: int = 0


class DiskState(NamedTuple):
    """Usage of the store's disk."""

    used_ratio: float
    writes_refused: bool
