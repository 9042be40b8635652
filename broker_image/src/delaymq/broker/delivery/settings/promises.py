"""Promises about delayed messages by topic: their lateness, and what happens to those that are not delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from delaymq.broker.delivery.copying.copies import Fate
from delaymq.schedule.timeline.cursors import NO_TIMES, Times

if TYPE_CHECKING:
    from delaymq.broker.delivery.settings.table import DelaySettingsTable

_FATES: Final = {"recreate": None, "deadLetter": Fate.DEAD, "drop": Fate.TOPIC_GONE}


class ObjectiveCounts(NamedTuple):
    """Delivered messages of a topic since its lateness objective was set, or since the start."""

    messages: int
    late: int
    """Those that were later than the objective."""


class Promises:
    """Applies the settings of topics to messages that are due."""

    def __init__(self, settings: DelaySettingsTable, has_topic: Callable[[str], bool]) -> None:
        """`has_topic` returns whether a topic exists."""
        self.settings = settings
        self.dropped: dict[str, Times] = {}
        """By topic: due times of messages that are dropped, because they came due while the broker was not running."""
        self._has_topic = has_topic
        self._counts: dict[str, ObjectiveCounts] = {}

    def fate_of_gone(self, topic: str) -> Fate | None:
        """Return the outcome of a message whose topic was deleted; None if it exists, or the message is delivered."""
        if topic not in self.settings.gone or self._has_topic(topic):
            return None
        return _FATES[self.settings.of_topic(topic).when_topic_is_gone]

    def dropped_up_to(self, topic: str, due_ms: int) -> int | None:
        """Return the time up to which messages of a topic are dropped; None if one that is due then is delivered."""
        after_ms, up_to_ms = self.dropped.get(topic, NO_TIMES)
        return up_to_ms if after_ms < due_ms <= up_to_ms else None

    def decide(self, topic: str) -> bool:
        """Whether some due messages of a topic may have another outcome than their delivery."""
        return topic in self.dropped or self.fate_of_gone(topic) is not None

    def count(self, topic: str, lateness_ms: int, messages: int) -> None:
        """Count delivered messages of a topic, if it has a lateness objective."""
        objective = self.settings.of_topic(topic).lateness_objective
        if objective is None:
            return
        before = self._counts.get(topic, ObjectiveCounts(0, 0))
        late = messages if lateness_ms > objective.within_ms else 0
        self._counts[topic] = ObjectiveCounts(before.messages + messages, before.late + late)

    def counts(self) -> dict[str, ObjectiveCounts]:
        """Return the counts of topics that have a lateness objective now."""
        for topic in [each for each in self._counts if self.settings.of_topic(each).lateness_objective is None]:
            del self._counts[topic]
        none = ObjectiveCounts(0, 0)
        return {
            topic: self._counts.get(topic, none)
            for topic, settings in self.settings.topics.items()
            if settings.lateness_objective is not None
        }
