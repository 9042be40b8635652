"""The judge finds every kind of violation in synthetic logs, and none in a correct one."""

import struct
from collections import Counter
from pathlib import Path

import pytest
from crash.judge import Attempts, Verdict, judge, read_attempts
from crash.synthetic_log import BORN_MS, START_MS, TOPIC, LogWriter, TimedLog, sealed
from crash.timed_judge import judge_timed
from crash.timed_load import TOPIC as TIMED_TOPIC
from crash.timed_load import Request, Sent
from harness.commitlog import BadLogError, lateness_ms, log_end, records, requested_times, timed_messages

TABLE = "1s 2s"


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def verdict(store: Path, *, acknowledged: str, failed: str = "", read: str | None = None) -> Verdict:
    """Judge keys given as words, of level 1; by default, the group read what was acknowledged."""
    attempts = Attempts(acknowledged=dict.fromkeys(acknowledged.split(), 1), failed=dict.fromkeys(failed.split(), 1))
    read_keys = Counter((acknowledged if read is None else read).split())
    return judge(store_path=store, level_table=TABLE, topic=TOPIC, attempts=attempts, read_keys=read_keys)


def test_correct_log_has_no_violation(log: LogWriter, tmp_path: Path) -> None:
    for number in range(30):
        log.delayed(f"k{number}", 1)
    for number in range(30):
        log.copy(f"k{number}", 1, late_ms=number)
    log.write()
    keys = " ".join(f"k{number}" for number in range(30))
    found = verdict(tmp_path, acknowledged=keys)
    assert found.is_clean, found.text()
    assert len(list((tmp_path / "commitlog").iterdir())) > 1
    assert lateness_ms(tmp_path, TABLE) == list(range(30))


def test_acknowledged_message_without_copy_is_lost(log: LogWriter, tmp_path: Path) -> None:
    log.delayed("a", 1)
    log.write()
    assert verdict(tmp_path, acknowledged="a b").lost == ("a", "b")


def test_dropped_message_is_lost_although_a_record_keeps_its_properties(log: LogWriter, tmp_path: Path) -> None:
    for key in ("a", "b"):
        log.delayed(key, 1)
    log.copy("a", 1)
    dropped = {"UNIQ_KEY": "b", "DELAY": "1", "REAL_TOPIC": TOPIC, "REAL_QID": "3"}
    log.append("rmq_sys_delaymq_marks", 0, START_MS + 1_000, dropped, b"body")
    log.write()
    assert verdict(tmp_path, acknowledged="a b").lost == ("b",)


def test_two_copies_of_one_record_are_a_duplicate(log: LogWriter, tmp_path: Path) -> None:
    log.delayed("a", 1)
    log.copy("a", 1)
    log.copy("a", 1, late_ms=5)
    log.write()
    found = verdict(tmp_path, acknowledged="a", read="a a")
    assert found.twice == ("a",)
    assert found.twice_for_group == ("a",)


def test_failed_send_may_be_stored_once_but_not_delivered_twice(log: LogWriter, tmp_path: Path) -> None:
    log.delayed("a", 1)
    log.copy("a", 1)
    log.delayed("b", 1)
    log.copy("b", 1)
    log.copy("b", 1)
    log.write()
    found = verdict(tmp_path, acknowledged="", failed="a b c", read="a b")
    assert found.stored_although_failed == 2
    assert found.twice == ("b",)
    assert not found.lost


def test_copy_before_its_due_time_is_early(log: LogWriter, tmp_path: Path) -> None:
    log.delayed("a", 1)
    log.copy("a", 1, late_ms=-1)
    log.write()
    assert verdict(tmp_path, acknowledged="a").early == ("a",)


def test_due_time_in_the_record_counts_only_if_it_belongs_to_the_record(log: LogWriter, tmp_path: Path) -> None:
    log.delayed("a", 1, __DMQ_DUE=f"{START_MS + 990}:0:0")
    log.delayed("b", 1, __DMQ_DUE=f"{START_MS + 5}:0:0")  # another record's, copied by a client
    log.copy("a", 1)
    log.copy("b", 1)
    log.write()
    found = verdict(tmp_path, acknowledged="a b")
    assert found.is_clean, found.text()
    assert lateness_ms(tmp_path, TABLE) == [0, 10]


def test_due_time_other_than_arrival_plus_level_is_wrong(log: LogWriter, tmp_path: Path) -> None:
    log.delayed("a", 1, __DMQ_DUE=f"{START_MS + 9000}:0:0")
    log.copy("a", 1, late_ms=9000)
    log.delayed("b", 1, __DMQ_DUE=f"{BORN_MS + 999}:0:1")
    log.copy("b", 1)
    log.write()
    assert verdict(tmp_path, acknowledged="a b").wrong_due == ("a", "b")


