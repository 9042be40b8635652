"""Responses with an entry for each queue of a topic (202, 208, 303, 317), built in time slices.

A topic has up to 16,384 queues, and 317 covers the topics of all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from delaymq.broker.groups.consumer_offsets import KEYS_AT_ONCE
from delaymq.broker.processors.accounts import view_of
from delaymq.broker.requests.errors import system_error, topic_missing
from delaymq.broker.requests.results import TimeSliced, first_step
from delaymq.protocol.bodies import ConsumeOffset, QueueTimeSpan, TopicConfig, TopicOffset
from delaymq.protocol.command import MAX_FRAME_BYTES, Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from delaymq.protocol.queue_entries import element_template, entry_template, text

if TYPE_CHECKING:
    from delaymq.access.views import View
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

QUEUES_AT_ONCE: Final = 64
"""Queues of one step. Each takes some microseconds, or some tens of microseconds if a file has to be opened."""
GROUPS_AT_ONCE: Final = 256
"""Groups without offsets that one step of 317 handles."""
MAX_RESPONSE_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""Maximum size of a body. Clients accept frames of up to 16 MiB."""
CHUNK_BYTES: Final = 64 * 1024
"""Size at which collected pieces are joined."""
LARGE_BYTES: Final = 1024 * 1024
"""A body of this size or more is joined in a step of its own."""

Steps = Generator[None, None, Response]


class Parts:
    """A JSON body under construction, in pieces. Its size is bounded by that of a response."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._parts: list[bytes] = []
        self._bytes = self._joined_bytes = 0

    def add(self, part: bytes) -> None:
        """Add the next piece. Raises RequestError 1 if the response would become too large."""
        self._bytes += len(part)
        if self._bytes > MAX_RESPONSE_BYTES:
            raise _too_large()
        self._parts.append(part)
        if self._bytes - self._joined_bytes >= CHUNK_BYTES:
            self._join()

    def _join(self) -> None:
        # Releasing tens of thousands of pieces at the end would take longer than a step may.
        self._chunks.append(b"".join(self._parts))
        self._parts.clear()
        self._joined_bytes = self._bytes

    def queues(self, count: int, entry: Callable[[int], bytes], separator: bytes = b"") -> Generator[None, None, None]:
        """Add the entries of queues 0 to `count`. `separator` precedes the first entry."""
        for first in range(0, count, QUEUES_AT_ONCE):
            if first:
                yield
            self.add(
                separator + b",".join([entry(number) for number in range(first, min(first + QUEUES_AT_ONCE, count))])
            )
            separator = b","

    def answer(self) -> Steps:
        """Return the response with everything that was added."""
        self._join()
        if self._bytes < LARGE_BYTES:
            return Response(body=b"".join(self._chunks))
        yield
        body = b"".join(self._chunks)
        self._chunks.clear()
        yield
        return Response(body=body)


def _too_large() -> RequestError:
    return system_error(
        f"the response would exceed {MAX_RESPONSE_BYTES} bytes: request one topic of one group (208), or use"
        " GET /api/v1/groups"
    )


def get_topic_stats(broker: Broker, session: Session, command: Command) -> Response | TimeSliced:
    """Handle GET_TOPIC_STATS_INFO (202): return the bounds of a topic's queues and the times of their last messages."""
    name = GetTopicStatsInfoRequestHeader.from_fields(command.fields).topic
    topic = broker.topics.get(name)
    if topic is None:
        raise topic_missing(name)
    return first_step(_topic_stats(broker, topic))


def _topic_stats(broker: Broker, topic: TopicConfig) -> Steps:
    store, name = broker.store, topic.topic_name
    template = entry_template(broker.config.broker_name, name, TopicOffset)

    def entry(queue_id: int) -> bytes:
        low, high = store.queue_bounds(name, queue_id)
        last_ms = store.store_time_of(name, queue_id, high - 1) if high > 0 else None
        return template % (queue_id, max(low, 0), max(high, 0), last_ms or 0)

    parts = Parts()
    parts.add(b'{"offsetTable":{')
    yield from parts.queues(topic.write_queue_nums, entry)
    parts.add(b"}}")
    return (yield from parts.answer())


def get_consume_stats(broker: Broker, session: Session, command: Command) -> Response | TimeSliced:
    """Handle GET_CONSUME_STATS (208): return a group's progress in one topic, or in all topics with its offsets."""
    header = GetConsumeStatsRequestHeader.from_fields(command.fields)
    view = view_of(broker, session, command)
    return first_step(_consume_stats(broker, header.consumer_group, header.topic, view))


def _consume_stats(broker: Broker, group: str, named: str | None, view: View | None) -> Steps:
    topics = [named] if named else (yield from broker.offsets.topic_steps(group))
    if view is not None:
        topics = [topic for topic in topics if view.shows_progress(topic, group)]
    parts = Parts()
    tps, separator = 0.0, b""
    parts.add(b'{"offsetTable":{')
    for name in topics:
        topic = broker.topics.get(name)
        if topic is not None and broker.clients.consumes(group, name):
            if separator:
                yield
            yield from _progress(broker, parts, topic, group, separator)
            separator = separator or (b"," if topic.read_queue_nums > 0 else b"")
            tps += broker.stats.by_key.consume_tps(name, group, broker.now_ms())
    parts.add(b'},"consumeTps":%b}' % msgspec.json.encode(tps))
    return (yield from parts.answer())


