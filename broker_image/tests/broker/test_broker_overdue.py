"""Treatment of messages that came due while the broker was not running."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
from delaymq.api_types.delay_settings import TopicDelaySettings
from delaymq.broker.delivery.changes.pauses import Pauses
from delaymq.broker.delivery.settings.overdue import FILE_NAME
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.schedule.timeline import Timeline
from delaymq_testing.broker.changing import Open, act, records, schedule, send
from delaymq_testing.broker.harness import START_MS, Harness
from delaymq_testing.broker.overdue import DOWN_MS, MINUTE_MS, kill, lateness, schedule_overdue, stored, treat
from delaymq_testing.broker.smoothing import delivered, run


def test_overdue_messages_are_spread_and_others_are_not_delayed(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    treat(harness, "spread")
    schedule_overdue(harness)
    schedule_overdue(harness, topic="Bills")
    schedule(harness, "soon", TIMER_DELAY_MS=str(DOWN_MS + MINUTE_MS))
    kill(harness)
    begin_ms = harness.clock()
    assert "100 messages for topic Orders" in caplog.text
    assert "they are delivered evenly over 600 s" in caplog.text
    run(harness, 60 * MINUTE_MS)
    times = delivered(harness)
    assert len(times) == 101
    for minute in range(10):
        first_ms = begin_ms + minute * MINUTE_MS
        assert 9 <= sum(first_ms <= time < first_ms + MINUTE_MS for time in times) <= 12
    assert max(times) <= begin_ms + 10 * MINUTE_MS
    assert set(delivered(harness, "Bills")) == {begin_ms}
    assert stored(harness) is None
    assert not harness.broker.delivery.control.treatments.open


def test_second_start_spreads_the_rest_over_the_remaining_time(harness: Harness) -> None:
    treat(harness, "spread")
    schedule_overdue(harness)
    kill(harness)
    run(harness, 4 * MINUTE_MS)
    assert 38 <= len(delivered(harness)) <= 43
    kill(harness, 5 * MINUTE_MS)
    begin_ms = harness.clock()
    run(harness, 30 * MINUTE_MS)
    times = delivered(harness)
    assert len(times) == 100
    assert begin_ms + 5.5 * MINUTE_MS <= max(times) <= begin_ms + 6.1 * MINUTE_MS
    assert stored(harness) is None


def test_overdue_messages_keep_their_distances_if_they_are_shifted(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("Orders", "Bills"):
        treat(harness, "shift", topic)
    schedule_overdue(harness)
    schedule(harness, "bill", topic="Bills", TIMER_DELAY_MS=str(5 * MINUTE_MS))
    schedule(harness, "100", TIMER_DELAY_MS=str(DOWN_MS + MINUTE_MS))
    kill(harness)
    begin_ms, late_s = harness.clock(), (DOWN_MS - 1_000) // 1_000
    assert f"100 messages for topic Orders came due while the broker was not running: each is delivered {late_s} s" in (
        caplog.text
    )
    in_progress = harness.broker.delivery.control.treatments.in_progress("Orders")
    assert in_progress is not None
    assert (in_progress.up_to_ms, in_progress.until_ms) == (begin_ms, begin_ms + late_s * 1_000)
    send(harness, "101", TIMER_DELAY_MS="2000")
    run(harness, MINUTE_MS)
    assert {101, 100} <= {int(record.body) for record in records(harness, "Orders")}
    run(harness, 60 * MINUTE_MS)
    found = lateness(harness)
    assert found.pop(late_s) == set(range(100))
    assert {number for each in found.values() for number in each} == {100, 101}
    assert delivered(harness, "Bills") == [START_MS + 5 * MINUTE_MS + late_s * 1_000]
    assert max(delivered(harness)) <= begin_ms + 10 * MINUTE_MS
    assert stored(harness) is None
    assert not harness.broker.delivery.control.treatments.open


def test_shift_continues_after_further_stops_and_never_becomes_shorter(harness: Harness) -> None:
    treat(harness, "shift")
    schedule_overdue(harness)
    kill(harness)
    run(harness, 2 * MINUTE_MS)
    count = len(delivered(harness))
    assert 60 <= count < 75
    kill(harness, 3 * MINUTE_MS)  # a short one
    run(harness, 0)
    assert 75 <= len(delivered(harness)) < 90
    schedule(harness, "100", TIMER_DELAY_MS=str(DOWN_MS))
    kill(harness, DOWN_MS)
    begin_ms = harness.clock()
    run(harness, 60 * MINUTE_MS)
    rest = [each for each in delivered(harness) if each >= begin_ms]
    assert len(rest) > 10
    assert rest[0] == begin_ms
    dues = sorted(START_MS + 1_000 + number * 6_000 for number in range(1, 100, 2))[-len(rest) + 1 :]
    assert [each - begin_ms for each in rest[:-1]] == [due_ms - dues[0] for due_ms in dues]
    assert len(delivered(harness)) == 101
    assert stored(harness) is None


def test_rest_of_an_earlier_shift_does_not_delay_other_topics(harness: Harness) -> None:
    for topic in ("Orders", "Bills"):
        treat(harness, "shift", topic)
    schedule(harness, "0", TIMER_DELAY_MS="1000")
    schedule(harness, "1", TIMER_DELAY_MS=str(10 * DOWN_MS))
    kill(harness, 10 * DOWN_MS)
    late_ms = 10 * DOWN_MS - 1_000
    run(harness, MINUTE_MS)
    schedule(harness, "2", topic="Bills", TIMER_DELAY_MS=str(5 * MINUTE_MS))
    due_ms = harness.clock() + 5 * MINUTE_MS
    kill(harness)
    begin_ms = harness.clock()
    run(harness, 20 * DOWN_MS)
    assert delivered(harness, "Bills") == [begin_ms]
    assert begin_ms - due_ms == 15 * MINUTE_MS
    assert delivered(harness)[1] == START_MS + 10 * DOWN_MS + late_ms


def test_shift_is_as_long_as_the_first_message_that_is_still_pending_is_late(harness: Harness) -> None:
    treat(harness, "shift")
    schedule(harness, "cancelled", TIMER_DELAY_MS=str(MINUTE_MS), DELAY_KEY="k")
    for minutes in (10, 11):
        schedule(harness, str(minutes), TIMER_DELAY_MS=str(minutes * MINUTE_MS))
    harness.restart()  # a run has the entries
    assert act(harness, "cancel", DELAY_KEY="k").code == 0
    kill(harness)
    begin_ms = harness.clock()
    run(harness, 60 * MINUTE_MS)
    assert delivered(harness) == [begin_ms, begin_ms + MINUTE_MS]


def test_index_that_cannot_be_read_when_a_shift_ends_stops_deliveries(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    treat(harness, "shift")
    schedule_overdue(harness)
    kill(harness)
    run(harness, MINUTE_MS)

    def fails(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(harness.broker.delivery.timeline, "shift", fails)
    treat(harness, "deliver")
    assert harness.broker.delivery.next_wakeup_ms() is None
    assert harness.broker.hand_over(harness.clock(), 64) == 0


def test_messages_of_a_paused_group_do_not_use_the_rate_of_shifted_ones(harness: Harness) -> None:
    treat(harness, "shift", max_per_second=1)
    for number in range(30):
        schedule(harness, f"held {number}", DELAY_GROUP="g", TIMER_DELAY_MS="1000")
    assert act(harness, "pause", DELAY_GROUP="g").code == 0
    for number in range(5):
        schedule(harness, str(number), TIMER_DELAY_MS="1000")
    kill(harness)
    begin_ms = harness.clock()
    run(harness, MINUTE_MS)
    times = delivered(harness)
    assert len(times) == 5
    assert max(times) <= begin_ms + 5_000


def test_index_that_cannot_be_read_when_a_shift_begins_stops_deliveries(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    treat(harness, "shift")
    schedule_overdue(harness)

    def fails(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Timeline, "shift", fails)
        kill(harness)
    assert not harness.broker.delivery.control.is_paused  # resuming would not deliver all messages
    assert harness.broker.delivery.next_wakeup_ms() is None
    kill(harness, 0)
    run(harness, 60 * MINUTE_MS)
    assert len(delivered(harness)) == 100


def test_overdue_messages_are_dropped_with_marks_and_only_those(harness: Harness) -> None:
    treat(harness, "drop", max_per_second=1)
    schedule(harness, "late", TIMER_DELAY_MS="1000")
    schedule_overdue(harness)
    harness.clock.advance(2_000)
    send(harness, "newest")
    schedule(harness, "later", TIMER_DELAY_MS=str(DOWN_MS + MINUTE_MS))
    kill(harness)
    run(harness, 2 * MINUTE_MS)
    bodies = {record.body.decode() for record in records(harness, "Orders")}
    late = {str(number) for number in range(0, 100, 2)}
    assert bodies == {"late", "newest", "later"} | late
    assert len(delivered(harness)) == 53
    assert harness.broker.delivery.counters.refused == 50
    assert all("dropped" in record.properties[names.MARK] for record in records(harness, names.MARKS_TOPIC))
    assert stored(harness) is None
    schedule(harness, "new", TIMER_DELAY_MS="1000")
    run(harness, 1_000)
    assert records(harness, "Orders")[-1].body == b"new"


def test_second_start_drops_the_rest(harness: Harness) -> None:
    treat(harness, "drop")
    schedule_overdue(harness)
    kill(harness)
    assert harness.broker.hand_over(harness.clock(), 10) == 10
    kill(harness, 1_000)
    run(harness, MINUTE_MS)
    assert delivered(harness) == []
    assert len(records(harness, names.MARKS_TOPIC)) == 100


def test_missed_runs_of_repeating_messages_are_dropped(harness: Harness) -> None:
    treat(harness, "drop")
    assert send(harness, "tick", DELAY_EVERY_MS="60000", DELAY_MISSED="all").code == 0
    kill(harness)
    run(harness, 2 * MINUTE_MS)
    assert 1 <= len(delivered(harness)) <= 2
    assert harness.broker.delivery.counters.skipped >= 19


@pytest.mark.parametrize("treatment", ["shift", "drop"])
def test_treatment_that_has_ended_has_no_effect_on_a_later_downtime(harness: Harness, treatment: str) -> None:
    treat(harness, treatment)
    treat(harness, "spread", "Bills")
    schedule_overdue(harness, topic="Bills")
    schedule(harness, "first", TIMER_DELAY_MS="1000")
    kill(harness, 60 * MINUTE_MS)
    run(harness, MINUTE_MS)
    assert list(harness.broker.delivery.control.treatments.open) == ["Bills"]
    treat(harness, treatment, max_per_second=1)
    for number in range(20):
        schedule(harness, f"late {number}", TIMER_DELAY_MS="1")
    harness.clock.advance(1_000)
    send(harness, "newest")
    kill(harness)
    begin_ms = harness.clock()
    run(harness, 60 * MINUTE_MS)
    rest = [record for record in records(harness, "Orders") if b"late" in record.body]
    assert len(rest) == 20
    assert max(record.store_timestamp_ms for record in rest) <= begin_ms + MINUTE_MS


def test_topic_that_was_resumed_is_not_paused_again_by_the_next_start(harness: Harness) -> None:
    treat(harness, "pause", max_per_second=1)
    treat(harness, "spread", "Bills")
    for topic in ("Orders", "Bills"):
        schedule_overdue(harness, topic=topic)
    kill(harness)
    run(harness, 1_000)
    assert act(harness, "resume").code == 0
    run(harness, 10_000)
    kill(harness, 1_000)
    assert not harness.broker.delivery.pauses.is_paused("Orders", "")
    run(harness, 10 * MINUTE_MS)
    assert len(delivered(harness)) == 100


def test_overdue_messages_pause_their_topic(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    treat(harness, "pause")
    treat(harness, "pause", "Idle")
    schedule_overdue(harness)
    kill(harness)
    assert "100 messages for topic Orders came due" in caplog.text
    assert "delaymq delay resume --topic Orders" in caplog.text
    pauses = harness.broker.delivery.pauses
    assert [each for each, _ in pauses] == [("Orders", "")]
    run(harness, MINUTE_MS)
    kill(harness, 1_000)
    assert harness.broker.delivery.pauses.is_paused("Orders", "")
    assert act(harness, "resume").code == 0
    kill(harness, 1_000)
    assert not harness.broker.delivery.pauses.is_paused("Orders", "")
    run(harness, MINUTE_MS)
    assert len(delivered(harness)) == 100
    assert stored(harness) is None


def test_start_that_was_interrupted_pauses_the_rest_of_the_topics(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = ["First", "Second"]
    for topic in topics:
        treat(harness, "pause", topic)
        schedule_overdue(harness, 10, topic)
    harness.flush()
    harness.broker.store.abandon()
    harness.clock.advance(DOWN_MS)
    pause = Pauses.pause

    def fails(pauses: Pauses, *names: Any) -> Any:
        if list(pauses):
            raise KeyboardInterrupt
        return pause(pauses, *names)

    monkeypatch.setattr(Pauses, "pause", fails)
    with pytest.raises(KeyboardInterrupt):
        open_broker(harness.config, harness.clock)
    monkeypatch.undo()
    harness.broker = open_broker(harness.config, harness.clock)
    assert sorted(topic for (topic, _), _ in harness.broker.delivery.pauses) == topics


@pytest.mark.parametrize("treatment", ["spread", "shift", "drop", "pause", "deliver"])
def test_short_downtime_has_no_effect(harness: Harness, treatment: str) -> None:
    treat(harness, treatment)
    for number in range(20):
        schedule(harness, str(number), TIMER_DELAY_MS="1000")
    kill(harness, 599_999)
    run(harness, 0)
    assert len(delivered(harness)) == 20


def test_paused_topics_and_groups_are_not_affected(harness: Harness) -> None:
    treat(harness, "drop")
    treat(harness, "drop", "Bills")
    schedule(harness, "free")
    for body in ("held", "soon"):
        schedule(harness, body, DELAY_GROUP="g")
    schedule(harness, "topic", topic="Bills")
    for topic, group in (("Orders", {"DELAY_GROUP": "g"}), ("Bills", {})):
        assert act(harness, "pause", topic, **group).code == 0
    kill(harness)
    run(harness, MINUTE_MS)
    for topic, group in (("Orders", {"DELAY_GROUP": "g"}), ("Bills", {})):
        assert act(harness, "resume", topic, **group).code == 0
    run(harness, MINUTE_MS)
    assert len(delivered(harness)) == 2
    assert len(delivered(harness, "Bills")) == 1
    assert harness.broker.delivery.counters.refused == 1


def test_held_messages_that_would_be_dropped_do_not_raise_the_rate(harness: Harness) -> None:
    treat(harness, "drop", max_per_second=1)
    for number in range(50):
        schedule(harness, f"held{number}", DELAY_GROUP="g")
        schedule(harness, f"later{number}", TIMER_DELAY_MS=str(DOWN_MS))
    assert act(harness, "pause", DELAY_GROUP="g").code == 0
    kill(harness, DOWN_MS - 1)
    harness.clock.advance(5_000)
    run(harness, 30_000)
    assert 28 <= len(delivered(harness)) <= 31


@pytest.mark.parametrize("is_local", [False, True])
def test_whoever_resumes_deliveries_decides(harness: Harness, is_local: bool) -> None:
    treat(harness, "drop")
    schedule_overdue(harness, 10)
    control = harness.broker.delivery.control
    (control.pause_locally if is_local else control.pause)()
    kill(harness)
    assert not harness.broker.delivery.control.treatments.open
    harness.broker.delivery.control.resume()
    run(harness, 0)
    assert len(delivered(harness)) == 10


@pytest.mark.parametrize("treatment", ["spread", "shift"])
@pytest.mark.parametrize("end", ["setting", "pause", "resume"])
def test_treatment_ends_when_someone_decides_otherwise(harness: Harness, treatment: str, end: str) -> None:
    treat(harness, treatment)
    schedule_overdue(harness)
    kill(harness)
    run(harness, MINUTE_MS)
    assert len(delivered(harness)) in (range(9, 13) if treatment == "spread" else range(50, 60))
    if end == "setting":
        treat(harness, "deliver")
    elif end == "resume":
        harness.broker.delivery.control.resume()
    else:
        assert act(harness, "pause").code == 0
        assert act(harness, "resume").code == 0
    assert stored(harness) is None
    run(harness, 0)
    assert len(delivered(harness)) == 100


def test_policy_that_cannot_be_stored_pauses_all_deliveries(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    treat(harness, "spread")
    schedule_overdue(harness, 10)
    harness.flush()
    harness.broker.store.abandon()
    harness.clock.advance(DOWN_MS)
    save = type(harness.broker.store.own_files).save

    def fails(files: Any, name: str, data: bytes, **options: Any) -> None:
        if name == FILE_NAME:
            raise OSError(28, "No space left on device")
        save(files, name, data, **options)

    monkeypatch.setattr(type(harness.broker.store.own_files), "save", fails)
    harness.broker = open_broker(harness.config, harness.clock)
    monkeypatch.undo()
    assert "all deliveries are paused: repair the disk" in caplog.text
    run(harness, MINUTE_MS)
    assert delivered(harness) == []
    harness.broker.delivery.control.resume()
    run(harness, 0)
    assert len(delivered(harness)) == 10


def test_log_has_a_line_for_some_topics_only(open_harness: Open, caplog: pytest.LogCaptureFixture) -> None:
    harness = open_harness()
    topics = [f"Topic{number}" for number in range(30)]
    for topic in topics:
        treat(harness, "drop", topic)
        schedule(harness, topic=topic, TIMER_DELAY_MS="1000")
    with caplog.at_level(logging.WARNING):
        kill(harness)
    lines = [each.getMessage() for each in caplog.records if "came due while the broker" in each.getMessage()]
    assert len(lines) == 21
    assert lines[-1].startswith("10 messages for 10 other topics")
    run(harness, MINUTE_MS)
    assert harness.broker.delivery.counters.refused == 30


@pytest.mark.parametrize("content", [b'{"version":2,"topics":{}}', b"[", b'{"version":1,"topics":{"Orders":{}}}'])
def test_unreadable_file_delivers_the_rest(harness: Harness, content: bytes) -> None:
    schedule_overdue(harness, 10)
    harness.broker.store.own_files.save(FILE_NAME, content)
    kill(harness)
    run(harness, 0)
    assert len(delivered(harness)) == 10


@pytest.mark.parametrize(
    ("overdue", "problem"),
    [
        ({"treatment": "spread"}, "the treatment spread needs overMs"),
        ({"treatment": "drop", "overMs": 5}, "overMs belongs to the treatment spread, and the treatment is drop"),
        ({"overMs": 5}, "the treatment is deliver: remove overMs, or use spread"),
    ],
)
def test_policy_that_is_not_consistent_is_rejected(overdue: dict[str, Any], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert({"overdue": overdue}, TopicDelaySettings)
