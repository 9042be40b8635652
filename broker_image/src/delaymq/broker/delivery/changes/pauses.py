"""Begin and end of pauses: of a topic, of a group of messages, or of all deliveries.

A pause is stated by a mark and applies until another one ends it. Before the segment with the mark of a pause is
deleted, the mark is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from delaymq.broker.delivery.changes.appending import Stated, append_statement
from delaymq.broker.delivery.changes.changes import BROKER, Requester
from delaymq.broker.delivery.changes.group_records import group_record
from delaymq.broker.delivery.pause_facts import ALL, Pause, PauseFacts
from delaymq.message.errors import IllegalMessageError
from delaymq.message.group_marks import GroupMark
from delaymq.message.timed_marks import GroupMarkKind
from delaymq.store.layout import MANAGED_VERSION
from delaymq.store.model import Reserve

if TYPE_CHECKING:
    from delaymq.broker.delivery.hand_over import HandOver
    from delaymq.broker.delivery.reader import DeliveryStore
    from delaymq.schedule.timeline import Timeline

MAX_GROUPS: Final = 10_000
"""Limit of paused groups. Producers choose the names of groups; topics are limited by their own number."""
MAX_GROUPS_OF_TOPIC: Final = 1_000
"""Limit of paused groups of one topic, so that its producers do not use up those of the others."""
_CARRIED_AT_ONCE: Final = 16


class Pauses:
    """Begins and ends pauses. Methods that write raise StoreError, OSError and TimelineDamagedError."""

    def __init__(
        self,
        store: DeliveryStore,
        timeline: Timeline,
        hand_over: HandOver,
        facts: PauseFacts,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._timeline = timeline
        self._hand_over = hand_over
        self._facts = facts
        self._now_ms = now_ms
        self.on_change: Callable[[str, str, bool], None] = lambda topic, group, is_paused: None
        """Called when a pause has begun or ended."""
        for topic, group in facts.table:
            self._apply(topic, group)

    def __iter__(self) -> Iterator[tuple[tuple[str, str], Pause]]:
        return iter(self._facts.table.items())

    def as_json(self) -> list[list[object]]:
        """Return the pauses for a snapshot."""
        return self._facts.as_json()

    def __len__(self) -> int:
        return len(self._facts.table)

    def find(self, topic: str, group: str) -> Pause | None:
        """Return the pause of a topic (with an empty group) or of a group itself; None if there is none."""
        return self._facts.table.get((topic, group))

    def __contains__(self, names: tuple[str, str]) -> bool:
        return names in self._facts.table

    @property
    def of_all(self) -> Pause | None:
        """The pause of all deliveries."""
        return self._facts.table.get(ALL)

    def is_paused(self, topic: str, group: str) -> bool:
        """Whether a message of a topic and group is not delivered because of a pause."""
        return self.of_all is not None or self._timeline.queues.is_paused(topic, group)

    def has_any(self, topic: str) -> bool:
        """Whether a topic or a group of it is paused."""
        return (topic, "") in self._facts.table or topic in self._facts.groups

    def pause(self, topic: str, group: str, requester: Requester) -> Stated | None:
        """Begin a pause; return its mark, and None if it applies already. IllegalMessageError."""
        if (topic, group) in self._facts.table:
            return None
        if group:
            self._check_groups(topic)
        return self._state(GroupMarkKind.PAUSED, topic, group, requester, self._now_ms())

    def _check_groups(self, topic: str) -> None:
        """Raise IllegalMessageError if there are too many paused groups for another one."""
        groups = self._facts.groups
        if groups[topic] >= MAX_GROUPS_OF_TOPIC:
            raise IllegalMessageError(
                f"{MAX_GROUPS_OF_TOPIC} groups of topic {topic} are paused: resume some of them, or pause the topic"
            )
        if groups.total() >= MAX_GROUPS:
            raise IllegalMessageError(f"{MAX_GROUPS} groups are paused: resume some of them, or pause the topic")

    def resume(self, topic: str, group: str, requester: Requester) -> Stated | None:
        """End a pause; return the mark of the end, and None if there is no pause."""
        if (topic, group) not in self._facts.table:
            return None
        return self._state(GroupMarkKind.RESUMED, topic, group, requester, self._now_ms())

    def oldest(self) -> int | None:
        """Return the lowest physical offset of the marks of pauses; None without pauses."""
        return self._facts.oldest()

    def carry(self, end: int) -> None:
        """Write some of the marks before an offset again, so that the log before it can be deleted."""
        before = [(names, pause) for names, pause in self if pause.place < end]
        for (topic, group), pause in before[:_CARRIED_AT_ONCE]:
            requester = BROKER._replace(account=pause.account)
            self._state(GroupMarkKind.PAUSED, topic, group, requester, pause.since_ms, Reserve.CARRYING)

    def _state(
        self,
        kind: GroupMarkKind,
        topic: str,
        group: str,
        requester: Requester,
        since_ms: int,
        reserve: Reserve = Reserve.MARKS,
    ) -> Stated:
        """Append a mark and apply it."""
        mark = GroupMark(place=0, kind=kind, decided_ms=since_ms, topic=topic, group=group)
        record = group_record(mark, self._now_ms(), requester, reserve)
        stated = append_statement(self._store, record, MANAGED_VERSION)
        self.apply(replace(mark, place=stated.place), requester.account)
        return stated

    def apply(self, mark: GroupMark, account: str = "") -> None:
        """Apply a mark of the log. OSError, TimelineDamagedError."""
        self._facts.apply(mark, account)
        self._apply(mark.topic, mark.group)

    def _apply(self, topic: str, group: str) -> None:
        is_paused = (topic, group) in self._facts.table
        if (topic, group) == ALL:
            self._hand_over.is_paused_by_log = is_paused
        elif is_paused:
            self._timeline.pause(topic, group)
        else:
            self._timeline.resume(topic, group)
        self.on_change(topic, group, is_paused)
