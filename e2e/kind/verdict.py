"""Outcome of a topic's messages, according to the brokers' logs and the responses to producers.

Lateness = store time of the copy − due time. Twice = more copies in a log than pending records of the message in it.
A message that a producer sent again after a lost response may be stored twice; this is counted separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kind.figures import percentile


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One send as recorded by its producer; times in ms since 1970."""

    key: str
    level: int
    began_ms: int
    ended_ms: int
    message_id: str = ""
    """The offset message id; "" if the send failed."""
    broker: str = ""
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One record of a delayed message in a broker's log, with its copies; or a record that was not delayed."""

    key: str
    level: int
    due_ms: int
    """The store time if it was not delayed."""
    stored_ms: int
    copies_ms: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Results; counts are of messages, by their keys."""

    sent: int
    acknowledged: int
    failed: tuple[Sent, ...]
    lost: tuple[str, ...]
    """Acknowledged, but delivered by no broker."""
    twice: tuple[str, ...]
    early: tuple[str, ...]
    stored_again: int
    """Stored repeatedly by a producer's retries, each time as a separate message."""
    unknown: tuple[str, ...]
    """In a log, but not sent by these producers."""
    lateness_ms: tuple[int, ...]
    """Lateness of every delivered message, in order of due time."""
    handed_over: tuple[tuple[int, int], ...]
    """(due, stored) of every first copy, in order of due time."""

    def figures(self) -> dict[str, object]:
        """Return the figures for the report."""
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
        """Assert that no message was lost, early or delivered twice, and that there was anything to judge."""
        assert self.acknowledged, "nothing was acknowledged, so nothing is proven"
        breaches = {"lost": self.lost, "twice": self.twice, "early": self.early, "sent by nobody": self.unknown}
        assert not any(breaches.values()), {name: keys[:5] for name, keys in breaches.items() if keys}

    def assert_no_send_failed(self) -> None:
        assert not self.failed, f"{len(self.failed)} of {self.sent} sends failed, such as {self.failed[:3]}"

    def lateness_of_due_after_ms(self, since_ms: int) -> list[int]:
        """Return the lateness of messages due at ``since_ms`` or later."""
        return [stored_ms - due_ms for due_ms, stored_ms in self.handed_over if due_ms >= since_ms]

    def last_overdue_at_ms(self, begin_ms: int, end_ms: int) -> int | None:
        """Return when the last message due between ``begin_ms`` and ``end_ms`` was delivered."""
        stored = [stored_ms for due_ms, stored_ms in self.handed_over if begin_ms <= due_ms < end_ms]
        return max(stored, default=None)


def judge(sends: Iterable[Sent], logs: Iterable[Sequence[Logged]]) -> Verdict:
    """Judge ``sends`` of one topic by the records of this topic in the log of each of its brokers."""
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
    """Return the longest time between two acknowledged sends: how long a producer could not send."""
    answers = sorted(send.ended_ms for send in sends if not send.failure)
    return max((later - before for before, later in pairwise(answers)), default=0) / 1000
