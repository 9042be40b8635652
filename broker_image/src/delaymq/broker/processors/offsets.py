"""Offsets of queues and of consumer groups (14, 15, 29 to 32, 43, 45, 308, 314)."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from delaymq.blocking_steps import BlockingSteps
from delaymq.broker.groups.offset_commits import NOT_KEPT
from delaymq.broker.processors.accounts import view_of
from delaymq.broker.requests.errors import system_error
from delaymq.broker.requests.results import Deferred, TimeSliced, first_step
from delaymq.message import names
from delaymq.protocol.bodies import ConsumerOffsets, CorrectionOffsets, DelayOffsets
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import MAX_FRAME_BYTES, Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

if TYPE_CHECKING:
    from delaymq.access.views import View
    from delaymq.broker.broker import Broker
    from delaymq.broker.groups.consumer_offsets import OffsetTable
    from delaymq.broker.requests.session import Session


_ENCODED_AT_ONCE: Final = 10_000
"""Maximum number of offsets that are encoded on the event loop. Larger tables are encoded in a thread."""
_MAX_VISIBLE: Final = 50_000
"""Maximum number of offsets in a response to an account that does not see all of them. They are encoded in one step."""
_COPIED_AT_ONCE: Final = 20_000
"""Offsets that are copied in one step. Each topic counts as 100."""
_COMPARED_AT_ONCE: Final = 500
"""Group offsets that are compared in one step."""
_MAX_RESPONSE_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""Size of a response body. Clients accept frames of up to 16 MiB."""
NOT_CORRECTED: Final = 2**63 - 1
"""Response of 308 for a queue in which the group must not be corrected."""


def query_consumer_offset(broker: Broker, session: Session, command: Command) -> Response:
    """Handle QUERY_CONSUMER_OFFSET (14): return the offset of a group.

    A new group starts at 0 if the start of the queue is recent. Otherwise the client decides.
    """
    header = QueryConsumerOffsetRequestHeader.from_fields(command.fields)
    offset = broker.offsets.get(header.topic, header.consumer_group, header.queue_id)
    if offset is None or offset < 0:
        store = broker.store
        low, high = store.queue_bounds(header.topic, header.queue_id)
        if low > 0 or (high > 0 and _head_is_far(broker, header.topic, header.queue_id)):
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            )
        offset = 0
    return _offset(offset)


def _head_is_far(broker: Broker, topic: str, queue_id: int) -> bool:
    entries = broker.store.read_entries(topic, queue_id, 0, 1)
    return broker.store.end_offset - int.from_bytes(entries[:8], "big") > broker.in_memory_bytes


