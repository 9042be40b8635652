"""GET /api/v1/topics and /api/v1/topics/{topic}: topics."""

from heapq import nsmallest
from typing import TYPE_CHECKING, Literal

from delaymq.api_types.topics import Kind, QueueRow, TopicDetails, TopicRow, Topics
from delaymq.broker.topics import READ, WRITE
from delaymq.message import names
from delaymq.protocol.bodies import TopicConfig
from delaymq.server.api.routing import Api, ApiError, Limit, Name, Query
from delaymq.server.group_lag import queue_count
from delaymq.server.time_slices import TimeSlices
from delaymq.store.reader import QUEUE_ENTRY

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker


MAX_SHOWN_QUEUES = 16_384
"""Maximum queues shown of one topic: the maximum that a topic can have."""
MAX_SHOWN_GROUPS = 1_000
"""Maximum groups shown of one topic."""


class TopicsQuery(Query):
    """Parameters of the list of topics."""

    kind: Literal["normal", "retry", "deadLetter", "system", "all"] = "normal"
    contains: Name = ""
    limit: Limit = 100
    after: Name = ""


class TopicQuery(Query):
    """Parameters of one topic."""

    topic: Name


def kind_of(broker: "Broker", topic: str) -> Kind:
    """Return the kind of a topic."""
    if topic.startswith(names.RETRY_PREFIX):
        return "retry"
    if topic.startswith(names.DLQ_PREFIX):
        return "deadLetter"
    return "system" if broker.topics.is_system(topic) else "normal"


async def page_of(candidates: list[str], limit: int) -> tuple[list[str], str | None]:
    """Return the first `limit` names, and the value of `next`."""
    page = nsmallest(limit + 1, candidates)
    return page[:limit], page[limit - 1] if len(page) > limit else None


async def topics(api: Api, query: TopicsQuery) -> Topics:
    """Return a page of topics."""
    broker, slices = api.broker, TimeSlices()
    wanted = query.contains.lower()
    total = 0
    candidates = []
    for name in list(broker.topics.table):
        await slices.yield_if_due()
        is_wanted = wanted in name.lower() and query.kind in ("all", kind_of(broker, name))
        if is_wanted and api.caller.sees_topic(name):
            total += 1
            if name > query.after:
                candidates.append(name)
    page, following = await page_of(candidates, query.limit)
    rows = []
    newest: list[int] = []
    for name in page:
        config = broker.topics.table.get(name)
        if config is None:
            continue  # deleted meanwhile
        row, last_offset = await _row(broker, config, slices)
        rows.append(row)
        newest.append(last_offset)
    async with api.reading():
        times = await api.in_thread(api.log_files().store_times_ms, newest)
    for row, time_ms in zip(rows, times, strict=True):
        row.last_stored_ms = time_ms
    return Topics(as_of_ms=broker.now_ms(), topics=rows, total=total, next=following)


async def topic(api: Api, query: TopicQuery) -> TopicDetails:
    """Return one topic with its queues and groups; raise ApiError 404 if it does not exist."""
    broker, slices = api.broker, TimeSlices()
    config = broker.topics.table.get(query.topic)
    if config is None:
        raise no_topic(query.topic)
    row, last_offset = await _row(broker, config, slices)
    queues = []
    newest = [last_offset]
    for queue_id in range(min(queue_count(config), MAX_SHOWN_QUEUES)):
        await slices.yield_if_due()
        low, high = broker.store.queue_bounds(query.topic, queue_id)
        queues.append(QueueRow(queue_id=queue_id, min_offset=low, max_offset=high, last_stored_ms=None))
        newest.append(_last_offset(broker, query.topic, queue_id, low, high))
    async with api.reading():
        times = await api.in_thread(api.log_files().store_times_ms, newest)
    row.last_stored_ms = times[0]
    for queue, time_ms in zip(queues, times[1:], strict=True):
        queue.last_stored_ms = time_ms
    groups = [name for name in await groups_of(broker, query.topic, slices) if api.caller.sees_group(name)]
    return TopicDetails(
        as_of_ms=broker.now_ms(),
        pending_bytes=None if row.pending is None else broker.delivery.timeline.partitions.totals(query.topic).bytes,
        delay_settings=broker.delay_settings.of_topic(query.topic),
        delay_treatment=broker.delivery.control.treatments.in_progress(query.topic),
        queues=queues,
        groups=groups[:MAX_SHOWN_GROUPS],
        **{field: getattr(row, field) for field in TopicRow.__struct_fields__},
    )


def no_topic(name: str) -> ApiError:
    """Return the error for an unknown topic."""
    return ApiError(404, "no_such_topic", f"this broker has no topic {name[:127]!r}: see /api/v1/topics")


async def groups_of(broker: "Broker", topic: str, slices: TimeSlices) -> list[str]:
    """Return the groups with offsets or members for a topic."""
    found = set(broker.clients.groups_of_topic(topic))
    for key in list(broker.offsets.table):
        await slices.yield_if_due()
        if key.startswith(topic) and key.partition("@")[0] == topic:
            found.add(key.partition("@")[2])
    return sorted(found)


async def _row(broker: "Broker", config: TopicConfig, slices: TimeSlices) -> tuple[TopicRow, int]:
    """Return a topic's row without the time, and the physical offset of its newest record (-1: none)."""
    name, store = config.topic_name, broker.store
    messages, last_offset = 0, -1
    for queue_id in range(queue_count(config)):
        low, high = store.queue_bounds(name, queue_id)
        if high > low:
            messages += high - low
            last_offset = max(last_offset, _last_offset(broker, name, queue_id, low, high))
        await slices.yield_if_due()
    row = TopicRow(
        topic=name,
        kind=kind_of(broker, name),
        permission=_permission(config.perm),
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        messages=messages,
        stored=broker.stats.stored_of(name),
        delivered=broker.delivery.counters.delivered.get(name, 0),
        pending=broker.delivery.pending_of_topic(name),
        last_stored_ms=None,
    )
    return row, last_offset


def _last_offset(broker: "Broker", topic: str, queue_id: int, low: int, high: int) -> int:
    """Return the physical offset of a queue's newest record; -1 if there is none."""
    entry = broker.store.read_entries(topic, queue_id, high - 1, 1) if high > low else b""
    return int(QUEUE_ENTRY.unpack(entry)[0]) if len(entry) == QUEUE_ENTRY.size else -1


def _permission(perm: int) -> Literal["", "r", "w", "rw"]:
    if perm & READ:
        return "rw" if perm & WRITE else "r"
    return "w" if perm & WRITE else ""
