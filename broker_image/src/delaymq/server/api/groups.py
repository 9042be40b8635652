"""GET /api/v1/groups and /api/v1/groups/{group}: consumer groups."""

from typing import TYPE_CHECKING, Final

from delaymq.api_types.groups import GroupBase, GroupDetails, GroupRow, Groups, Member, Progress, Subscription
from delaymq.message import names
from delaymq.server.api.routing import Api, ApiError, Limit, Name, Query
from delaymq.server.api.topics import page_of
from delaymq.server.group_lag import queue_count, topics_and_lag
from delaymq.server.time_slices import TimeSlices
from delaymq.store.reader import QUEUE_ENTRY

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

MAX_SHOWN_TOPICS: Final = 1_000
"""Maximum topics shown of one group; sums include all."""
MAX_SHOWN_MEMBERS: Final = 1_000
MAX_SHOWN_QUEUES: Final = 4_096
"""Maximum rows of one group's progress."""


class GroupsQuery(Query):
    """Parameters of the list of groups."""

    contains: Name = ""
    limit: Limit = 100
    after: Name = ""


class GroupQuery(Query):
    """Parameters of one group."""

    group: Name


async def groups(api: Api, query: GroupsQuery) -> Groups:
    """Return a page of groups."""
    broker, slices = api.broker, TimeSlices()
    wanted = query.contains.lower()
    offset_topics = await _topics_by_group(broker, slices)
    known = {*broker.groups.table, *broker.clients.group_names(broker.now_ms())}
    candidates = []
    total = 0
    for name in known:
        await slices.yield_if_due()
        is_shown = not names.is_system_group(name) or name in offset_topics
        if is_shown and wanted in name.lower() and api.caller.sees_group(name):
            total += 1
            if name > query.after:
                candidates.append(name)
    page, following = await page_of(candidates, query.limit)
    rows = [await _row(api, name, offset_topics.get(name, []), slices) for name in page]
    return Groups(as_of_ms=broker.now_ms(), groups=rows, total=total, next=following)


async def group(api: Api, query: GroupQuery) -> GroupDetails:
    """Return one group with its members and progress; raise ApiError 404 if it does not exist."""
    broker, slices, name = api.broker, TimeSlices(), query.group
    now_ms = broker.now_ms()
    offset_topics = [
        topic for topic in (await _topics_by_group(broker, slices)).get(name, []) if topic in broker.topics.table
    ]
    if name not in broker.groups.table and broker.clients.group(name, now_ms) is None and not offset_topics:
        raise ApiError(404, "no_such_group", f"this broker has no group {name[:255]!r}: see /api/v1/groups")
    row = await _row(api, name, offset_topics, slices)
    progress, truncated = await _progress(api, name, row.topics, slices)
    connected = broker.clients.group(name, now_ms)
    subscriptions = list(connected.subscriptions.values()) if connected is not None else []
    subscriptions = [each for each in subscriptions if api.caller.sees_topic(each.topic)]
    members = _members(broker, name, now_ms)
    return GroupDetails(
        as_of_ms=now_ms,
        members=members[:MAX_SHOWN_MEMBERS],
        subscriptions=[
            Subscription(topic=each.topic, expression=each.sub_string, type=each.expression_type or "TAG")
            for each in sorted(subscriptions, key=lambda each: each.topic)[:MAX_SHOWN_TOPICS]
        ],
        progress=progress,
        truncated=truncated or max(len(subscriptions), len(row.topics)) >= MAX_SHOWN_TOPICS,
        **{field: getattr(row, field) for field in GroupBase.__struct_fields__},
    )


async def _topics_by_group(broker: "Broker", slices: TimeSlices) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in list(broker.offsets.table):
        await slices.yield_if_due()
        topic, _, name = key.partition("@")
        found.setdefault(name, []).append(topic)
    return found


async def _row(api: Api, name: str, offset_topics: list[str], slices: TimeSlices) -> GroupRow:
    """Return the row of a group, without topics that the caller may not know, and without their lag."""
    broker, now_ms = api.broker, api.broker.now_ms()
    connected = broker.clients.group(name, now_ms)
    topics, lag = await topics_and_lag(broker, name, offset_topics, slices, api.caller.sees_topic)
    low, high = broker.store.queue_bounds(names.dead_letter_topic(name), 0)
    return GroupRow(
        group=name,
        model=connected.message_model if connected is not None else None,
        consume_type=connected.consume_type if connected is not None else None,
        members=len(broker.clients.member_ids(name, now_ms)),
        topics=topics[:MAX_SHOWN_TOPICS],
        lag=lag,
        dead_letters=high - low,
    )


def _members(broker: "Broker", name: str, now_ms: int) -> list[Member]:
    connected = broker.clients.consumers.get(name)
    members = [
        Member(
            client_id=client.client_id,
            address=client.session.remote_address,
            language=client.language,
            version=client.version,
        )
        for client in (list(connected.members.values()) if connected is not None else [])
    ]
    there = {member.client_id for member in members}
    members += [
        Member(client_id=client_id, address=None, language=None, version=None)
        for client_id in broker.clients.member_ids(name, now_ms)
        if client_id not in there
    ]
    return sorted(members, key=lambda member: member.client_id)


async def _progress(api: Api, name: str, topics: list[str], slices: TimeSlices) -> tuple[list[Progress], bool]:
    """Return the rows of queues with messages or an offset, and whether rows were omitted."""
    broker = api.broker
    store = broker.store
    rows: list[Progress] = []
    consumed: list[int] = []
    truncated = False
    for topic in topics:
        config = broker.topics.table.get(topic)
        if config is None:
            continue
        offsets = broker.offsets.queues_of(topic, name)
        for queue_id in range(queue_count(config)):
            await slices.yield_if_due()
            low, high = store.queue_bounds(topic, queue_id)
            offset = offsets.get(queue_id)
            if high == 0 and offset is None:
                continue
            if len(rows) >= MAX_SHOWN_QUEUES:
                truncated = True
                break
            row = Progress(
                topic=topic,
                queue_id=queue_id,
                min_offset=low,
                max_offset=high,
                consumer_offset=offset,
                lag=max(high - max(low, offset or 0), 0),
                last_consumed_ms=None,
            )
            entry = store.read_entries(topic, queue_id, offset - 1, 1) if offset else b""
            consumed.append(QUEUE_ENTRY.unpack(entry)[0] if len(entry) == QUEUE_ENTRY.size else -1)
            rows.append(row)
    async with api.reading():
        times = await api.in_thread(api.log_files().store_times_ms, consumed)
    for row, time_ms in zip(rows, times, strict=True):
        row.last_consumed_ms = time_ms
    return rows, truncated