def update_consumer_offset(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle UPDATE_CONSUMER_OFFSET (15): commit a group's offset, which may move backwards.

    Consumers send this request one-way and therefore do not receive rejections.
    """
    header = UpdateConsumerOffsetRequestHeader.from_fields(command.fields)
    problem = broker.committing.commit(header.topic, header.consumer_group, header.queue_id, header.commit_offset)
    if problem is not None:
        raise problem
    # Consumers do not wait for a response, but tools that reset a group do.
    return Response() if command.is_oneway else broker.when_replicas_know(Response(), offsets=True)


def search_offset(broker: Broker, session: Session, command: Command) -> Response:
    """Handle SEARCH_OFFSET_BY_TIMESTAMP (29): return the offset of the message that was stored nearest to a time."""
    header = SearchOffsetRequestHeader.from_fields(command.fields)
    return _offset(broker.store.offset_by_time(header.topic, header.queue_id, header.timestamp))


def get_max_offset(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_MAX_OFFSET (30): return the offset of the next entry."""
    header = GetMaxOffsetRequestHeader.from_fields(command.fields)
    return _offset(broker.store.queue_bounds(header.topic, header.queue_id)[1])


def get_min_offset(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_MIN_OFFSET (31): return the offset of the oldest entry."""
    header = GetMinOffsetRequestHeader.from_fields(command.fields)
    return _offset(broker.store.queue_bounds(header.topic, header.queue_id)[0])


def get_earliest_store_time(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_EARLIEST_MSG_STORETIME (32): return the store time of the oldest message, −1 without messages."""
    header = GetEarliestMsgStoretimeRequestHeader.from_fields(command.fields)
    oldest = broker.store.queue_bounds(header.topic, header.queue_id)[0]
    stored_ms = broker.store.store_time_of(header.topic, header.queue_id, oldest)
    return Response(fields={"timestamp": str(-1 if stored_ms is None else stored_ms)})


def get_all_consumer_offset(
    broker: Broker, session: Session, command: Command
) -> Response | BlockingSteps[Response] | TimeSliced:
    """Handle GET_ALL_CONSUMER_OFFSET (43): return the current consumerOffset.json, or the visible part of it."""
    view = view_of(broker, session, command)
    if view is not None:
        return first_step(_visible_offsets(broker, view))
    if broker.offsets.entries <= _ENCODED_AT_ONCE:
        return Response(body=broker.offsets.encode())
    return _large_table(broker.offsets)


def _large_table(offsets: OffsetTable) -> BlockingSteps[Response]:
    made: list[bytes] = []
    yield lambda: made.append(offsets.encode())
    if len(made[0]) > _MAX_RESPONSE_BYTES:
        raise system_error(
            f"the consumer offsets have {len(made[0])} bytes, too many for a response: use GET /api/v1/store/positions"
        )
    return Response(body=made[0])


def _visible_offsets(broker: Broker, view: View) -> Generator[None, None, Response]:
    visible: dict[str, dict[int, int]] = {}
    left = _MAX_VISIBLE
    for keys in broker.offsets.key_steps(_COMPARED_AT_ONCE):
        for key in keys:
            topic, _, group = key.partition("@")
            if view.shows_progress(topic, group):
                visible[key] = dict(broker.offsets.queues_of(topic, group))
                left -= len(visible[key])
        if left < 0:
            raise system_error(
                f"more than {_MAX_VISIBLE} consumer offsets are visible to this account, too many for a response:"
                " request one topic of one group (208)"
            )
        yield
    return Response(body=ConsumerOffsets(visible).encode())


def get_all_delay_offset(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_ALL_DELAY_OFFSET (45): return the current delayOffset.json."""
    return Response(body=DelayOffsets(broker.delivery.delay_offsets()).encode())


def clone_group_offset(broker: Broker, session: Session, command: Command) -> Response | Deferred | TimeSliced:
    """Handle CLONE_GROUP_OFFSET (314): copy a group's offsets to another group.

    Copies one topic, or all topics in which the source group has offsets. RocketMQ's broker copies nothing if no topic
    is named, but mqadmin always names one.
    """
    header = CloneGroupOffsetRequestHeader.from_fields(command.fields)
    problem = names.group_problem(header.dest_group)
    if problem is not None:
        raise system_error(problem)
    return first_step(_clone(broker, header), queued=False)


def _clone(broker: Broker, header: CloneGroupOffsetRequestHeader) -> Generator[None, None, Response | Deferred]:
    source, destination = header.src_group, header.dest_group
    named = (header.topic or "").strip()
    topics = [named] if named else (yield from broker.offsets.topic_steps(source))
    copied = 0
    is_seen = False
    for name in topics:
        if broker.topics.get(name) is None:
            continue
        if not header.offline and not broker.clients.consumes(source, name):
            continue
        if copied >= _COPIED_AT_ONCE:
            copied = 0
            yield
        if not broker.offsets.clone(name, source, destination):
            raise system_error(NOT_KEPT)
        is_seen = is_seen or bool(broker.offsets.queues_of(name, destination))
        copied += 100 + len(broker.offsets.queues_of(name, source))
    if is_seen:
        broker.activity.note_activity(destination, broker.now_ms())
    return broker.when_replicas_know(Response(), offsets=True)


def query_correction_offset(broker: Broker, session: Session, command: Command) -> Response | TimeSliced:
    """Handle QUERY_CORRECTION_OFFSET (308): return, for each queue of a topic, the lowest offset of any group.

    Groups in `filterGroups` are omitted. A queue in which `compareGroup` is already behind has NOT_CORRECTED.
    RocketMQ's broker deletes the offsets of the omitted groups, and then has none to compare with.
    """
    header = QueryCorrectionOffsetHeader.from_fields(command.fields)
    return first_step(_correction(broker, header, view_of(broker, session, command)))


def _correction(
    broker: Broker, header: QueryCorrectionOffsetHeader, view: View | None
) -> Generator[None, None, Response]:
    topic = header.topic
    left_out = {*(header.filter_groups or "").split(",")}
    least: dict[int, int] = {}
    left = _COMPARED_AT_ONCE
    for group in (yield from broker.offsets.group_steps(topic)):
        if group in left_out or (view is not None and not view.shows_group(group)):
            continue
        queues = broker.offsets.queues_of(topic, group)
        for queue_id in list(queues):
            offset = queues[queue_id]
            # Offsets below the start of the queue belong to inactive groups.
            if offset >= broker.store.queue_bounds(topic, queue_id)[0]:
                least[queue_id] = min(offset, least.get(queue_id, offset))
            left -= 1
            if left <= 0:
                left = _COMPARED_AT_ONCE
                yield
    queues = broker.offsets.queues_of(topic, header.compare_group)
    for number, queue_id in enumerate(list(queues), 1):
        if queue_id in least and least[queue_id] > queues[queue_id]:
            least[queue_id] = NOT_CORRECTED
        if number % (4 * _COMPARED_AT_ONCE) == 0:
            yield
    if len(least) > _COMPARED_AT_ONCE:
        yield
    return Response(body=CorrectionOffsets(least).encode())


def _offset(offset: int) -> Response:
    return Response(fields={"offset": str(offset)})
