"""Trust in data of other brokers: marks, due times, copies and messages."""

from __future__ import annotations

from delaymq.broker.delivery.delay_rewrite import strip_own
from delaymq.broker.delivery.recovery import Replay
from delaymq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from delaymq.store.model import NewRecord
from delaymq_testing.broker.delivery_harness import HOST, START_MS, Bench
from delaymq_testing.schedule.memory_files import MemoryFiles


def test_reserved_properties_are_stripped_from_client_messages() -> None:
    properties = {"__DMQ_MARK": "delivered:0:0:0", "__DMQ_DUE": "x", "__DMQ_LATER": "y", "color": "rot"}
    strip_own(properties)
    assert properties == {"color": "rot"}


def test_mark_copied_by_a_foreign_broker_settles_nothing() -> None:
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


def test_marks_behind_a_snapshot_are_checked_against_earlier_records() -> None:
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


def test_send_back_through_the_real_broker_is_delivered_despite_old_mark_and_due_time() -> None:
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


def test_copy_of_a_foreign_message_drops_a_foreign_due_time() -> None:
    bench = Bench("1s")
    bench.foreign_send("a", 1, __DMQ_DUE=f"{START_MS:016d}:0003:{17:020d}")
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]
    assert "__DMQ_DUE" not in bench.copies()[0].properties


def test_mark_does_not_settle_later_records() -> None:
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


def test_foreign_messages_without_a_key_are_matched_by_checksum_and_birth_time() -> None:
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


def test_two_identical_foreign_messages_need_two_copies() -> None:
    bench = Bench("1s")
    places = [bench.foreign_send("a", 1).physical_offset for _ in range(3)]
    bench.foreign_deliver(places[0])
    bench.foreign_deliver(places[1])
    bench.kill()
    bench.start()
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]


def test_foreign_message_without_space_for_a_mark_is_delivered_and_matched() -> None:
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


def test_queue_rebuilt_with_another_table_delivers_nothing_early() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    key = ("SCHEDULE_TOPIC_XXXX", 0)
    (entry,) = bench.store.entries[key]
    bench.store.entries[key] = [(entry[0], entry[1], START_MS)]
    replay = Replay()
    replay.use_folder(MemoryFiles(), 1 << 20)
    replay.restore({"version": 1, "queues": {}})
    bench.delivery = type(bench.delivery)(bench.store, replay, bench.settings, bench.levels, bench.clock)
    assert bench.delivery.next_wakeup_ms() == START_MS
    assert bench.hand_over() == []
    assert bench.delivery.next_wakeup_ms() == START_MS + 1_000
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]


def test_queue_extension_addresses_are_not_taken_for_times() -> None:
    bench = Bench("1s 5s")
    bench.send("a", 2)
    bench.foreign_send("b", 2)
    key = ("SCHEDULE_TOPIC_XXXX", 1)
    bench.store.entries[key] = [(offset, size, -(2**31) - 7) for offset, size, _ in bench.store.entries[key]]
    replay = Replay()
    replay.use_folder(MemoryFiles(), 1 << 20)
    replay.restore({"version": 1, "queues": {}})
    bench.delivery = type(bench.delivery)(bench.store, replay, bench.settings, bench.levels, bench.clock)
    assert bench.delivery.next_wakeup_ms() == START_MS + 5_000
    bench.now_ms += 5_000
    assert bench.hand_over() == ["a", "b"]