def get_broker_consume_stats(broker: Broker, session: Session, command: Command) -> Response | TimeSliced:
    """Handle GET_BROKER_CONSUME_STATS (317): return the progress of all groups."""
    is_order = GetConsumeStatsInBrokerHeader.from_fields(command.fields).is_order
    return first_step(_broker_consume_stats(broker, view_of(broker, session, command), is_order=is_order))


def _broker_consume_stats(broker: Broker, view: View | None, *, is_order: bool) -> Steps:
    topics = yield from _topics_by_group(broker, view, is_order=is_order)
    parts = Parts()
    parts.add(b'{"brokerAddr":%b,"consumeStatsList":[' % text(broker.address))
    total_diff = 0
    groups = [group for group in broker.groups.table if view is None or view.shows_group(group)]
    for number, group in enumerate(groups):
        if number and number % GROUPS_AT_ONCE == 0:
            yield
        parts.add(b"%b{%b:[" % (b"," if number else b"", text(group)))
        separator = b""
        for topic in topics.pop(group, ()):
            parts.add(separator + b'{"offsetTable":{')
            total_diff += yield from _progress(broker, parts, topic, group)
            tps = broker.stats.by_key.consume_tps(topic.topic_name, group, broker.now_ms())
            parts.add(b'},"consumeTps":%b}' % msgspec.json.encode(tps))
            separator = b","
            yield
        parts.add(b"]}")
    parts.add(b'],"totalDiff":%d}' % total_diff)
    return (yield from parts.answer())


def _topics_by_group(
    broker: Broker, view: View | None, *, is_order: bool
) -> Generator[None, None, dict[str, list[TopicConfig]]]:
    """Return the topics in which groups have offsets and which they may still read, in the order of the table.

    Raises RequestError 1, before any queue is read, if no response could hold them.
    """
    least_bytes = len(entry_template(broker.config.broker_name, "", ConsumeOffset) % (0, 0, 0, 0))
    total_bytes = 0
    found: dict[str, list[TopicConfig]] = {}
    for keys in broker.offsets.key_steps(KEYS_AT_ONCE // 4):
        for key in keys:
            name, _, group = key.partition("@")
            topic = broker.topics.get(name)
            if topic is None or (is_order and not topic.order) or group not in broker.groups.table:
                continue
            if view is not None and not view.shows_progress(name, group):
                continue
            if broker.clients.consumes(group, name):
                total_bytes += topic.read_queue_nums * (least_bytes + len(name))
                if total_bytes > MAX_RESPONSE_BYTES:
                    raise _too_large()
                found.setdefault(group, []).append(topic)
        yield
    return found


def _progress(
    broker: Broker, parts: Parts, topic: TopicConfig, group: str, separator: bytes = b""
) -> Generator[None, None, int]:
    """Add the queues of a topic. Returns the number of messages that the group has not yet consumed."""
    store, offsets, name = broker.store, broker.offsets, topic.topic_name
    template = entry_template(broker.config.broker_name, name, ConsumeOffset)
    behind = 0

    def entry(queue_id: int) -> bytes:
        nonlocal behind
        high = max(store.queue_bounds(name, queue_id)[1], 0)
        offset = max(offsets.queues_of(name, group).get(queue_id) or 0, 0)
        last_ms = store.store_time_of(name, queue_id, offset - 1) if offset else None
        behind += high - offset
        return template % (queue_id, high, offset, last_ms or 0)

    yield from parts.queues(topic.read_queue_nums, entry, separator)
    return behind


def query_consume_time_span(broker: Broker, session: Session, command: Command) -> Response | TimeSliced:
    """Handle QUERY_CONSUME_TIME_SPAN (303): return the store times between which a group has consumed."""
    header = QueryConsumeTimeSpanRequestHeader.from_fields(command.fields)
    topic = broker.topics.get(header.topic)
    if topic is None:
        raise topic_missing(header.topic)
    return first_step(_time_spans(broker, topic, header.group))


def _time_spans(broker: Broker, topic: TopicConfig, group: str) -> Steps:
    store, offsets, name = broker.store, broker.offsets, topic.topic_name
    template = element_template(broker.config.broker_name, name, QueueTimeSpan)

    def entry(queue_id: int) -> bytes:
        low, high = store.queue_bounds(name, queue_id)
        offset = offsets.queues_of(name, group).get(queue_id)
        times = _store_times(broker, name, queue_id, (low, high - 1, (offset or 0) - 1, offset or 0)) if high else {}
        oldest_ms, newest_ms = times.get(low), times.get(high - 1)
        consumed_ms = times.get(offset - 1) if offset else None
        if consumed_ms is None:
            consumed_ms = oldest_ms
        waiting_ms = times.get(offset or 0) if (offset or 0) < high else None
        return template % (
            queue_id,
            -1 if oldest_ms is None else oldest_ms,
            -1 if newest_ms is None else newest_ms,
            -1 if consumed_ms is None else consumed_ms,
            0 if waiting_ms is None else max(broker.now_ms() - waiting_ms, 0),
        )

    parts = Parts()
    parts.add(b'{"consumeTimeSpanSet":[')
    yield from parts.queues(topic.write_queue_nums, entry)
    parts.add(b"]}")
    return (yield from parts.answer())


def _store_times(broker: Broker, topic: str, queue_id: int, numbers: Iterable[int]) -> dict[int, int | None]:
    """Return the store times of a queue's messages. Each is read once."""
    return {number: broker.store.store_time_of(topic, queue_id, number) for number in set(numbers)}
