"""GET /api/v1/delay/forecast: how many pending messages will be due, by hour, day and topic."""

from heapq import nlargest
from typing import Final

from delaymq.api_types.forecast import DueRange, Forecast, TopicForecast
from delaymq.schedule.buckets import HORIZONS_MS, BoundedCounts, by_horizon, horizon_counts
from delaymq.schedule.timeline.inspection import count_each_by_due
from delaymq.server.api.messages.pending import Kind, shown_to
from delaymq.server.api.messages.selection import Selection
from delaymq.server.api.messages.timed import reading_index
from delaymq.server.api.routing import Api, Limit, Name, Query
from delaymq.server.log_reader import clean_text
from delaymq.server.time_slices import TimeSlices

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
HOURS: Final = 24
DAYS: Final = 30
_OFFSETS_MS: Final = sorted(
    {
        *HORIZONS_MS.values(),
        *(hour * _HOUR_MS for hour in range(1, HOURS + 1)),
        *(day * _DAY_MS for day in range(1, DAYS + 1)),
    }
)
"""Ends of the ranges that are counted; all others are sums of these."""


class ForecastQuery(Query):
    """Parameters of the forecast."""

    topic: Name | None = None
    kind: Kind | None = None
    """Only messages with a level, or only timed messages."""
    limit: Limit = 100
    """Number of topics with the most pending messages."""


async def forecast(api: Api, query: ForecastQuery) -> Forecast:
    """Return the numbers of messages that will be due."""
    delivery, now_ms = api.broker.delivery, api.broker.now_ms()
    selection = Selection(delivery.timeline, topic=query.topic, kind=query.kind, is_shown=shown_to(api.caller))
    counts = BoundedCounts([now_ms + ms for ms in _OFFSETS_MS])
    with reading_index():
        await selection.count_by_due(counts)
        topics = await selection.by_topic()
        largest = nlargest(query.limit, topics.items(), key=lambda item: item[1].messages)
        rows, slices = [], TimeSlices()
        for topic, (_, partitions) in largest:
            of_topic = by_horizon(now_ms)
            for _ in count_each_by_due(delivery.timeline, ((number, of_topic) for number in partitions)):
                await slices.yield_if_due()
            row = TopicForecast(topic=clean_text(topic), pending=sum(of_topic.counts), due=horizon_counts(of_topic))
            rows.append(row)
    return Forecast(
        as_of_ms=now_ms,
        pending=sum(counts.counts),
        due=_by_horizon(counts),
        hours=_ranges(counts, now_ms, _HOUR_MS, HOURS),
        days=_ranges(counts, now_ms, _DAY_MS, DAYS),
        topics=rows,
        truncated=len(topics) > len(rows),
        complete=query.kind == "timed" or not delivery.unknown_topics,
    )


def _until(counts: BoundedCounts, offset_ms: int) -> int:
    """Return the number of messages that are due before a time from now, which is one of _OFFSETS_MS."""
    return sum(counts.counts[: _OFFSETS_MS.index(offset_ms) + 1])


def _by_horizon(counts: BoundedCounts) -> dict[str, int]:
    ends = [_until(counts, offset_ms) for offset_ms in HORIZONS_MS.values()]
    each = [end - begin for begin, end in zip([0, *ends], [*ends, sum(counts.counts)], strict=True)]
    return dict(zip((*HORIZONS_MS, "more"), each, strict=True))


def _ranges(counts: BoundedCounts, now_ms: int, width_ms: int, count: int) -> list[DueRange]:
    ends = [_until(counts, number * width_ms) for number in range(1, count + 1)]
    ranges = []
    for number, (begin, end) in enumerate(zip([0, *ends], [*ends, sum(counts.counts)], strict=True)):
        from_ms = now_ms + number * width_ms if number else None
        to_ms = now_ms + (number + 1) * width_ms if number < count else None
        ranges.append(DueRange(from_ms=from_ms, to_ms=to_ms, pending=end - begin))
    return ranges
