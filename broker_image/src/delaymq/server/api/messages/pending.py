"""GET /api/v1/delay/pending: counts of pending messages by level, topic and due time, and the messages due next.

Timed messages have no level; by level, they are counted separately.
"""

from collections.abc import Callable
from heapq import nlargest, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from delaymq.api_types.pending import NextMessages, Pending, PendingRow
from delaymq.message import names
from delaymq.message.levels import MAX_LEVELS, level_of_queue, queue_of_level
from delaymq.schedule.inspection import MAX_EXAMINED, Buckets, count_by_due, entries_of, first_by_number, next_entries
from delaymq.schedule.timeline import TIMELINE_QUEUE
from delaymq.server.api.messages.search import MAX_FOUND, row_of
from delaymq.server.api.messages.timed import TimedPending, reading_index
from delaymq.server.api.routing import Api, ApiError, Limit, Name, Query, TimeMs
from delaymq.server.time_slices import TimeSlices
from delaymq.store.reader import QUEUE_ENTRY

if TYPE_CHECKING:
    from delaymq.broker.delivery import Delivery
    from delaymq.broker.delivery.pending_topics import QueueTopics
    from delaymq.schedule import LevelQueue

MAX_BUCKETS: Final = 512
"""Maximum rows by due time."""
_CHOSEN_BUCKETS: Final = 120
"""Approximate number of rows if no width is given."""
_WIDTHS_MS: Final = (
    *(1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000),
    *(3_600_000, 7_200_000, 14_400_000, 21_600_000, 43_200_000, 86_400_000, 604_800_000, 2_592_000_000),
)

Kind = Literal["level", "timed"]
Level = Annotated[int, msgspec.Meta(ge=1, le=MAX_LEVELS)]


class PendingQuery(Query):
    """Parameters of the counts."""

    by: Literal["level", "topic", "due"] = "level"
    bucket_ms: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] | None = None
    """By due time: width of a row; chosen automatically if omitted."""
    until_ms: TimeMs | None = None
    """By due time: only messages due before this time."""
    level: Level | None = None
    """Only messages of this level, and no timed messages."""
    kind: Kind | None = None
    """Only messages with a level, or only timed messages."""
    topic: Name | None = None
    limit: Limit = 100
    """By topic: number of topics with the most pending messages."""


class NextQuery(Query):
    """Parameters of the messages due next."""

    level: Level | None = None
    kind: Kind | None = None
    topic: Name | None = None
    limit: Limit = MAX_FOUND
    """Requested number; at most 64 are returned."""


async def pending(api: Api, query: PendingQuery) -> Pending:
    """Return counts of pending messages. ApiError if the parameters exclude each other."""
    delivery, truncated = api.broker.delivery, False
    _check(query)
    with reading_index():
        match query.by:
            case "level":
                rows = await _by_level(delivery, query)
                total, bucket_ms = sum(row.pending for row in rows), None
            case "topic":
                rows, total, truncated = await _by_topic(delivery, query)
                bucket_ms = None
            case "due":
                rows, bucket_ms = await _by_due(api, query)
                total = sum(row.pending for row in rows)
    complete = _is_complete(delivery, query) or (query.by != "topic" and query.topic is None)
    return Pending(
        as_of_ms=api.broker.now_ms(),
        by=query.by,
        rows=rows,
        total=total,
        complete=complete,
        truncated=truncated,
        bucket_ms=bucket_ms,
    )


def _check(query: PendingQuery | NextQuery) -> None:
    if query.kind == "timed" and query.level is not None:
        raise ApiError(400, "bad_request", "timed messages have no level: send level or kind=timed, and not both")


def _is_complete(delivery: "Delivery", query: PendingQuery | NextQuery) -> bool:
    """Return whether the topics of all messages that the query selects are known."""
    return query.kind == "timed" or delivery.pending_topics.complete


def _sources(delivery: "Delivery", query: PendingQuery | NextQuery) -> list["LevelQueue"]:
    """Return the queues of the levels that the query selects."""
    if query.kind == "timed":
        return []
    levels = sorted(delivery.pending()) if query.level is None else [query.level]
    return [source for each in levels if (source := delivery.source(queue_of_level(each))) is not None]


def _timed_of(delivery: "Delivery", query: PendingQuery | NextQuery) -> TimedPending | None:
    """Return the timed messages that the query selects; None if it selects none."""
    if query.level is not None or query.kind == "level":
        return None
    return TimedPending(delivery.timeline, query.topic)