def test_copy_with_another_body_is_altered(log: LogWriter, tmp_path: Path) -> None:
    log.delayed("a", 1)
    log.copy("a", 1, body=b"other")
    log.write()
    assert verdict(tmp_path, acknowledged="a").altered == ("a",)


def test_message_not_read_by_a_new_group_is_missing(log: LogWriter, tmp_path: Path) -> None:
    log.delayed("a", 1)
    log.copy("a", 1)
    log.write()
    assert verdict(tmp_path, acknowledged="a", read="").missing_for_group == ("a",)


def test_copy_without_scheduled_record_makes_the_log_invalid(log: LogWriter, tmp_path: Path) -> None:
    log.copy("a", 1)
    log.write()
    with pytest.raises(BadLogError, match="never scheduled"):
        verdict(tmp_path, acknowledged="a")


def test_torn_record_ends_the_log(log: LogWriter, tmp_path: Path) -> None:
    log.delayed("a", 1)
    log.write()
    end = log_end(tmp_path)
    segment = next((tmp_path / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[end : end + 48] = struct.pack(">iIIiiqqiq", 300, 0xDAA320A7, 1, 0, 0, 0, end, 0, START_MS)
    segment.write_bytes(data)
    assert [record.unique_key for record in records(tmp_path)] == ["a"]
    assert log_end(tmp_path) == end


def test_data_after_the_end_in_an_earlier_segment_is_damage(log: LogWriter, tmp_path: Path) -> None:
    for number in range(40):
        log.delayed(f"k{number}", 1)
    log.write()
    first = min((tmp_path / "commitlog").iterdir())
    data = bytearray(first.read_bytes())
    data[0:8] = bytes(8)
    first.write_bytes(data)
    with pytest.raises(BadLogError, match="log ended at 0"):
        list(records(tmp_path))


def test_attempts_are_grouped_by_outcome(tmp_path: Path) -> None:
    path = tmp_path / "attempts"
    path.write_text("A k1 3 7 0\nF k2 1 RemotingTimeoutException\n")
    assert read_attempts(path) == Attempts(acknowledged={"k1": 3}, failed={"k2": 1})


@pytest.fixture
def timed_log(tmp_path: Path) -> TimedLog:
    return TimedLog(tmp_path)


def test_timed_messages_have_the_due_time_copies_and_ends_of_their_statements(
    timed_log: TimedLog, tmp_path: Path
) -> None:
    places = [timed_log.timed(str(START_MS + number), UNIQ_KEY=f"u{number}") for number in range(40)]
    copy = timed_log.mark(TOPIC, "delivered", places[0])
    dead = timed_log.mark("%DLQ%SCHEDULE_CONSUMER", "dropped", places[1])
    timed_log.mark("rmq_sys_delaymq_marks", "moved", places[2], next_due=str(START_MS + 99))
    timed_log.mark(TOPIC, "delivered", places[3], queue="3.7")  # of a delay level
    carried = timed_log.timed(f"{START_MS + 77}:{places[5]}:")
    timed_log.timed(f"{START_MS + 78}", REAL_TOPIC="Other")
    timed_log.write()
    found = timed_messages(tmp_path, real_topic=TOPIC)
    assert list(found) == places
    assert len(list((tmp_path / "commitlog").iterdir())) > 1
    first, second, third = (found[place] for place in places[:3])
    assert [each.physical_offset for each in first.copies] == [copy]
    assert [(kind, each.physical_offset) for kind, each in second.ends] == [("dropped", dead)]
    assert (first.is_pending, second.copies, third.is_pending) == (False, (), True)
    assert [each.due_ms - START_MS for each in found.values()] == [0, 1, 99, 3, 4, 77, *range(6, 40)]
    assert all(each.is_pending for each in list(found.values())[2:])
    assert found[places[5]].record.physical_offset == places[5] != carried
    assert found[places[7]].record.unique_key == "u7"


def test_requested_times_are_those_of_copies_of_any_broker(log: LogWriter, tmp_path: Path) -> None:
    requested = {"TIMER_DELIVER_MS": str(START_MS + 500), "REAL_TOPIC": TOPIC}
    log.append("rmq_sys_wheel_timer", 0, START_MS, requested, b"body")
    log.append(TOPIC, 3, START_MS + 507, requested, b"body")
    log.append("Other", 0, START_MS + 1000, {**requested, "TIMER_OUT_MS": str(START_MS)}, b"body")
    log.append(TOPIC, 3, START_MS + 510, {"TIMER_DELAY_MS": "500"}, b"body")
    log.append(TOPIC, 3, START_MS + 600, requested, b"body")
    log.write()
    due_ms = START_MS + 500
    assert requested_times(tmp_path) == {
        TOPIC: [(due_ms, START_MS + 507), (due_ms, START_MS + 600)],
        "Other": [(due_ms, START_MS + 1000)],
    }


def test_repeated_end_of_a_timed_message_is_visible(timed_log: TimedLog, tmp_path: Path) -> None:
    place = timed_log.timed(str(START_MS))
    timed_log.mark(TOPIC, "delivered", place)
    timed_log.mark("rmq_sys_delaymq_marks", "moved", place, next_due=str(START_MS + 9))
    timed_log.mark(TOPIC, "delivered", place)
    timed_log.write()
    [message] = timed_messages(tmp_path).values()
    assert ([kind for kind, _ in message.ends], len(message.copies)) == (["delivered"] * 2, 2)
    assert message.due_ms == START_MS


def test_records_that_rocketmq_stored_again_are_no_timed_messages(timed_log: TimedLog, tmp_path: Path) -> None:
    place = timed_log.timed(str(START_MS))
    other = {"__DMQ_DUE": sealed(place, str(START_MS))}
    timed_log.append("rmq_sys_wheel_timer", 0, START_MS, {**other, "TIMER_ROLL_TIMES": "1"}, b"")
    timed_log.append("rmq_sys_wheel_timer", 0, START_MS, {"TIMER_OUT_MS": "7", "TIMER_ROLL_TIMES": "1"}, b"")
    timed_log.append("rmq_sys_wheel_timer", 0, START_MS, {"TIMER_OUT_MS": "9"}, b"")
    timed_log.append(TOPIC, 3, START_MS, other, b"")
    timed_log.write()
    delivered, foreign = timed_messages(tmp_path).values()
    assert (delivered.identity, [kind for kind, _ in delivered.ends]) == (place, ["delivered"])
    assert (foreign.due_ms, foreign.is_pending) == (9, True)


def test_damaged_statement_and_mark_without_message_are_errors(timed_log: TimedLog, tmp_path: Path) -> None:
    timed_log.append("rmq_sys_wheel_timer", 0, START_MS, {"__DMQ_DUE": sealed(0, "5")[:-1] + "x"}, b"")
    timed_log.write()
    with pytest.raises(BadLogError, match="__DMQ_DUE of the record at 0 is damaged"):
        timed_messages(tmp_path)
    (tmp_path / "second").mkdir()
    second = TimedLog(tmp_path / "second")
    second.mark(TOPIC, "delivered", 123)
    second.write()
    with pytest.raises(BadLogError, match="names a timed message at 123, where there is none"):
        timed_messages(tmp_path / "second")


def test_violations_of_timed_messages_are_found_by_key_or_offset(timed_log: TimedLog, tmp_path: Path) -> None:
    dues = {"fine": 0, "late-lost": 0, "twice": 0, "early": 9, "unknown": 0, "shifted": -1}
    places = {}
    for key, late_ms in dues.items():
        request = {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(START_MS + max(late_ms, 0)), "REAL_TOPIC": TIMED_TOPIC}
        places[key] = timed_log.timed(str(START_MS + late_ms), **request)
    for key in ("fine", "twice", "twice", "early", "unknown", "shifted"):
        text = f"delivered:{START_MS}:{places[key]}::{START_MS + 5}:::"
        due = str(START_MS + max(dues[key], 0))
        timed_log.state(TIMED_TOPIC, "__DMQ_MARK", text, UNIQ_KEY=key, TIMER_DELIVER_MS=due)
    timed_log.write()
    requests = {
        key: Request({"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(START_MS + max(late_ms, 0))}, BORN_MS, 0)
        for key, late_ms in dues.items()
        if key != "unknown"
    }
    sent = Sent(acknowledged={**requests, "gone": requests["fine"]})
    found = judge_timed(tmp_path, TABLE, sent, [START_MS - 1, START_MS])
    assert found.pending_at == (0, 1)
    altered = found.breaches.pop("altered")  # the bodies are not those of the load
    assert set(altered) == {"fine", "twice", "early", "shifted"}
    assert found.breaches == {
        "lost": ("late-lost", "gone"),
        "duplicated": ("twice",),
        "never sent": ("unknown",),
        "early": ("early", str(places["early"])),
        "wrong due time": (str(places["shifted"]),),
        "ended more than once": (str(places["twice"]),),
        "pending": (str(places["late-lost"]),),
    }
