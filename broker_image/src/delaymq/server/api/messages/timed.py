"""Timed messages for display: their records, and the pending ones in the index, which is read in time slices."""

from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING

from delaymq.broker.delivery.timed.replay import own_due, own_mark
from delaymq.message import names
from delaymq.message.errors import NewerFormError
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark
from delaymq.schedule.inspection import Buckets
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.inspection import count_by_due, find_first, find_next_due_times, latest_due_times
from delaymq.server.api.routing import ApiError
from delaymq.server.time_slices import TimeSlices
from delaymq.store.dispatch import recorded_due_ms

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker


def identity_of(record: Record, properties: dict[str, str]) -> int:
    """Return the identity of the message that a record of the timer topic holds."""
    text = properties.get(names.DUE)
    try:
        due = own_due(text, record.physical_offset) if text is not None else None
    except NewerFormError:
        due = None
    return record.physical_offset if due is None else due.identity


def due_ms_of_timed(record: Record, properties: dict[str, str]) -> int | None:
    """Return the due time of a record of the timer topic; None if it states none."""
    try:
        return recorded_due_ms(properties, record.physical_offset)
    except NewerFormError:
        return None


def timed_mark_of(record: Record, properties: dict[str, str]) -> TimedMark | None:
    """Return the statement by which a record of another topic ends a timed message; None without one."""
    text = properties.get(names.MARK)
    try:
        return own_mark(text, record.physical_offset) if text is not None else None
    except NewerFormError:
        return None


def is_pending_timed(broker: "Broker", record: Record, properties: dict[str, str]) -> bool:
    """Whether the message of a record of the timer topic is pending. ApiError if the index cannot be read."""
    timeline, identity = broker.delivery.timeline, identity_of(record, properties)
    if timeline.taken(identity) is not None:
        return True
    due_ms = due_ms_of_timed(record, properties)
    partition = timeline.partitions.find(properties.get(names.REAL_TOPIC, ""))
    if due_ms is None or partition is None:
        return False
    with reading_index():
        return timeline.find(due_ms, identity, partition) is not None


@contextmanager
def reading_index() -> Iterator[None]:
    """Turn errors of the index of timed messages into an ApiError."""
    try:
        yield
    except OSError as error:
        raise ApiError(
            503,
            "timeline_unreadable",
            f"the index of timed messages cannot be read ({error}): restart the broker, which builds it again from the"
            " log if it is damaged",
        ) from None


class TimedPending:
    """Pending timed messages of a topic, or of all topics. Methods that read the index raise OSError, damage."""

    def __init__(self, timeline: Timeline, topic: str | None) -> None:
        self._timeline = timeline
        self._topic = topic

    def count(self) -> int:
        """Return their number."""
        partitions = self._timeline.partitions
        return partitions.messages if self._topic is None else partitions.totals(self._topic).messages

    def counts(self) -> dict[str, int]:
        """Return their number by topic."""
        if self._topic is None:
            return {topic: totals.messages for topic, totals in self._timeline.partitions.topics().items()}
        return {self._topic: self.count()} if self.count() else {}

    def _partitions(self) -> list[int]:
        partitions = self._timeline.partitions
        return partitions.pending() if self._topic is None else partitions.of_topic(self._topic)

    async def first(self, count: int) -> list[Pending]:
        """Return the `count` messages that are due first, in order."""
        slices, found = TimeSlices(), list[Pending]()
        for _ in find_first(self._timeline, self._partitions(), count, found):
            await slices.yield_if_due()
        return found

    async def next_due_ms(self) -> int | None:
        """Return the earliest due time; None without messages."""
        first = await self.first(1)
        return first[0].due_ms if first else None

    async def next_due_by_topic(self, topics: Set[str]) -> dict[str, int]:
        """Return the earliest due time of each of these topics that has messages."""
        slices, found = TimeSlices(), dict[str, int]()
        for _ in find_next_due_times(self._timeline, topics, found):
            await slices.yield_if_due()
        return found

    async def latest_due_ms(self) -> int:
        """Return the latest due time; 0 without messages."""
        slices, latest_ms = TimeSlices(), 0
        for due_ms in latest_due_times(self._timeline, self._partitions()):
            latest_ms = max(latest_ms, due_ms or 0)
            await slices.yield_if_due()
        return latest_ms

    async def count_by_due(self, buckets: Buckets) -> None:
        """Add them to `buckets`."""
        slices = TimeSlices()
        for _ in count_by_due(self._timeline, self._partitions(), buckets):
            await slices.yield_if_due()