async def _by_level(delivery: "Delivery", query: PendingQuery) -> list[PendingRow]:
    next_due_ms = delivery.next_due_ms()
    rows = []
    for source in _sources(delivery, query):
        count, due_ms = source.pending, next_due_ms.get(source.queue_id)
        if query.topic is not None:
            count = _count(delivery, source, query.topic)
            first = await _first_of_topic(delivery, source, query.topic, 1) if count else []
            due_ms = first[0][0] if first else None
        if count:
            rows.append(PendingRow(level=level_of_queue(source.queue_id), pending=count, next_due_ms=due_ms))
    timed = _timed_of(delivery, query)
    if timed is not None and timed.count():
        due_ms = next_due_ms.get(TIMELINE_QUEUE) if query.topic is None else await timed.next_due_ms()
        rows.append(PendingRow(timed=True, pending=timed.count(), next_due_ms=due_ms))
    return rows


def _count(delivery: "Delivery", source: "LevelQueue", topic: str) -> int:
    """Return the known number of pending messages of a topic in one queue."""
    queue = delivery.pending_topics.queues.get(source.queue_id)
    return 0 if queue is None else queue.count(topic)


async def _first_of_topic(
    delivery: "Delivery", source: "LevelQueue", topic: str, limit: int
) -> list[tuple[int, int, int]]:
    """Return due time, queue id and offset of the messages of `topic` in one queue that are due first."""
    slices = TimeSlices()
    queue = delivery.pending_topics.queues.get(source.queue_id)
    if queue is None or queue.number_of(topic) is None:
        return []
    found = [
        (due_ms, queue_id, offset)
        for due_ms, queue_id, offset, _ in islice(delivery.waiting_elsewhere(), MAX_EXAMINED)
        if queue_id == source.queue_id and queue.name_at(offset) == topic
    ]
    for entry in entries_of(source, _is_for(queue, topic), limit):
        if entry is not None:
            found.append((entry[0], source.queue_id, entry[1]))
        else:
            await slices.yield_if_due()
    return nsmallest(limit, found)


async def _by_topic(delivery: "Delivery", query: PendingQuery) -> tuple[list[PendingRow], int, bool]:
    slices = TimeSlices()
    counts: dict[str, int] = {}
    due_ms: dict[str, int] = {}
    unsure: set[str] = set()
    for source in _sources(delivery, query):
        queue = delivery.pending_topics.queues.get(source.queue_id)
        if queue is None:
            continue
        there = queue.counts()
        if query.topic is not None:
            there = {query.topic: there[query.topic]} if query.topic in there else {}
        for topic, count in there.items():
            counts[topic] = counts.get(topic, 0) + count
        await slices.yield_if_due()
        found: dict[int, int] = {}
        unsure_numbers: set[int] = set()
        for _ in first_by_number(source, queue.number_at, len(queue.counts()), found, unsure_numbers):
            await slices.yield_if_due()
        for topic in there:
            number = queue.number_of(topic)
            if number in found:
                due_ms[topic] = min(found[number], due_ms.get(topic, found[number]))
            if number in unsure_numbers or (number not in found and -1 in unsure_numbers):
                unsure.add(topic)
    timed = _timed_of(delivery, query)
    if timed is not None:
        for topic, count in timed.counts().items():
            counts[topic] = counts.get(topic, 0) + count
    largest = nlargest(query.limit, counts.items(), key=lambda item: item[1])
    if timed is not None:
        for topic, first_ms in (await timed.next_due_by_topic({topic for topic, _ in largest})).items():
            due_ms[topic] = min(first_ms, due_ms.get(topic, first_ms))
    rows = [
        PendingRow(topic=topic, pending=count, next_due_ms=None if topic in unsure else due_ms.get(topic))
        for topic, count in largest
    ]
    return rows, sum(counts.values()), len(counts) > len(rows)


