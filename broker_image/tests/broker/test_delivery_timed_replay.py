"""Replay of timed messages at a start: bounded memory, a full disk, and marks of messages that were carried forward."""

from __future__ import annotations

import pytest
from delaymq.schedule.timeline.cursors import Cursor
from delaymq.schedule.timeline.runs import Run
from delaymq.schedule.timeline.timeline import Timeline
from delaymq.store.errors import StoreOpenError
from delaymq.store.model import NewRecord
from delaymq_testing.broker.delivery_harness import HOST, START_MS, Bench
from delaymq_testing.schedule.memory_files import MemoryFile

MESSAGES = 2_000


def deliver(bench: Bench, now_ms: int) -> None:
    bench.now_ms = now_ms
    while bench.delivery.hand_over(now_ms, 64):
        pass


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_runs_are_merged_during_the_replay(monkeypatch: pytest.MonkeyPatch, has_snapshot: bool) -> None:
    bench = Bench()
    bench.send_timed("first", START_MS + 100)
    if has_snapshot:
        bench.take_snapshot()
    for number in range(MESSAGES):
        bench.send_timed(str(number), START_MS + 1 + number % 10, topic=f"T{number % 3}")
    deliver(bench, START_MS + 4)
    pending = bench.delivery.pending_total()
    counts: list[int] = []
    original = Timeline.add_run

    def add_run(index: Timeline, run: Run, cursors: list[Cursor]) -> None:
        original(index, run, cursors)
        counts.append(len(index.runs))

    monkeypatch.setattr(Timeline, "add_run", add_run)
    bench.kill()
    bench.start()
    assert bench.delivery.pending_total() == pending
    assert len(counts) > (100 if has_snapshot else 3)
    assert max(counts) < 40
    deliver(bench, START_MS + 100)
    assert bench.delivery.pending_total() == 0


@pytest.mark.parametrize("messages", [100, 1_000])
def test_start_without_space_for_the_index_states_the_remedy(messages: int) -> None:
    bench = Bench()
    for number in range(messages):
        bench.send_timed(str(number), START_MS + 1)
    bench.kill()
    bench.timeline_files.room = 500
    with pytest.raises(StoreOpenError, match=r"index of pending messages cannot be built .*: free space"):
        bench.start()
    bench.timeline_files.room = None
    bench.start()
    assert bench.delivery.pending_total() == messages


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize("damaged", [b"REAL_TOPIC\x01orders", b"REAL_TOPIC"])
def test_mark_ends_its_message_although_the_real_topic_of_the_copy_is_damaged(
    has_snapshot: bool, damaged: bytes
) -> None:
    bench = Bench()
    for number in range(60):
        bench.send_timed(str(number), START_MS + 1)
    if has_snapshot:
        bench.take_snapshot()
    copies_at = bench.store.end_offset
    deliver(bench, START_MS + 1)
    bench.kill()
    log = bytearray(bench.log)
    log[log.index(damaged, copies_at) + len(damaged) - 1] ^= 1
    bench.log = bytes(log)
    bench.start()
    assert bench.delivery.pending_total() == 0


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_dead_letters_end_their_messages(has_snapshot: bool) -> None:
    bench = Bench()
    for number in range(60):
        bench.send_timed(str(number), START_MS + 1, topic="not a topic")
    if has_snapshot:
        bench.take_snapshot()
    deliver(bench, START_MS + 1)
    assert bench.store.next_queue_offset("%DLQ%SCHEDULE_CONSUMER", 0) == 60
    bench.kill()
    bench.start()
    assert bench.delivery.pending_total() == 0


@pytest.mark.parametrize("is_begun", [False, True])
def test_unreadable_index_stops_the_store_when_a_spread_begins_or_ends(
    monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    bench = Bench()
    for number in range(MESSAGES):
        bench.send_timed(str(number), START_MS + 1)
    while bench.delivery.maintain():
        pass
    assert any(run.name for run in bench.delivery.timeline.runs)
    bench.now_ms = START_MS + 10
    if is_begun:
        bench.delivery.control.spread(10_000)
    with monkeypatch.context() as failing:
        failing.setattr(MemoryFile, "pread", lambda file, count, position: b"")
        if is_begun:
            bench.delivery.control.resume()
        else:
            bench.delivery.control.spread(10_000)
    assert "restart the broker" in str(bench.store.failure)
    assert bench.delivery.hand_over(bench.now_ms, 64) == 0
    bench.kill()
    bench.start()
    deliver(bench, START_MS + 20_000)
    assert bench.store.next_queue_offset("orders", 0) == MESSAGES


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_record_that_rocketmq_stored_again_replaces_a_deleted_one(has_snapshot: bool, is_deleted: bool) -> None:
    bench = Bench()
    first = bench.send_timed("body", START_MS + 1_000)
    bench.send_timed("other", START_MS + 1_000)
    if has_snapshot:
        bench.take_snapshot()
    bench.store.observers = []
    properties = {**first.properties, "TIMER_ROLL_TIMES": "1"}
    again = NewRecord("rmq_sys_wheel_timer", 0, b"body", properties, 0, 0, START_MS, HOST, HOST)
    bench.store.append(again)
    bench.store.append(again)
    bench.kill()
    bench.min_offset = first.size if is_deleted else 0
    for _ in range(2):
        bench.start()
        assert bench.delivery.pending_total() == 2
        bench.kill()
    bench.start()
    deliver(bench, START_MS + 1_000)
    copies = [record.body for record in bench.store.records() if record.topic == "orders"]
    assert sorted(copies) == [b"body", b"other"]
    bench.kill()
    bench.start()
    assert bench.delivery.pending_total() == 0
