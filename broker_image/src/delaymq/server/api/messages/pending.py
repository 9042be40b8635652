"""GET /api/v1/delay/pending: counts of pending messages by level, topic, group and due time.

Timed messages have no level; by level, they are counted separately.
"""

from collections.abc import Callable
from heapq import nlargest
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol

import msgspec

from delaymq.api_types.pending import Pending, PendingRow
from delaymq.message.levels import MAX_LEVELS, queue_of_level
from delaymq.schedule.buckets import Buckets
from delaymq.server.api.messages.selection import Selection
from delaymq.server.api.messages.timed import reading_index
from delaymq.server.api.routing import Api, ApiError, Limit, Name, Query, TimeMs
from delaymq.server.http.sign_in.callers import Caller
from delaymq.server.log_reader import clean_text

if TYPE_CHECKING:
    from delaymq.broker.delivery import Delivery

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

    by: Literal["level", "topic", "group", "due"] = "level"
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
    """By topic and by group: number of topics or groups with the most pending messages."""


async def pending(api: Api, query: PendingQuery) -> Pending:
    """Return counts of pending messages. ApiError if the parameters exclude each other."""
    delivery, truncated = api.broker.delivery, False
    check_kind(query)
    with reading_index():
        match query.by:
            case "level":
                rows = await _by_level(api, query)
                total, bucket_ms = sum(row.pending for row in rows), None
            case "topic":
                rows, total, truncated = await _by_topic(api, query)
                bucket_ms = None
            case "group":
                rows, total, truncated = await _by_group(delivery, query)
                bucket_ms = None
            case "due":
                rows, bucket_ms = await _by_due(api, query)
                total = sum(row.pending for row in rows)
    complete = query.by == "group" or is_complete(delivery, query) or (query.by != "topic" and query.topic is None)
    return Pending(
        as_of_ms=api.broker.now_ms(),
        by=query.by,
        rows=rows,
        total=total,
        complete=complete,
        truncated=truncated,
        bucket_ms=bucket_ms,
    )


class Filtered(Protocol):
    """A query with filters by level and kind."""

    level: int | None
    kind: Kind | None


def check_kind(query: Filtered) -> None:
    """Raise ApiError if level and kind exclude each other."""
    if query.kind == "timed" and query.level is not None:
        raise ApiError(400, "bad_request", "timed messages have no level: send level or kind=timed, and not both")


def is_complete(delivery: "Delivery", query: Filtered) -> bool:
    """Return whether the topics of all messages that the query selects are known."""
    return query.kind == "timed" or not delivery.unknown_topics


def shown_to(caller: Caller) -> Callable[[str], bool] | None:
    """Return whether a topic is known to a caller; None if all are."""
    return None if caller.sees_all else caller.sees_topic


def _selection(api: Api, query: PendingQuery) -> Selection:
    return Selection(
        api.broker.delivery.timeline,
        topic=query.topic,
        level=query.level,
        kind=query.kind,
        is_shown=shown_to(api.caller),
    )


async def _by_level(api: Api, query: PendingQuery) -> list[PendingRow]:
    delivery, is_shown = api.broker.delivery, shown_to(api.caller)
    next_due_ms = delivery.next_due_ms()
    rows, timed_rows = [], []
    for level, (count, _) in (await _selection(api, query).by_level()).items():
        due_ms = next_due_ms.get(queue_of_level(level))
        if query.topic is not None or is_shown is not None:
            first = await Selection(delivery.timeline, topic=query.topic, level=level, is_shown=is_shown).first(1)
            due_ms = first[0].due_ms if first else None
        if level:
            rows.append(PendingRow(level=level, pending=count, next_due_ms=due_ms))
        else:
            timed_rows.append(PendingRow(timed=True, pending=count, next_due_ms=due_ms))
    return rows + timed_rows


async def _by_topic(api: Api, query: PendingQuery) -> tuple[list[PendingRow], int, bool]:
    delivery, selection = api.broker.delivery, _selection(api, query)
    topics = await selection.by_topic()
    largest = nlargest(query.limit, topics.items(), key=lambda item: item[1].messages)
    due_ms = await selection.next_due_by_topic([number for _, (_, numbers) in largest for number in numbers])
    rows = [
        PendingRow(
            topic=clean_text(topic),
            pending=each.messages,
            next_due_ms=due_ms.get(topic),
            paused=delivery.timeline.queues.is_paused(topic, ""),
        )
        for topic, each in largest
    ]
    return rows, sum(each.messages for each in topics.values()), len(topics) > len(rows)


async def _by_group(delivery: "Delivery", query: PendingQuery) -> tuple[list[PendingRow], int, bool]:
    topic = query.topic
    if topic is None:
        raise ApiError(400, "bad_request", "by=group needs topic: send the topic of the groups")
    if query.level is not None or query.kind == "level":
        raise ApiError(400, "bad_request", "messages of groups are timed: omit level and kind")
    groups = await Selection(delivery.timeline, topic=topic).groups()
    largest = nlargest(query.limit, groups.items(), key=lambda item: item[1])
    is_paused = delivery.timeline.queues.is_paused
    rows = [
        PendingRow(group=clean_text(group), pending=count, next_due_ms=None, paused=is_paused(topic, group))
        for group, count in largest
    ]
    return rows, sum(groups.values()), len(groups) > len(rows)


async def _by_due(api: Api, query: PendingQuery) -> tuple[list[PendingRow], int]:
    selection, now_ms = _selection(api, query), api.broker.now_ms()
    last_ms = max(now_ms, await selection.latest_due_ms())
    if query.until_ms is not None:
        last_ms = min(last_ms, query.until_ms)
    width_ms = query.bucket_ms or _width_ms(last_ms - now_ms)
    count = min(max(last_ms // width_ms - now_ms // width_ms, 0) + 1, MAX_BUCKETS - 2)
    buckets = Buckets(now_ms, width_ms, count, query.until_ms)
    await selection.count_by_due(buckets)
    return _rows_of(buckets), width_ms


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
