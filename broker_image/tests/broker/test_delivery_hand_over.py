"""One message at a time: what the copy keeps, what is believed, what happens when things fail in between."""

from __future__ import annotations

import logging

import pytest
from delaymq.broker.delivery.ingress import MARK_ROOM_BYTES, delay_level, strip_own
from delaymq.broker.delivery.status import LatenessHistogram
from delaymq.message.errors import IllegalMessageError
from delaymq.message.levels import DelayLevels
from delaymq.message.marks import Mark, MarkKind, parse_due, parse_mark
from delaymq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from delaymq.store.errors import StoreFullError
from delaymq.store.model import NewRecord
from delivery_bench import HOST, START_MS, Bench, Settings


def test_the_copy_keeps_everything_and_names_what_it_settles() -> None:
    bench = Bench("1s 5s")
    properties = {"KEYS": "k", "TAGS": "t", "WAIT": "false", "color": "rot", "DELAY": "2"}
    topic, queue_id, prepared = bench.delivery.prepare(properties, "orders", 3, 2)
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


def test_a_batch_of_hand_overs_stays_within_its_budget() -> None:
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


def test_a_new_message_that_is_due_earlier_wakes_the_server_and_others_do_not() -> None:
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


def test_a_message_is_not_handed_over_again_when_something_fails_behind_its_append() -> None:
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


def test_a_copy_in_the_log_is_found_even_when_it_was_not_dispatched() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    bench.now_ms += 1_000
    bench.store.observers.clear()  # as when an observer before ours fails
    bench.store.fail_after = lambda message: RuntimeError("an observer failed")
    assert bench.hand_over() == ["a"]
    assert bench.delivery.next_wakeup_ms() is None
    assert bench.delivery.delay_offsets() == {1: 1}


def test_a_failing_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_clock_set_back_does_not_prolong_the_pause_of_a_full_store() -> None:
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


def test_100000_overdue_messages_survive_a_store_that_stops_taking_messages_now_and_then() -> None:
    bench = Bench("1s 5s 10s")
    count = 100_000
    for number in range(count):
        bench.send(str(number), 1 + number % 3, properties={})
    bench.now_ms += 3_600_000
    left = iter(range(10_000_000))
    bench.store.refuse = lambda message: StoreFullError("no space") if next(left) % 9_973 == 9_972 else None
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


# What is believed.


def test_properties_of_our_own_are_stripped_from_what_clients_send() -> None:
    properties = {"__DMQ_MARK": "delivered:0:0:0", "__DMQ_DUE": "x", "__DMQ_LATER": "y", "color": "rot"}
    strip_own(properties)
    assert properties == {"color": "rot"}


def test_a_mark_copied_by_a_foreign_broker_settles_nothing() -> None:
    bench = Bench("1s")
    first = bench.send("a", 1)
    bench.send("b", 1)
    mark = f"delivered:0:0:{first.physical_offset}"
    real = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"}
    for body, changes in (
        ("x", {"UNIQ_KEY": "a"}),  # another body
        ("a", {"UNIQ_KEY": "z"}),  # another key
        ("b", {"UNIQ_KEY": "b"}),  # the mark of another message
    ):
        bench.append(body, topic="orders", queue_id=0, properties={**real, **changes, "__DMQ_MARK": mark})
    bench.append("a", topic="other", queue_id=0, properties={**real, "UNIQ_KEY": "a", "__DMQ_MARK": mark})
    bench.append("a", topic="orders", queue_id=1, properties={**real, "UNIQ_KEY": "a", "__DMQ_MARK": mark})
    bench.append("a", topic="orders", queue_id=0, properties={"UNIQ_KEY": "a", "__DMQ_MARK": mark}, reconsume_times=1)
    assert bench.delivery.counters.disbelieved == 6
    for snapshot in (False, True):
        bench.kill()
        bench.start()
        assert [each["pending"] for each in bench.delivery.status()["levels"]] == [2]  # type: ignore[attr-defined]
        assert bench.delivery.counters.disbelieved == (0 if snapshot else 6)
        bench.take_snapshot()
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a", "b"]