async def _by_due(api: Api, query: PendingQuery) -> tuple[list[PendingRow], int]:
    delivery, slices = api.broker.delivery, TimeSlices()
    now_ms = api.broker.now_ms()
    sources, timed = _sources(delivery, query), _timed_of(delivery, query)
    last_ms = max((run.dues[-1] for source in sources for run in source.runs()), default=now_ms)
    if timed is not None:
        last_ms = max(last_ms, await timed.latest_due_ms())
    if query.until_ms is not None:
        last_ms = min(last_ms, query.until_ms)
    width_ms = query.bucket_ms or _width_ms(last_ms - now_ms)
    count = min(max(last_ms // width_ms - now_ms // width_ms, 0) + 1, MAX_BUCKETS - 2)
    buckets = Buckets(now_ms, width_ms, count, query.until_ms)
    for source in sources:
        topic = query.topic
        if topic is None:
            for _ in count_by_due(source, buckets):
                await slices.yield_if_due()
            continue
        queue = delivery.pending_topics.queues.get(source.queue_id)
        if queue is None or queue.number_of(topic) is None:
            continue
        for entry in entries_of(source, _is_for(queue, topic)):
            if entry is not None:
                buckets.add(entry[0])
            else:
                await slices.yield_if_due()
    if timed is not None:
        await timed.count_by_due(buckets)
    for due_ms, queue_id, offset, _ in delivery.waiting_elsewhere():
        await slices.yield_if_due()
        if _is_selected(query, queue_id):
            queue = delivery.pending_topics.queues.get(queue_id)
            if query.topic is None or (queue is not None and queue.name_at(offset) == query.topic):
                buckets.add(due_ms)
    return _rows_of(buckets), width_ms


def _is_selected(query: PendingQuery | NextQuery, queue_id: int) -> bool:
    """Return whether the query selects entries of a queue of the schedule topic."""
    if queue_id == TIMELINE_QUEUE or query.kind == "timed":
        return False
    return query.level is None or queue_id == queue_of_level(query.level)


def _is_for(queue: "QueueTopics", topic: str) -> Callable[[int], bool]:
    return lambda offset: queue.name_at(offset) == topic


def _width_ms(span_ms: int) -> int:
    """Return a conventional width for a span of time."""
    return next((width for width in _WIDTHS_MS if span_ms <= width * _CHOSEN_BUCKETS), _WIDTHS_MS[-1])


def _rows_of(buckets: Buckets) -> list[PendingRow]:
    """Return the non-empty buckets as rows."""
    rows = []
    for index in range(buckets.rest + 1):
        count, first_ms = buckets.counts[index], buckets.first_ms[index]
        if count > 0 and first_ms is not None:
            start_ms, end_ms = buckets.start_of(index), buckets.end_of(index)
            row = PendingRow(
                pending=count,
                next_due_ms=first_ms,
                from_ms=first_ms if start_ms is None else start_ms,
                to_ms=end_ms,
            )
            rows.append(row)
    return rows


async def next_messages(api: Api, query: NextQuery) -> NextMessages:
    """Return the messages that are due next. ApiError if the parameters exclude each other."""
    broker, slices = api.broker, TimeSlices()
    delivery, limit = broker.delivery, min(query.limit, MAX_FOUND)
    _check(query)
    first: list[tuple[int, int, int]] = []
    total = 0
    timed = _timed_of(delivery, query)
    if timed is not None:
        total = timed.count()
        with reading_index():
            first += [(entry.due_ms, TIMELINE_QUEUE, entry.record) for entry in await timed.first(limit)]
    for source in _sources(delivery, query):
        if query.topic is not None:
            total += _count(delivery, source, query.topic)
            first += await _first_of_topic(delivery, source, query.topic, limit)
            continue
        total += source.pending
        first += [(due_ms, source.queue_id, offset) for due_ms, offset in next_entries(source, limit)]
        await slices.yield_if_due()
    if query.topic is None:
        for due_ms, queue_id, offset, _ in islice(delivery.waiting_elsewhere(), MAX_EXAMINED):
            if _is_selected(query, queue_id):
                first.append((due_ms, queue_id, offset))
    places = []
    for _, queue_id, offset in nsmallest(limit, first):
        if queue_id == TIMELINE_QUEUE:
            places.append(offset)
            continue
        entry = broker.store.read_entries(names.SCHEDULE_TOPIC, queue_id, offset, 1)
        if len(entry) == QUEUE_ENTRY.size:
            places.append(QUEUE_ENTRY.unpack(entry)[0])
        await slices.yield_if_due()
    async with api.reading():
        read = await api.in_thread(api.log_files().records, places)
    rows = [row for each in read if each is not None and (row := row_of(broker, each)).state == "pending"]
    return NextMessages(
        as_of_ms=broker.now_ms(),
        messages=rows,
        total=total,
        truncated=total > limit,
        limit=limit,
        complete=query.topic is None or _is_complete(delivery, query),
    )
