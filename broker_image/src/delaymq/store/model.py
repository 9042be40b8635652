"""The store's own vocabulary: what goes in, what comes out, what recovery did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


@dataclass(slots=True)
class NewRecord:
    """A message to append; the store gives it its offsets and its store time."""

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
    """Whether it is made of a record that the log has. Then any size will do that fits a segment: the limit of sizes
    may have been lowered since."""


@dataclass(slots=True)
class Dispatched:
    """A record as queues, index and observers see it, live and replayed."""

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
    """Sees every record that is appended; its state is kept in snapshots."""

    name: str
    """Key of its state."""

    def dispatch(self, record: Dispatched) -> None:
        """One record."""

    def state(self) -> object:
        """What a snapshot keeps, as JSON can hold it."""


class DispatchObserver(LiveObserver, Protocol):
    """Sees every record in log order, live and replayed."""

    def restore(self, state: object | None) -> None:
        """Called before the replay; None: no valid snapshot, the whole log is replayed.

        ValueError for a state that is none of this observer's: then it is called again, with None.
        """


class StoreTask(Protocol):
    """System calls to be made off the loop: `run` in any thread, then `finish` on the loop, also after a failure."""

    def run(self) -> None:
        """Make the calls; never raises, a failure is kept for `finish`."""

    def finish(self) -> OSError | None:
        """Take the result over; what failed, or None."""


@dataclass(frozen=True, slots=True)
class Correction:
    """One thing that recovery put right."""

    what: str
    """Kind, such as `torn-tail`: a label of the counter."""
    file: str
    """Path below the store."""
    offset: int
    """Byte in that file, or physical offset for the log."""
    detail: str
    """A sentence."""


@dataclass(slots=True)
class RecoveryReport:
    """What opening the store found and did."""

    clean: bool = True
    """Whether the last stop was clean."""
    snapshot_used: bool = False
    corrections: list[Correction] = field(default_factory=list)
    replayed_records: int = 0
    replayed_bytes: int = 0
    duration_ms: int = 0


class DiskState(NamedTuple):
    """How full the store's disk is."""

    used_ratio: float
    writes_refused: bool
