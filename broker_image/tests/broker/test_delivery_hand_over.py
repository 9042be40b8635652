"""Delivery of single messages: contents of the copy, and failures in between."""

from __future__ import annotations

import errno

import pytest
from delaymq.message.marks import Mark, MarkKind, parse_due, parse_mark
from delaymq.store.errors import StoreFullError
from delaymq.store.model import NewRecord
from delaymq_testing.broker.delivery_harness import HOST, START_MS, Bench


def test_copy_keeps_all_fields_and_names_the_settled_entry() -> None:
    bench = Bench("1s 5s")
    properties = {"KEYS": "k", "TAGS": "t", "WAIT": "false", "color": "rot", "DELAY": "2"}
    topic, queue_id, prepared = bench.delivery.ingress.prepare(properties, "orders", 3, 2)
    waiting = bench.store.append(
        NewRecord(topic, queue_id, b"body", prepared, 7, 1, 123, b"\x01" * 20, HOST, reconsume_times=2)
    )
    bench.now_ms += 5_017
    assert bench.hand_over() == ["body"]
    (copy,) = bench.copies()
    assert (copy.topic, copy.queue_id, copy.queue_offset) == ("orders", 3, 0)
    assert (copy.body, copy.flag, copy.sys_flag, copy.reconsume_times) == (b"body", 7, 1 | 16, 2)
    assert (copy.born_timestamp_ms, copy.born_host, copy.store_host) == (123, b"\x01" * 20, HOST)
    mark = copy.properties["__DMQ_MARK"]
    original = bench.store.record_at(waiting.physical_offset)
    assert original is not None
    assert copy.properties == {**original.properties, "__DMQ_MARK": mark}
    assert parse_mark(mark) == Mark(MarkKind.DELIVERED, 1, 0, waiting.physical_offset)
    # Lateness can be computed from the log alone.
    due_ms = parse_due(copy.properties["__DMQ_DUE"], 1, 0)
    assert due_ms == START_MS + 5_000
    assert copy.store_timestamp_ms - due_ms == 17


def test_batch_of_deliveries_stays_within_its_budget() -> None:
    bench = Bench("1s")
    for number in range(1_000):
        bench.send(f"m{number}", 1)
    bench.now_ms += 1_000
    assert bench.delivery.hand_over(bench.now_ms, 64) == 64
    assert len(bench.copies()) == 64
    assert bench.delivery.next_wakeup_ms() == bench.now_ms
    while bench.delivery.hand_over(bench.now_ms, 64):
        pass
    assert bench.delivered() == [f"m{number}" for number in range(1_000)]


def test_only_an_earlier_due_time_wakes_the_server() -> None:
    bench = Bench("1s 5s")
    bench.send("a", 2)
    assert bench.wakeups == 1
    assert bench.delivery.next_wakeup_ms() == START_MS + 5_000
    bench.send("b", 2)
    assert bench.wakeups == 1
    bench.send("c", 1)
    assert bench.wakeups == 2
    bench.send("d", 1)
    assert bench.wakeups == 2


def test_failure_after_the_append_does_not_repeat_a_delivery() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    bench.send("b", 1)
    bench.now_ms += 1_000
    bench.store.fail_after = lambda message: RuntimeError("an observer failed")
    assert bench.hand_over() == ["a", "b"]
    bench.store.fail_after = lambda message: None
    bench.now_ms += 100_000
    assert bench.hand_over() == []
    assert bench.delivery.delay_offsets() == {1: 2}


def test_failing_copy_within_a_run_waits_alone() -> None:
    bench = Bench("1s")
    for body in "abcdef":
        bench.send(body, 1, topic="bad" if body in "bce" else "orders")
    bench.now_ms += 1_000
    bench.store.refuse = lambda message: RuntimeError("this one cannot be") if message.topic == "bad" else None
    assert bench.hand_over() == ["a", "d", "f"]
    assert bench.delivery.counters.failed == 3
    assert bench.delivery.delay_offsets() == {1: 1}
    bench.store.refuse = lambda message: None
    bench.now_ms += 100
    assert bench.hand_over() == ["b", "c", "e"]
    assert bench.delivery.delay_offsets() == {1: 6}


