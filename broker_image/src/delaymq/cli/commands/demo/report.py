"""Record of the demo's sent and arrived messages, and its verdict."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from delaymq.client import ReceivedMessage

ON_TIME_MS = 1_000
"""Maximum lateness of a message for the demo to succeed; some milliseconds are usual."""


@dataclass(slots=True)
class Sent:
    """A message that the broker acknowledged."""

    label: str
    delay_ms: int
    sent_ms: int
    arrivals_ms: list[int] = field(default_factory=list)

    @property
    def lateness_ms(self) -> int | None:
        """Time of the first arrival after the due time, by the sender's clock; None before any arrival."""
        return self.arrivals_ms[0] - self.sent_ms - self.delay_ms if self.arrivals_ms else None


@dataclass(slots=True)
class Report:
    """Sent messages by unique id, with their arrivals."""

    sent: dict[str, Sent] = field(default_factory=dict)
    foreign: int = 0
    """Number of arrivals that the demo did not send."""

    def arrived(self, message: ReceivedMessage, now_ms: int) -> Sent | None:
        """Record an arrival; return its sent message, or None if it is foreign."""
        found = self.sent.get(message.message_id)
        if found is None:
            self.foreign += 1
        else:
            found.arrivals_ms.append(now_ms)
        return found

    @property
    def waiting(self) -> list[Sent]:
        return [each for each in self.sent.values() if not each.arrivals_ms]

    @property
    def twice(self) -> list[Sent]:
        return [each for each in self.sent.values() if len(each.arrivals_ms) > 1]

    @property
    def early(self) -> list[Sent]:
        return [each for each in self.sent.values() if (late := each.lateness_ms) is not None and late < 0]

    @property
    def late(self) -> list[Sent]:
        return [each for each in self.sent.values() if (late := each.lateness_ms) is not None and late > ON_TIME_MS]

    @property
    def is_good(self) -> bool:
        """Whether every message arrived once and on time."""
        return bool(self.sent) and not (self.waiting or self.twice or self.early or self.late or self.foreign)

    def summary(self) -> str:
        """Return a one-line summary."""
        lateness = [late for each in self.sent.values() if (late := each.lateness_ms) is not None]
        figures = f"; lateness median {statistics.median(lateness):.0f} ms, at most {max(lateness)} ms"
        return (
            f"{len(self.sent)} sent, {len(self.sent) - len(self.waiting)} arrived, {len(self.waiting)} lost,"
            f" {len(self.twice)} twice, {len(self.early)} early, {len(self.late)} more than {ON_TIME_MS} ms late"
            f"{figures if lateness else ''}"
        )
