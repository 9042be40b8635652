"""History of a run: all requests of its clients with their outcomes, and all messages that its consumers received."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from enum import Enum

from harness.commitlog import Record

TOPIC, QUEUES = "Replicated", 4
GROUP, TRANSACTION_GROUP = "readers", "payers"


class Outcome(Enum):
    """What its client knows about a request."""

    DONE = "done"
    """Acknowledged, whether replicas are in sync (0) or not (11)."""
    UNKNOWN = "unknown"
    """No response, or one that states that the result is not certain (10, 12)."""
    REFUSED = "refused"
    """Any other response."""


def outcome_of(code: int | None) -> Outcome:
    """Return the outcome of a request by the code of its response; None: without one."""
    if code in (0, 11):
        return Outcome.DONE
    return Outcome.UNKNOWN if code in (None, 10, 12) else Outcome.REFUSED


class Kind(Enum):
    """How a message asks for its delivery."""

    PLAIN = "plain"
    LEVEL = "level"
    TIMED = "timed"
    HALF = "half"
    """Half message of a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A send; each has its own key and is never repeated. Times in s are monotonic."""

    key: str
    kind: Kind
    queue_id: int
    delay_ms: int
    asked_ms: int
    asked_s: float
    answered_s: float
    outcome: Outcome
    member: str = ""
    """Host of the member that responded."""
    place: int = -1
    """Physical offset in the response; -1 without one."""
    queue_offset: int = -1
    """Queue offset in the response, of a plain message; -1 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """A request to cancel a pending message."""

    key: str
    outcome: Outcome
    answered_s: float = 0.0
    member: str = ""
    """Host of the member that responded."""
    place: int = -1
    """Physical offset of the mark in the response; -1 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A commit or rollback of a transaction."""

    key: str
    is_commit: bool
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Response that the offset of a pull is outside the queue."""

    member: str
    """Host of the member that responded."""
    at_s: float
    text: str


@dataclass
class History:
    """All requests and received messages, in the order of the responses."""

    sends: list[Send] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    seen: dict[int, list[Record]] = field(default_factory=dict)
    """Messages that were received, by queue, in the order of their arrival."""
    offsets: list[str] = field(default_factory=list)
    """Committed offsets of consumers that a master had lost, or never received."""
    commits: int = 0
    """Number of acknowledged commits of offsets."""
    read_from_replicas: int = 0
    """Number of responses of replicas with messages."""
    moved: list[Moved] = field(default_factory=list)
    """Pulls whose position the broker did not accept."""

    @property
    def stored(self) -> list[Send | Cancel]:
        """Requests whose responses state a place in the log."""
        return [*self.sends, *self.cancels]

    def gap_s(self, from_s: float, until_s: float) -> float:
        """Return the longest time without an acknowledged send that overlaps a period."""
        times = sorted(send.answered_s for send in self.sends if send.outcome is Outcome.DONE)
        times = [from_s, *(time for time in times if from_s < time < until_s), until_s]
        return max(after - before for before, after in itertools.pairwise(times))


def is_committed(key: str) -> bool:
    """Return whether a transaction is to be committed: always the same for a key."""
    return int(key[1:]) % 3 != 0