def test_full_store_within_a_run_defers_the_rest_in_order() -> None:
    bench = Bench("1s")
    for body in "abcdef":
        bench.send(body, 1)
    bench.now_ms += 1_000
    bench.store.refuse = lambda message: StoreFullError("no space") if message.body == b"c" else None
    assert bench.delivery.hand_over(bench.now_ms, 64) == 2
    assert bench.delivered() == ["a", "b"]
    assert bench.delivery.counters.failed == 1
    bench.store.refuse = lambda message: None
    bench.now_ms += 100
    assert bench.hand_over() == ["c", "d", "e", "f"]


def test_unusual_message_keeps_its_place_among_plain_ones() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    topic, queue_id, prepared = bench.delivery.ingress.prepare({"DELAY": "1"}, "orders", 0, 1)
    bench.store.append(NewRecord(topic, queue_id, b"wide host", prepared, 0, 0, 123, b"\x01" * 20, HOST))
    bench.send("c", 1)
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a", "wide host", "c"]


def test_undispatched_copy_in_the_log_is_found() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    bench.now_ms += 1_000
    bench.store.observers.clear()  # as when an observer before ours fails
    bench.store.fail_after = lambda message: RuntimeError("an observer failed")
    assert bench.hand_over() == ["a"]
    assert bench.delivery.next_wakeup_ms() is None
    assert bench.delivery.delay_offsets() == {1: 1}


def test_failed_read_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    bench.now_ms += 1_000

    def fail(physical_offset: int, size: int) -> bytes:
        raise OSError(5, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "read_bytes", fail)
        assert bench.hand_over() == []
    assert bench.delivery.counters.failed == 1
    bench.now_ms += 100
    assert bench.hand_over() == ["a"]


def test_read_without_a_descriptor_defers_all_and_blames_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("1s")
    for body in "abc":
        bench.send(body, 1)
    bench.now_ms += 1_000

    def fail(physical_offset: int, size: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "read_bytes", fail)
        assert bench.hand_over() == []
    assert bench.delivery.counters.failed == 1
    assert bench.delivery.next_wakeup_ms() == bench.now_ms + 100
    bench.now_ms += 100
    assert bench.hand_over() == ["a", "b", "c"]


def test_clock_set_back_does_not_extend_the_pause_of_a_full_store() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    bench.now_ms += 10_000_000
    bench.store.refuse = lambda message: StoreFullError("no space")
    assert bench.hand_over() == []
    assert bench.delivery.next_wakeup_ms() == bench.now_ms + 100
    bench.now_ms -= 9_000_000
    bench.store.refuse = lambda message: None
    assert bench.delivery.next_wakeup_ms() == START_MS + 1_000
    assert bench.hand_over() == ["a"]


def test_30000_overdue_messages_survive_intermittent_append_failures() -> None:
    bench = Bench("1s 5s 10s")
    count = 30_000
    for number in range(count):
        bench.send(str(number), 1 + number % 3, properties={})
    bench.now_ms += 3_600_000
    left = iter(range(10_000_000))
    bench.store.refuse = lambda message: StoreFullError("no space") if next(left) % 2_999 == 2_998 else None
    calls = 0
    while (wakeup_ms := bench.delivery.next_wakeup_ms()) is not None:
        bench.now_ms = max(bench.now_ms, wakeup_ms)
        assert bench.delivery.hand_over(bench.now_ms, 256) <= 256
        calls += 1
    assert calls >= count / 256
    assert bench.delivery.counters.delivered == {"orders": count}
    assert bench.delivery.counters.failed >= 10
    delivered = [int(body) for body in bench.delivered()]
    assert sorted(delivered) == list(range(count))
    for level in range(3):
        of_level = [number for number in delivered if number % 3 == level]
        assert of_level == sorted(of_level)
