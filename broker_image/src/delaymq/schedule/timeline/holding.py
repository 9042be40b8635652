"""Messages that came due while their topic or group was paused.

Those of a paused group are moved to a partition of their own, so that the other messages of the topic are delivered,
and that the end of the pause makes all of them due together. Those of a paused topic stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from delaymq.schedule.timeline.entries import Pending
from delaymq.schedule.timeline.partitions import Partitions
from delaymq.schedule.timeline.queues import Queues


class HoldingIndex(Protocol):
    """The parts of the index that are needed to hold messages."""

    partitions: Partitions
    queues: Queues

    def put_back(self, entry: Pending, state: Pending) -> None: ...


class Holding:
    """Partitions of held messages."""

    def __init__(self, timeline: HoldingIndex) -> None:
        self._timeline = timeline
        self._of: dict[int, set[int]] = {}
        """By partition: those with held messages of the same topic."""

    def of(self, partition: int) -> Collection[int]:
        """Return the partitions with held messages that would otherwise be in this one."""
        return self._of.get(partition, ())

    def drop_unused(self) -> None:
        """Forget partitions that were removed."""
        if self._of:
            self.refresh()

    def refresh(self) -> None:
        """Find the partitions with held messages."""
        self._of = {}
        partitions = self._timeline.partitions
        for number, (topic, group, level) in partitions.names().items():
            if group:
                self._of.setdefault(partitions.number(topic, level=level), set()).add(number)

    def at_home(self, entry: Pending) -> Pending:
        """Return the entry of a message, held or not, as it is in the partition of its topic."""
        topic, group, level = self._timeline.partitions.key(entry.partition)
        return entry._replace(partition=self._timeline.partitions.number(topic, level=level)) if group else entry

    def hold_if_paused(self, entry: Pending, real_topic: str | None = None) -> bool:
        """Put a taken message back if its topic or its group is paused; return whether it is. OSError, damage.

        `real_topic` is stated if the index may not know it.
        """
        partitions, queues = self._timeline.partitions, self._timeline.queues
        topic, _, level = partitions.key(entry.partition)
        group = partitions.owner(entry.owner).group if entry.owner else ""
        if not queues.is_paused(topic if real_topic is None else real_topic, group):
            return False
        state = entry
        if real_topic is not None:
            state = entry._replace(partition=partitions.number(real_topic, level=level))
        if group and queues.is_paused_group(topic, group):
            home = self.at_home(entry).partition
            state = entry._replace(partition=partitions.number(topic, group, level))
            self._of.setdefault(home, set()).add(state.partition)
        self._timeline.put_back(entry, state)
        queues.give_back_to_rate(entry)
        return True
