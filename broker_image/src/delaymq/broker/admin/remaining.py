"""Messages that would be lost with this broker: those that an active consumer group has not yet consumed.

A group is active if it has a connected or remembered member, or if it exists and was active within activity.ACTIVE_MS.
Broadcasting groups store their own offsets and are omitted, as are system topics and dead letters. Retry topics count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.message import names

if TYPE_CHECKING:
    from delaymq.broker.groups.activity import GroupActivity
    from delaymq.broker.groups.client_registry import ClientRegistry
    from delaymq.broker.groups.consumer_offsets import OffsetTable
    from delaymq.broker.groups.subscription_groups import Groups
    from delaymq.broker.topics import Topics
    from delaymq.store.message_store import MessageStore

MAX_SHOWN: Final = 100
"""Maximum number of rows in a response. The sums cover all rows."""
_BROADCASTING: Final = "BROADCASTING"


class Consumption(Protocol):
    """Parts of the broker that the scan needs: groups, their subscriptions and their progress."""

    @property
    def activity(self) -> GroupActivity:
        """Last activity of groups."""

    @property
    def clients(self) -> ClientRegistry:
        """Members of groups."""

    @property
    def groups(self) -> Groups:
        """Existing groups."""

    @property
    def offsets(self) -> OffsetTable:
        """Offsets of groups."""

    @property
    def store(self) -> MessageStore:
        """Bounds of the queues."""

    @property
    def topics(self) -> Topics:
        """Existing topics."""


@dataclass(frozen=True, slots=True)
class Unconsumed:
    """Messages of one topic that one group has not yet consumed."""

    group: str
    topic: str
    messages: int


@dataclass(slots=True)
class UnconsumedTotals:
    """Sums of a scan so far, and its largest rows."""

    messages: int = 0
    groups: set[str] = field(default_factory=set)
    _largest: list[Unconsumed] = field(default_factory=list)

    def add(self, row: Unconsumed) -> None:
        """Add one row of `scan`."""
        self.groups.add(row.group)
        if row.messages > 0:
            self.messages += row.messages
            self._largest.append(row)
            if len(self._largest) >= 100 * MAX_SHOWN:
                self._largest = self.largest()

    def largest(self) -> list[Unconsumed]:
        """Return the MAX_SHOWN largest rows, the largest first."""
        return nlargest(MAX_SHOWN, self._largest, key=lambda row: row.messages)


def scan(broker: Consumption, now_ms: int) -> Iterator[Unconsumed]:
    """Yield a row for each topic of each active group. The broker may serve requests between two rows."""
    active: dict[str, bool] = {}

    def is_active(group: str) -> bool:
        known = active.get(group)
        if known is None:
            known = active[group] = _is_active(broker, group, now_ms)
        return known

    keys = list(broker.offsets.table)
    for key in keys:
        topic, _, group = key.partition("@")
        if is_active(group) and _counts(broker, topic, group, now_ms):
            yield Unconsumed(group, topic, _behind(broker, topic, group))
    seen = set(keys)
    for group in broker.clients.group_names(now_ms):
        if not is_active(group):
            continue
        member = broker.clients.group(group, now_ms)
        for topic in {*(member.subscriptions if member is not None else ()), names.retry_topic(group)}:
            if f"{topic}@{group}" not in seen and _counts(broker, topic, group, now_ms):
                yield Unconsumed(group, topic, _behind(broker, topic, group))


def _is_active(broker: Consumption, group: str, now_ms: int) -> bool:
    if names.is_system_group(group):
        return False
    member = broker.clients.group(group, now_ms)
    if member is not None:
        return member.message_model != _BROADCASTING
    # A deleted group does not count, even if it left offsets.
    return group in broker.groups.table and broker.activity.is_recent(group, now_ms)


def _counts(broker: Consumption, topic: str, group: str, now_ms: int) -> bool:
    if topic.startswith(names.DLQ_PREFIX) or topic not in broker.topics.table or broker.topics.is_system(topic):
        return False
    member = broker.clients.group(group, now_ms)
    # A connected group counts with its subscriptions, any other group with its offsets.
    return (
        member is None or not member.subscriptions or topic in member.subscriptions or topic == names.retry_topic(group)
    )


def _behind(broker: Consumption, topic: str, group: str) -> int:
    config = broker.topics.table[topic]
    offsets = broker.offsets.queues_of(topic, group)
    behind = 0
    for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
        low, high = broker.store.queue_bounds(topic, queue_id)
        behind += max(high - max(low, offsets.get(queue_id, 0)), 0)
    return behind
