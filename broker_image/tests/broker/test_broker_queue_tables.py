"""Responses with an entry per queue: bytes of the whole body, built in bounded steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.processors import queue_tables
from delaymq.broker.requests.results import TimeSliced
from delaymq.protocol.bodies import (
    Body,
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    MessageQueue,
    QueueTimeSpan,
    TimeSpans,
    TopicConfig,
    TopicOffset,
    TopicStats,
)
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.store.message_store import MessageStore
from delaymq_testing.broker.harness import Harness

NAME = 'a%d "Köln"'
QUEUES = 3 * 64 + 5
BOTH = {"consumerGroup": "readers"}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path, broker_name=NAME)
    for topic in ("Orders", "%RETRY%50%", "None"):
        count = 0 if topic == "None" else QUEUES
        made.broker.topics.put(TopicConfig(topic, count, count, 6))
        made.broker.offsets.commit(topic, "readers", 0, 1)
    made.broker.groups.find("readers")
    for queue_id in range(0, QUEUES, 3):
        for _ in range(queue_id % 5):
            made.clock.advance(1_000)
            made.send("Orders", e=queue_id)
        made.broker.offsets.commit("Orders", "readers", queue_id, queue_id % 3 + 1)
        made.broker.offsets.commit("Orders", "others", queue_id, 2)
    made.flush()
    yield made
    made.broker.close()


def queue(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(NAME, queue_id, topic)


def topic_stats(harness: Harness) -> Body:
    store, stats = harness.broker.store, TopicStats()
    for number in range(QUEUES):
        low, high = store.queue_bounds("Orders", number)
        stats.offset_table[queue("Orders", number)] = TopicOffset(
            low, high, store.store_time_of("Orders", number, high - 1) or 0 if high else 0
        )
    return stats


def add_progress(harness: Harness, stats: ConsumeStats, topic: str) -> int:
    store, behind = harness.broker.store, 0
    for number in range(harness.broker.topics.table[topic].read_queue_nums):
        high = store.queue_bounds(topic, number)[1]
        offset = harness.broker.offsets.get(topic, "readers", number) or 0
        last_ms = store.store_time_of(topic, number, offset - 1) or 0 if offset else 0
        stats.offset_table[queue(topic, number)] = ConsumeOffset(high, offset, last_ms)
        behind += high - offset
    return behind


def progress(harness: Harness, *topics: str) -> Body:
    stats = ConsumeStats()
    for topic in topics:
        add_progress(harness, stats, topic)
    return stats


def all_progress(harness: Harness) -> Body:
    listed = ConsumeStatsList(harness.broker.address)
    for group in harness.broker.groups.table:
        statistics = []
        for topic in ("Orders", "%RETRY%50%", "None") if group == "readers" else ():
            statistics.append(ConsumeStats())
            listed.total_diff += add_progress(harness, statistics[-1], topic)
        listed.consume_stats_list.append({group: statistics})
    return listed


def time_spans(harness: Harness) -> Body:
    store, spans = harness.broker.store, []
    for number in range(QUEUES):
        low, high = store.queue_bounds("Orders", number)
        offset = harness.broker.offsets.get("Orders", "readers", number) or 0
        times: dict[int, Any] = {at: store.store_time_of("Orders", number, at) for at in range(high)}
        oldest = times.get(low, -1)
        waiting = times.get(offset)
        spans.append(
            QueueTimeSpan(
                queue("Orders", number),
                oldest,
                times.get(high - 1, -1),
                times.get(offset - 1, oldest),
                0 if waiting is None else harness.clock.now_ms - waiting,
            )
        )
    return TimeSpans(spans)


ANSWERS: list[tuple[int, dict[str, Any], Callable[[Harness], Body]]] = [
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Orders"}, topic_stats),
    (RequestCode.GET_CONSUME_STATS, BOTH | {"topic": "Orders"}, lambda harness: progress(harness, "Orders")),
    (RequestCode.GET_CONSUME_STATS, BOTH, lambda harness: progress(harness, "Orders", "%RETRY%50%", "None")),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "nobody"}, lambda harness: progress(harness)),
    (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}, all_progress),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": "readers", "topic": "Orders"}, time_spans),
]


@pytest.mark.parametrize(("code", "fields", "expected"), ANSWERS)
def test_response_built_in_steps_equals_the_encoded_body(
    harness: Harness, code: int, fields: dict[str, Any], expected: Callable[[Harness], Body]
) -> None:
    assert harness.answer(code, fields).body == expected(harness).encode()


def test_leading_topic_without_queues_leaves_no_comma(harness: Harness) -> None:
    harness.broker.offsets.remove_group("readers")
    harness.broker.offsets.commit("None", "readers", 0, 1)
    harness.broker.offsets.commit("Orders", "readers", 0, 1)
    body = harness.answer(RequestCode.GET_CONSUME_STATS, BOTH).body
    assert body == progress(harness, "None", "Orders").encode()


@pytest.mark.parametrize(
    ("code", "fields", "expected"), [each for each in ANSWERS if each[1] != {"consumerGroup": "nobody"}]
)
def test_step_reads_a_bounded_number_of_queues(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, code: int, fields: dict[str, Any], expected: object
) -> None:
    examined = 0
    queue_bounds = MessageStore.queue_bounds

    def counted(store: MessageStore, topic: str, queue_id: int) -> tuple[int, int]:
        nonlocal examined
        examined += 1
        return queue_bounds(store, topic, queue_id)

    monkeypatch.setattr(MessageStore, "queue_bounds", counted)
    work = harness.ask(code, fields)
    assert isinstance(work, TimeSliced)
    assert work.queued
    total = 0
    while True:
        assert examined <= queue_tables.QUEUES_AT_ONCE
        total, examined = total + examined, 0
        if next(work.steps, None) is None and inspect.getgeneratorstate(work.steps) == inspect.GEN_CLOSED:
            break
    assert total + examined >= QUEUES


def test_response_larger_than_a_frame_is_abandoned(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_tables, "MAX_RESPONSE_BYTES", 8_000)
    answer = harness.answer(RequestCode.GET_CONSUME_STATS, BOTH)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "would exceed 8000 bytes: request one topic of one group (208)" in (answer.remark or "")


def test_oversized_progress_is_rejected_before_queues_are_read(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
    size = len(harness.answer(*question).body)
    monkeypatch.setattr(queue_tables, "MAX_RESPONSE_BYTES", size)
    assert harness.answer(*question).code == 0
    monkeypatch.setattr(queue_tables, "MAX_RESPONSE_BYTES", size // 2)
    monkeypatch.delattr(MessageStore, "queue_bounds")
    answer = harness.answer(*question)
    assert (answer.code, "request one topic" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
