"""The pauses that apply, as the log states them: of a topic, of a group of messages, or of all deliveries."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from delaymq.message.group_marks import GroupMark
from delaymq.message.timed_marks import GroupMarkKind

ALL: Final = ("", "")
"""In place of topic and group: the pause of all deliveries."""


class Pause(NamedTuple):
    """A pause that applies."""

    since_ms: int
    """Time of its beginning, by the broker's clock."""
    place: int
    """Physical offset of the record with the mark."""
    account: str
    """Account that requested it; empty without access control."""


class PauseFacts:
    """The pauses that apply, by topic and group. An empty group stands for the topic, and `ALL` for all deliveries."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], Pause] = {}
        self.groups: Counter[str] = Counter()
        """Number of paused groups by topic."""

    def apply(self, mark: GroupMark, account: str = "") -> None:
        """Apply a mark of the log."""
        if mark.kind is GroupMarkKind.PAUSED:
            self._add(mark.topic, mark.group, Pause(mark.decided_ms, mark.place, account))
        elif self.table.pop((mark.topic, mark.group), None) is not None and mark.group:
            self.groups[mark.topic] -= 1
            if not self.groups[mark.topic]:
                del self.groups[mark.topic]

    def _add(self, topic: str, group: str, pause: Pause) -> None:
        if group and (topic, group) not in self.table:
            self.groups[topic] += 1
        self.table[topic, group] = pause

    def as_json(self) -> list[list[object]]:
        """Return the pauses as JSON-compatible data."""
        return [[*key, *pause] for key, pause in self.table.items()]

    def oldest(self) -> int | None:
        """Return the lowest physical offset of their marks; None without pauses."""
        return min((pause.place for pause in self.table.values()), default=None)

    @classmethod
    def from_json(cls, state: object) -> PauseFacts:
        """Return the result of `as_json`. ValueError if it is invalid."""
        facts = cls()
        if not isinstance(state, list):
            raise ValueError("the pauses are a list")
        for topic, group, since_ms, place, account in state:
            facts._add(str(topic), str(group), Pause(int(since_ms), int(place), str(account)))
        return facts
