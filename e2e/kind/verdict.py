"""Outcome of a topic's messages, according to the brokers' logs and the responses to producers.

Lateness = the copy's store time − the due time. Twice = more copies in a log than records that wait for them there.
A message that a producer sent again after a lost answer may be stored twice; that is counted apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kind.figures import percentile


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One send as its producer saw it; times in ms since 1970."""

    key: str
    level: int
    began_ms: int
    ended_ms: int
    message_id: str = ""
    """The offset message id; "" when the send failed."""
    broker: str = ""
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One record that waits for its time in a broker's log, and its copies; or one that was not delayed."""

    key: str
    level: int
    due_ms: int
    """The store time where it was not delayed."""
    stored_ms: int
    copies_ms: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Counts are of messages, by their keys."""

    sent: int
    acknowledged: int
    failed: tuple[Sent, ...]
    lost: tuple[str, ...]
    """Acknowledged, and no broker handed it over."""
    twice: tuple[str, ...]
    early: tuple[str, ...]
    stored_again: int
    """By a producer's second attempt: stored more than once, each time as a message of its own."""
    unknown: tuple[str, ...]
    """In a log, and sent by nobody here."""
    lateness_ms: tuple[int, ...]
    """Of every message handed over, in order of the due time."""
    handed_over: tuple[tuple[int, int], ...]
    """(due, stored) of every first copy, in order of the due time."""

    def figures(self) -> dict[str, object]:
        """What goes into the report."""
        return {
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "failed_sends": len(self.failed),
            "lost": len(self.lost),
            "twice": len(self.twice),
            "early": len(self.early),
            "lateness_p50_ms": percentile(self.lateness_ms, 50),
            "lateness_p99_ms": percentile(self.lateness_ms, 99),
            "lateness_max_ms": max(self.lateness_ms, default=0),
        }

    def assert_clean(self) -> None:
        """No message lost, twice or early, and something was judged at all."""
        assert self.acknowledged, "nothing was acknowledged, so nothing is proven"
        breaches = {"lost": self.lost, "twice": self.twice, "early": self.early, "sent by nobody": self.unknown}
        assert not any(breaches.values()), {name: keys[:5] for name, keys in breaches.items() if keys}

    def assert_no_send_failed(self) -> None:
        assert not self.failed, f"{len(self.failed)} of {self.sent} sends failed, such as {self.failed[:3]}"

    def lateness_of_due_after_ms(self, since_ms: int) -> list[int]:
        """Lateness of what fell due at ``since_ms`` or later."""
        return [stored_ms - due_ms for due_ms, stored_ms in self.handed_over if due_ms >= since_ms]

    def last_overdue_at_ms(self, begin_ms: int, end_ms: int) -> int | None:
        """When the last of what fell due from ``begin_ms`` until ``end_ms`` was handed over."""
        stored = [stored_ms for due_ms, stored_ms in self.handed_over if begin_ms <= due_ms < end_ms]
        return max(stored, default=None)


def judge(sends: Iterable[Sent], logs: Iterable[Sequence[Logged]]) -> Verdict:
    """``sends`` of one topic, and what the log of each of its brokers holds of it."""
    sends = list(sends)
    acknowledged = {send.key for send in sends if not send.failure}
    logged = [record for log in logs for record in log]
    handed = {record.key for record in logged if record.copies_ms}
    stored = [record.key for record in logged]
    first_copies = sorted((record.due_ms, min(record.copies_ms)) for record in logged if record.copies_ms)
    known = {send.key for send in sends}
    return Verdict(
        sent=len(sends),
        acknowledged=len(acknowledged),
        failed=tuple(send for send in sends if send.failure),
        lost=tuple(sorted(acknowledged - handed)),
        twice=tuple(record.key for record in logged if len(record.copies_ms) > 1),
        early=tuple(record.key for record in logged if any(copy < record.due_ms for copy in record.copies_ms)),
        stored_again=len(stored) - len(set(stored)),
        unknown=tuple(sorted(set(stored) - known)),
        lateness_ms=tuple(stored_ms - due_ms for due_ms, stored_ms in first_copies),
        handed_over=tuple(first_copies),
    )


def longest_gap_s(sends: Iterable[Sent]) -> float:
    """The longest time between two acknowledged answers: how long a producer's messages did not get through."""
    answers = sorted(send.ended_ms for send in sends if not send.failure)
    return max((later - before for before, later in pairwise(answers)), default=0) / 1000