def test_marks_behind_a_snapshot_are_checked_against_records_before_it() -> None:
    bench = Bench("1s")
    first = bench.send("a", 1)
    bench.send("b", 1)
    bench.take_snapshot()
    bench.now_ms += 1_000
    assert bench.hand_over(1) == ["a"]
    bench.append(
        "b", topic="orders", queue_id=0, properties={"UNIQ_KEY": "b", "__DMQ_MARK": f"delivered:0:1:{first.size * 9}"}
    )
    bench.kill()
    bench.start()
    assert bench.delivery.counters.disbelieved == 1
    assert bench.hand_over() == ["b"]


def test_a_send_back_through_the_real_broker_is_delivered_although_it_carries_our_old_mark_and_due_time() -> None:
    bench = Bench("1s 5s 10s")
    bench.send("a", 1)
    bench.now_ms += 1_000
    bench.hand_over()
    (copy,) = bench.copies()
    # The real broker's send-back copies all properties of what was consumed.
    properties = {**copy.properties, "DELAY": "3", "REAL_TOPIC": "%RETRY%group", "REAL_QID": "0"}
    back = bench.append("a", topic="SCHEDULE_TOPIC_XXXX", queue_id=2, properties=properties, reconsume_times=1)
    bench.kill()
    bench.start()
    assert bench.delivery.next_wakeup_ms() == bench.now_ms + 10_000
    for whole_log in (True, False):
        bench.snapshot = None if whole_log else bench.store.snapshot()
        bench.kill()
        bench.start()
        assert bench.delivery.pending() == {1: 0, 3: 1}
    record = bench.store.record_at(back.physical_offset)
    assert record is not None
    bench.store.append(
        NewRecord("%RETRY%group", 0, b"a", record.properties, 0, 0, record.born_timestamp_ms, HOST, HOST, 1)
    )
    for whole_log in (False, True):
        if whole_log:
            bench.snapshot = None
        bench.kill()
        bench.start()
        assert bench.delivery.pending() == {1: 0, 3: 0}, whole_log


def test_our_copy_of_a_foreign_message_does_not_keep_a_due_time_that_is_not_its_own() -> None:
    bench = Bench("1s")
    bench.foreign_send("a", 1, __DMQ_DUE=f"{START_MS:016d}:0003:{17:020d}")
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]
    assert "__DMQ_DUE" not in bench.copies()[0].properties


def test_a_mark_does_not_settle_what_is_stored_after_it() -> None:
    bench = Bench("1s")
    size = bench.send("a", 1).size
    real = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "b"}
    copy = bench.append(
        "b", topic="orders", queue_id=0, properties={**real, "__DMQ_MARK": f"delivered:0:1:{size:020d}"}
    )
    following = size + copy.size
    bench.kill()
    mark = f"delivered:0:1:{following:020d}".encode()
    bench.log = bench.log.replace(f"delivered:0:1:{size:020d}".encode(), mark)
    bench.start()
    assert bench.send("b", 1).physical_offset == following
    for _ in range(2):
        bench.kill()
        bench.start()
        assert bench.delivery.pending() == {1: 2}
        bench.snapshot = None


def test_foreign_messages_without_a_key_are_matched_by_checksum_and_birth() -> None:
    bench = Bench("1s")
    base = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"}
    places = []
    for body in ("a", "b", "a"):
        bench.now_ms += 1
        places.append(
            bench.append(body, topic="SCHEDULE_TOPIC_XXXX", queue_id=0, properties=dict(base)).physical_offset
        )
    bench.foreign_deliver(places[2])
    bench.kill()
    bench.start()
    bench.now_ms += 2_000
    assert bench.hand_over() == ["a", "b"]
    assert bench.delivery.delay_offsets() == {1: 3}


