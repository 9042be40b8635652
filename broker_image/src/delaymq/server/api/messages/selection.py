"""Selection of pending messages by topic, delay level and kind, in the index, which is read in time slices."""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeVar

from delaymq.broker.delivery.level_entries import UNKNOWN_TOPIC
from delaymq.schedule.buckets import Buckets, DueCounts
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.cursors import Key
from delaymq.schedule.timeline.inspection import (
    END_KEY,
    FIRST_KEY,
    OwnedSearch,
    count_by_due,
    find_first,
    find_next_due_times,
    latest_due_times,
)
from delaymq.schedule.timeline.partitions import PartitionKey
from delaymq.server.time_slices import TimeSlices

Group = TypeVar("Group", int, str)
ANY_WIDTH_MS: Final = 1 << 62
"""Width of a bucket for all due times."""


class Selected(NamedTuple):
    """A group of pending messages."""

    messages: int
    partitions: list[int]


class Selection:
    """Pending messages of a topic, level and kind; None selects all. Methods that read the index raise OSError, damage.

    Level 0 stands for the timed messages, in the results as well.
    """

    def __init__(
        self,
        timeline: Timeline,
        *,
        topic: str | None = None,
        level: int | None = None,
        kind: Literal["level", "timed"] | None = None,
        group: str | None = None,
        is_held: Callable[[str, str], bool] | None = None,
        is_shown: Callable[[str], bool] | None = None,
    ) -> None:
        """`is_held` returns whether the messages of a partition, by topic and group, are selected.

        `is_shown` returns the same for a topic; with it, messages whose topic is unknown are not selected.
        """
        self._timeline = timeline
        self._topic = topic
        self._level = level
        self._kind = kind
        self._group = group
        self._is_held = is_held
        self._is_shown = is_shown

    def _selects(self, key: PartitionKey) -> bool:
        if self._level is not None and key.level != self._level:
            return False
        if self._group is not None and (key.level or key.group not in ("", self._group)):
            return False  # messages of groups are timed
        if self._is_held is not None and not self._is_held(key.topic, key.group):
            return False
        if self._is_shown is not None and (key.topic == UNKNOWN_TOPIC or not self._is_shown(key.topic)):
            return False
        return self._kind is None or (self._kind == "timed") == (not key.level)

    def partitions(self) -> list[int]:
        """Return the numbers of the selected partitions."""
        table = self._timeline.partitions
        numbers = table.pending() if self._topic is None else table.of_topic(self._topic)
        return [number for number in numbers if self._selects(table.key(number))]

    async def by_level(self) -> dict[int, Selected]:
        """Return the selected messages by level, in ascending order."""
        return dict(sorted((await self._grouped(lambda key: key.level)).items()))

    async def by_topic(self) -> dict[str, Selected]:
        """Return the selected messages by topic, without those whose topics are unknown."""
        found = await self._grouped(lambda key: key.topic)
        found.pop(UNKNOWN_TOPIC, None)
        return found

    async def _grouped(self, group_of: Callable[[PartitionKey], Group]) -> dict[Group, Selected]:
        table, found, slices = self._timeline.partitions, dict[Group, Selected](), TimeSlices()
        for number in self.partitions():
            if messages := table.of_partition(number).messages:
                group = group_of(table.key(number))
                known = found.get(group, Selected(0, []))
                known.partitions.append(number)
                found[group] = known._replace(messages=known.messages + messages)
            await slices.yield_if_due()
        return found

    async def first(self, count: int, begin: Key = FIRST_KEY, end: Key = END_KEY) -> list[Pending]:
        """Return the `count` messages with keys from `begin` to before `end` that are due first, in order."""
        slices, found = TimeSlices(), list[Pending]()
        for _ in find_first(self._timeline, self.partitions(), count, found, begin, end):
            await slices.yield_if_due()
        return found

    async def of_group(self, count: int, most: int, begin: Key = FIRST_KEY, end: Key = END_KEY) -> OwnedSearch:
        """Search for `count` messages of the group, among at most about `most` entries of the index."""
        slices, timeline = TimeSlices(), self._timeline
        owners = timeline.partitions.of_group(self._topic or "", self._group or "")
        search = OwnedSearch(timeline, self.partitions() if owners else (), owners, count, begin=begin, end=end)
        for _ in search.steps(most):
            await slices.yield_if_due()
        return search

    async def groups(self) -> dict[str, int]:
        """Return the groups of the topic with pending messages, and their number."""
        slices, found = TimeSlices(), dict[str, int]()
        for each in self._timeline.partitions.groups_of(self._topic or ""):
            await slices.yield_if_due()
            if each is not None and each[1].messages:
                found[each[0]] = each[1].messages
        return found

    async def count(self, begin: Key = FIRST_KEY, end: Key = END_KEY) -> int:
        """Return the number of messages due from the time of `begin` to before that of `end`."""
        if (begin, end) == (FIRST_KEY, END_KEY):
            return sum(each.messages for each in (await self.by_level()).values())
        until_ms = None if end == END_KEY else end[0]
        buckets = Buckets(begin[0], ANY_WIDTH_MS, 1, until_ms)
        await self.count_by_due(buckets, begin, end)
        return sum(buckets.counts[1 : buckets.rest + 1])

    async def next_due_by_topic(self, partitions: list[int]) -> dict[str, int]:
        """Return the earliest due time of each topic of these partitions that has messages in them."""
        slices, found = TimeSlices(), dict[str, int]()
        for _ in find_next_due_times(self._timeline, partitions, found):
            await slices.yield_if_due()
        return found

    async def latest_due_ms(self) -> int:
        """Return the latest due time; 0 without messages."""
        slices, latest_ms = TimeSlices(), 0
        for due_ms in latest_due_times(self._timeline, self.partitions()):
            latest_ms = max(latest_ms, due_ms or 0)
            await slices.yield_if_due()
        return latest_ms

    async def count_by_due(self, buckets: DueCounts, begin: Key = FIRST_KEY, end: Key = END_KEY) -> None:
        """Add those with keys from `begin` to before `end` to `buckets`."""
        slices = TimeSlices()
        for _ in count_by_due(self._timeline, self.partitions(), buckets, begin, end):
            await slices.yield_if_due()