def test_two_foreign_messages_alike_need_two_copies() -> None:
    bench = Bench("1s")
    places = [bench.foreign_send("a", 1).physical_offset for _ in range(3)]
    bench.foreign_deliver(places[0])
    bench.foreign_deliver(places[1])
    bench.kill()
    bench.start()
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]


def test_foreign_properties_that_leave_no_room_for_the_mark_are_delivered_and_matched_without() -> None:
    bench = Bench("1s")
    base = len(encode_properties({"UNIQ_KEY": "a", "DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0", "long": ""}))
    bench.foreign_send("a", 1, long="x" * (MAX_PROPERTIES_BYTES - base))
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]
    (copy,) = bench.copies()
    assert "__DMQ_MARK" not in copy.properties
    bench.kill()
    bench.start()
    assert bench.hand_over() == []


def test_a_queue_rebuilt_by_another_table_brings_nothing_early() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    key = ("SCHEDULE_TOPIC_XXXX", 0)
    (entry,) = bench.store.entries[key]
    bench.store.entries[key] = [(entry[0], entry[1], START_MS)]
    bench.delivery = type(bench.delivery)(bench.settings, bench.levels, bench.clock)
    bench.delivery.restore({"version": 1, "queues": {}})
    bench.delivery.attach(bench.store)
    assert bench.delivery.next_wakeup_ms() == START_MS
    assert bench.hand_over() == []
    assert bench.delivery.next_wakeup_ms() == START_MS + 1_000
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]


def test_addresses_of_a_queue_extension_are_not_taken_for_times() -> None:
    bench = Bench("1s 5s")
    bench.send("a", 2)
    bench.foreign_send("b", 2)
    key = ("SCHEDULE_TOPIC_XXXX", 1)
    bench.store.entries[key] = [(offset, size, -(2**31) - 7) for offset, size, _ in bench.store.entries[key]]
    bench.delivery = type(bench.delivery)(bench.settings, bench.levels, bench.clock)
    bench.delivery.restore({"version": 1, "queues": {}})
    bench.delivery.attach(bench.store)
    assert bench.delivery.next_wakeup_ms() == START_MS + 5_000
    bench.now_ms += 5_000
    assert bench.hand_over() == ["a", "b"]


# Ingress.


@pytest.mark.parametrize(
    ("text", "level"), [(None, 0), ("0", 0), ("-3", 0), ("3", 3), ("+3", 3), ("007", 7), ("2147483647", 2147483647)]
)
def test_a_level_is_read_as_rocketmq_reads_it(text: str | None, level: int) -> None:
    assert delay_level({} if text is None else {"DELAY": text}) == level


@pytest.mark.parametrize("text", ["", " 3", "3s", "1_0", "2147483648", "-2147483649", "٣", "3" * 5_000])
def test_a_level_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(IllegalMessageError, match="not a delay level"):
        delay_level({"DELAY": text})


def test_properties_that_would_not_fit_at_delivery_are_refused_at_once_and_left_alone() -> None:
    bench = Bench("1s")
    fitting: dict[str, str] | None = None
    for length in range(MAX_PROPERTIES_BYTES - 400, MAX_PROPERTIES_BYTES):
        properties = {"UNIQ_KEY": "a", "long": "x" * length}
        try:
            _, _, fitting = bench.delivery.prepare(dict(properties), "orders", 0, 1)
        except IllegalMessageError:
            refused = dict(properties)
            with pytest.raises(IllegalMessageError, match="fit"):
                bench.delivery.prepare(refused, "orders", 0, 1)
            assert refused == properties
            break
    else:
        pytest.fail("nothing was refused")
    assert fitting is not None
    assert len(encode_properties(fitting)) == MAX_PROPERTIES_BYTES - MARK_ROOM_BYTES
    bench.append("a", topic="SCHEDULE_TOPIC_XXXX", queue_id=0, properties=fitting)
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]
    assert "__DMQ_MARK" in bench.copies()[0].properties


def test_wide_characters_count_with_their_bytes() -> None:
    bench = Bench("1s")
    with pytest.raises(IllegalMessageError, match="fit"):
        bench.delivery.prepare({"long": "€" * 11_000}, "orders", 0, 1)
    bench.delivery.prepare({"long": "€" * 10_000}, "orders", 0, 1)


def test_retries_are_clamped_where_producers_are_refused() -> None:
    bench = Bench("1s 5s", Settings(delay_level_overflow="reject"))
    with pytest.raises(IllegalMessageError, match="above the highest"):
        bench.delivery.prepare({}, "orders", 0, 18)
    topic, queue_id, properties = bench.delivery.prepare({}, "%RETRY%group", 0, 18, retry=True)
    assert (topic, queue_id, properties["DELAY"]) == ("SCHEDULE_TOPIC_XXXX", 1, "2")
    assert bench.delivery.counters.clamped == 1


def test_clamping_is_logged_once_a_minute_with_the_number_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("1s")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            bench.delivery.prepare({}, "orders", 0, 9)
        bench.now_ms += 60_000
        bench.delivery.prepare({}, "orders", 0, 9)
    assert [record.getMessage() for record in caplog.records] == [
        "delay level 9 is above the highest and was clamped to 1",
        "delay level 9 is above the highest and was clamped to 1 (4 more since the last time)",
    ]


# What it tells.


def test_the_status_has_the_documented_shape() -> None:
    bench = Bench("1s 5s")
    bench.send("a", 1)
    bench.send("b", 2)
    bench.now_ms += 1_040
    bench.hand_over()
    assert bench.delivery.status() == {
        "asOfMs": bench.now_ms,
        "levels": [
            {
                "level": 1,
                "delayMs": 1_000,
                "inTable": True,
                "offset": 1,
                "maxOffset": 1,
                "pending": 0,
                "settledAbove": 0,
                "nextDueMs": None,
                "lateness": {"p50Ms": 40, "p99Ms": 40, "maxMs": 40},
            },
            {
                "level": 2,
                "delayMs": 5_000,
                "inTable": True,
                "offset": 0,
                "maxOffset": 1,
                "pending": 1,
                "settledAbove": 0,
                "nextDueMs": START_MS + 5_000,
                "lateness": {"p50Ms": 0, "p99Ms": 0, "maxMs": 0},
            },
        ],
        "corrected": [],
        "held": None,
    }
    assert bench.delivery.clock_skew_ms() == 0
    bench.now_ms -= 5_000
    assert bench.delivery.clock_skew_ms() == 5_000


def test_percentiles_of_lateness_are_near_the_truth() -> None:
    histogram = LatenessHistogram()
    values = [(number * 7919) % 100_003 for number in range(10_000)]
    for value in values:
        histogram.add(value)
    values.sort()
    for fraction in (0.1, 0.5, 0.99, 1.0):
        truth = values[max(int(fraction * len(values)) - 1, 0)]
        assert truth <= histogram.percentile_ms(fraction) <= truth * 1.126 + 1
    assert histogram.max_ms == values[-1]
    assert histogram.count == 10_000
    histogram.add(1 << 60)
    histogram.add(-5)
    assert histogram.percentile_ms(1.0) > 1 << 39


def test_every_bucket_begins_where_the_one_before_ends() -> None:
    for lateness_ms in [*range(5_000), 2**20 - 1, 2**20, 2**30 + 12345]:
        histogram = LatenessHistogram()
        histogram.add(lateness_ms)
        bucket = list(histogram.counts).index(1)
        assert histogram.highest_ms(bucket) >= lateness_ms
        assert bucket == 0 or histogram.highest_ms(bucket - 1) < lateness_ms


# What is kept.


def test_the_pin_holds_pending_messages_and_copies_that_the_disk_does_not_have() -> None:
    bench = Bench("1s 5s")
    bench.send("x")
    first = bench.send("a", 1)
    second = bench.send("b", 2)
    bench.store.flush()
    assert bench.delivery.pin() == first.physical_offset
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]
    for _ in range(3):
        assert bench.delivery.pin() == first.physical_offset
    bench.store.flush()
    assert bench.delivery.pin() == second.physical_offset
    bench.now_ms += 4_000
    bench.hand_over()
    bench.store.flush()
    bench.delivery.pin()
    assert bench.delivery.pin() is None


def test_messages_whose_log_is_deleted_while_they_wait_are_gone_and_not_corrupt() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    bench.store.min_offset = bench.send("b", 1).physical_offset
    bench.now_ms += 1_000
    assert bench.hand_over() == ["b"]
    assert (bench.delivery.counters.gone, bench.delivery.counters.corrupt) == (1, 0)
    assert bench.delivery.delay_offsets() == {1: 2}


def test_a_state_beyond_a_queues_end_does_not_settle_what_comes_later() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    bench.kill()
    bench.snapshot = (
        len(bench.log),
        {"schedule": {"version": 1, "queues": {"0": {"low": 0, "above": [1, 40], "foreign": []}}}},
    )
    bench.start()
    bench.send("b", 1)
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a", "b"]


def test_offsets_are_written_at_their_interval_and_only_when_they_changed() -> None:
    bench = Bench("1s", Settings(flush_delay_offset_interval=10_000))
    bench.send("a", 1)
    bench.store.flush()
    bench.save()
    assert bench.files == {"delayOffset.json": b'{"offsetTable":{"1":0}}'}
    bench.now_ms += 1_000
    bench.hand_over()
    bench.store.flush()
    bench.save()
    assert bench.files["delayOffset.json"] == b'{"offsetTable":{"1":0}}'
    bench.now_ms += 9_000
    assert bench.delivery.save_task() is not None
    bench.now_ms += 10_000
    bench.save()
    assert bench.files["delayOffset.json"] == b'{"offsetTable":{"1":1}}'
    bench.now_ms += 10_000
    assert bench.delivery.save_task() is None


def test_a_stop_that_cannot_write_its_offsets_still_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench("1s")
    bench.send("a", 1)

    def fail(name: str, data: bytes) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(bench.store.config_files, "save", fail)
    task = bench.delivery.save_task()
    assert task is None  # nothing is flushed yet
    bench.store.flush()
    task = bench.delivery.save_task()
    assert task is not None
    task.run()
    assert isinstance(task.finish(), OSError)
    bench.delivery.close()
    assert "as old as its last write" in caplog.text


def test_a_stop_names_what_the_real_broker_would_repeat(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("10s")
    bench.send("old", 1)
    bench.delivery.set_levels(DelayLevels.parse("1s"))
    bench.send("new", 1)
    bench.now_ms += 1_000
    assert bench.hand_over() == ["new"]
    bench.delivery.close()
    assert "delayOffset.json says 0, but 1 entries above are settled too (1–1)" in caplog.text


@pytest.mark.parametrize("state", [7, {}, {"version": 2, "queues": {}}, {"version": 1, "queues": {"x": {}}}])
def test_a_state_of_another_version_is_refused(state: object) -> None:
    bench = Bench()
    with pytest.raises(ValueError, match=r"version|queue|int"):
        bench.delivery.restore(state)


def test_there_is_no_state_before_the_log_is_understood() -> None:
    bench = Bench()
    delivery = type(bench.delivery)(bench.settings, bench.levels, bench.clock)
    with pytest.raises(RuntimeError, match="attached"):
        delivery.state()
    with pytest.raises(RuntimeError, match="attach"):
        delivery.prepare({}, "orders", 0, 1)
    with pytest.raises(RuntimeError, match="already"):
        bench.delivery.attach(bench.store)
