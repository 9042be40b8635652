"""Repeating messages on a broker: runs, their copies, changes, limits, transactions, restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from delaymq.broker.delivery.repeating.cron import cron_of
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.message.run_ids import run_id
from delaymq.message.timed_marks import parse_own_due
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Response
from delaymq.store.layout import MANAGED_VERSION
from delaymq.store.model import again
from delaymq.store.tools.verify import verify
from delaymq_testing.broker.changing import (
    ILLEGAL,
    NOT_DONE,
    SUCCESS,
    Open,
    act,
    recall,
    records,
    send,
)
from delaymq_testing.broker.harness import Harness, response_of, send_fields
from delaymq_testing.broker.repeating import MINUTE_MS, hand_over, kill, mark_of, numbers, repeat, runs
from delaymq_testing.broker.transactions import COMMIT, Transacting

EVERY = {"DELAY_EVERY_MS": str(MINUTE_MS)}


def next_due_ms(harness: Harness) -> int | None:
    return min(harness.broker.delivery.next_due_ms().values(), default=None)


# Runs and copies.


def test_interval_delivers_a_copy_after_each_interval(harness: Harness) -> None:
    sent_ms = harness.clock()
    repeat(harness, **EVERY)
    for number in (1, 2, 3):
        hand_over(harness, MINUTE_MS - 1)
        assert len(runs(harness)) == number - 1
        hand_over(harness, 1)
        assert numbers(harness) == [*range(1, number + 1)]
    assert [run.time_ms - sent_ms for run in runs(harness)] == [MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS]
    assert [run.next_ms for run in runs(harness)] == [run.time_ms + MINUTE_MS for run in runs(harness)]
    assert len(records(harness, names.TIMER_TOPIC)) == 1
    assert records(harness, names.MARKS_TOPIC) == []
    assert harness.broker.delivery.pending_total() == 1
    assert harness.broker.delivery.counters.repeated == 3
    assert harness.broker.store.format_version == MANAGED_VERSION


def test_cron_delivers_at_its_times_in_its_zone(harness: Harness) -> None:
    repeat(harness, DELAY_CRON="30 9 * * 1-5", DELAY_ZONE="Europe/Berlin")
    for _ in range(400):
        hand_over(harness, 30 * MINUTE_MS)
    times = [datetime.fromtimestamp(run.time_ms / 1_000, UTC) for run in runs(harness)]
    assert len(times) in (5, 6)
    assert {(time.hour, time.minute) for time in times} <= {(7, 30), (8, 30)}
    assert all(time.weekday() < 5 for time in times)


def test_copies_are_messages_of_their_own_and_no_schedules(harness: Harness) -> None:
    repeat(harness, KEYS="k", TAGS="t", a="b", DELAY_UNTIL_MS=str(1 << 45), DELAY_RUNS="9", DELAY_MISSED="all", **EVERY)
    hand_over(harness, MINUTE_MS)
    hand_over(harness, MINUTE_MS)
    [first, second] = [run.record.properties for run in runs(harness)]
    assert not set(names.SCHEDULE_PROPERTIES) & set(first)
    assert (first["KEYS"], first["TAGS"], first["a"], first[names.DELAY_SCHEDULE_ID]) == ("k", "t", "b", "id-m")
    ids = {first["UNIQ_KEY"], second["UNIQ_KEY"], "id-m"}
    assert len(ids) == 3
    assert all(len(bytes.fromhex(each["UNIQ_KEY"])) == 16 for each in (first, second))
    answer = harness.answer(
        RequestCode.QUERY_MESSAGE,
        {"topic": "Orders", "key": "id-m", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 1 << 60},
    )
    assert answer.body.count(b"DELAY_RUN") == 2
    hand_over(harness)
    report = verify(harness.config.store_path_root_dir)
    assert {each.what for each in [*report.damage, *report.rebuildable]} <= {"queue-lacks", "not-stopped"}


def test_ids_of_copies_do_not_depend_on_restarts(harness: Harness) -> None:
    repeat(harness, **EVERY)
    ids = []
    for _ in range(3):
        hand_over(harness, MINUTE_MS)
        ids.append(runs(harness)[-1].record.properties["UNIQ_KEY"])
        kill(harness)
    assert len(set(ids)) == 3
    assert [run.record.properties["UNIQ_KEY"] for run in runs(harness)] == ids


def test_copy_sent_again_or_back_does_not_repeat(harness: Harness) -> None:
    repeat(harness, **EVERY)
    hand_over(harness, MINUTE_MS)
    properties = {name: value for name, value in runs(harness)[0].record.properties.items() if name != "UNIQ_KEY"}
    repeat(harness, "again", **properties)
    assert records(harness, "Orders")[-1].body == b"again"
    assert harness.broker.delivery.pending_total() == 1
    # RocketMQ 5 delivers the record unchanged, with the properties of the schedule.
    repeat(harness, "again 2", TIMER_OUT_MS="1", **EVERY)
    assert records(harness, "Orders")[-1].body == b"again 2"
    assert harness.broker.delivery.pending_total() == 1


def test_producer_without_unique_id_gets_one(harness: Harness) -> None:
    answer = response_of(harness.send("Orders", b"m", EVERY))
    assert answer.code == SUCCESS
    hand_over(harness, MINUTE_MS)
    hand_over(harness, MINUTE_MS)
    assert numbers(harness) == [1, 2]
    assert recall(harness, answer.fields["recallHandle"]).code == SUCCESS


def test_properties_without_a_schedule_are_the_users(harness: Harness) -> None:
    repeat(harness, DELAY_RUNS="often", DELAY_ZONE="here", DELAY_UNTIL_MS="?")
    assert records(harness, "Orders")[0].properties["DELAY_RUNS"] == "often"
    assert harness.broker.delivery.pending_total() == 0


# Ends.


def test_schedule_ends_after_its_number_of_runs(harness: Harness) -> None:
    repeat(harness, DELAY_RUNS="2", **EVERY)
    hand_over(harness, MINUTE_MS)
    kill(harness)
    hand_over(harness, MINUTE_MS)
    assert [run.next_ms is None for run in runs(harness)] == [False, True]
    assert harness.broker.delivery.pending_total() == 0
    kill(harness)
    hand_over(harness, 10 * MINUTE_MS)
    assert numbers(harness) == [1, 2]
    answer = act(harness, "cancel", TIMER_DEL_UNIQKEY="id-m")
    assert (answer.code, answer.fields["delayFate"]) == (NOT_DONE, "delivered")


def test_schedule_ends_at_its_last_time(harness: Harness) -> None:
    repeat(harness, DELAY_UNTIL_MS=str(harness.clock() + 2 * MINUTE_MS), **EVERY)
    for _ in range(5):
        hand_over(harness, MINUTE_MS)
    assert numbers(harness) == [1, 2]
    assert harness.broker.delivery.pending_total() == 0


# Missed runs.


def test_only_the_latest_of_missed_runs_is_delivered_by_default(harness: Harness) -> None:
    sent_ms = harness.clock()
    repeat(harness, **EVERY)
    repeat(harness, "cron", DELAY_CRON="* * * * *")
    hand_over(harness, 10 * MINUTE_MS + 5_000)
    [first, second] = runs(harness)
    assert (first.number, second.number) == (1, 1)
    by_interval = next(run for run in (first, second) if run.record.body == b"m")
    assert by_interval.time_ms == sent_ms + 10 * MINUTE_MS
    assert by_interval.next_ms == sent_ms + 11 * MINUTE_MS
    by_cron = next(run for run in (first, second) if run.record.body == b"cron")
    assert by_cron.time_ms == harness.clock() // MINUTE_MS * MINUTE_MS
    assert by_cron.next_ms == by_cron.time_ms + MINUTE_MS
    assert harness.broker.delivery.counters.skipped in (18, 19)


@pytest.mark.parametrize("schedule", [EVERY, {"DELAY_CRON": "* * * * *"}])
def test_all_missed_runs_are_delivered_up_to_a_thousand(harness: Harness, schedule: dict[str, str]) -> None:
    repeat(harness, DELAY_MISSED="all", **schedule)
    hand_over(harness, 5 * MINUTE_MS)
    assert numbers(harness) == [1, 2, 3, 4, 5]
    hand_over(harness, 1_500 * MINUTE_MS)
    found = runs(harness)
    assert numbers(harness) == [*range(1, 1_006)]
    assert found[-1].time_ms // MINUTE_MS == harness.clock() // MINUTE_MS
    assert found[5].time_ms == found[-1].time_ms - 999 * MINUTE_MS
    [mark] = records(harness, names.MARKS_TOPIC)
    assert (mark_of(mark).kind, mark_of(mark).next_due_ms) == ("expired", found[5].time_ms)


def test_late_runs_are_skipped(harness: Harness) -> None:
    sent_ms = harness.clock()
    repeat(harness, DELAY_MISSED="none", **EVERY)
    hand_over(harness, 10 * MINUTE_MS - 1)
    [run] = runs(harness)
    assert run.time_ms == sent_ms + 9 * MINUTE_MS
    [mark] = records(harness, names.MARKS_TOPIC)
    assert mark_of(mark).next_due_ms == run.time_ms
    assert harness.broker.delivery.counters.skipped == 8
    kill(harness)
    hand_over(harness, 1)
    assert numbers(harness) == [1, 2]


def test_own_limit_of_lateness_applies_with_any_treatment(harness: Harness) -> None:
    repeat(harness, DELAY_EXPIRE_MS="1000", DELAY_MISSED="all", **EVERY)
    hand_over(harness, MINUTE_MS + 1_001)
    assert runs(harness) == []
    hand_over(harness, MINUTE_MS - 1_001)
    assert numbers(harness) == [1]


def test_dropped_overdue_messages_skip_runs_and_continue(harness: Harness) -> None:
    repeat(harness, DELAY_MISSED="all", **EVERY)
    harness.clock.advance(5 * MINUTE_MS)
    harness.broker.delivery.control.drop(harness.clock())
    hand_over(harness)
    assert runs(harness) == []
    assert harness.broker.delivery.pending_total() == 1
    harness.broker.delivery.control.resume()
    hand_over(harness, MINUTE_MS)
    assert numbers(harness) == [1]


# Requests that are rejected.


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"DELAY_CRON": "0 25 * * *"}, "field 2 (hour) of DELAY_CRON is '25'"),
        ({"DELAY_CRON": "0 0 30 2 *"}, "never occurs"),
        ({"DELAY_CRON": "0 12 */29 2 1L"}, "never occurs"),
        ({"DELAY_CRON": "0 0 * 2 MON#5"}, "timerMaxDelaySec"),
        ({"DELAY_CRON": "* * * * *", "DELAY_ZONE": "Mars/Olympus"}, "not a known time zone"),
        ({"DELAY_ZONE": "UTC", **EVERY}, "DELAY_ZONE needs DELAY_CRON"),
        ({"DELAY_CRON": "* * * * *", **EVERY}, "both DELAY_CRON and DELAY_EVERY_MS"),
        ({"DELAY": "3", **EVERY}, "DELAY_EVERY_MS next to DELAY:"),
        ({"TIMER_DELAY_MS": "5", **EVERY}, "DELAY_EVERY_MS next to TIMER_DELAY_MS"),
        ({"TIMER_DELIVER_MS": "5", "DELAY_CRON": "* * * * *"}, "DELAY_CRON next to TIMER_DELIVER_MS"),
        ({"__STARTDELIVERTIME": "5", **EVERY}, "DELAY_EVERY_MS next to __STARTDELIVERTIME"),
        ({"DELAY_EVERY_MS": "999"}, "DELAY_EVERY_MS is '999': use a number of milliseconds, at least 1000"),
        ({"DELAY_EVERY_MS": "1e3"}, "DELAY_EVERY_MS is '1e3'"),
        ({"DELAY_EVERY_MS": "9" * 30}, "DELAY_EVERY_MS is '99"),
        ({"DELAY_EVERY_MS": "999999999999999"}, "timerMaxDelaySec"),
        ({"DELAY_UNTIL_MS": "x", **EVERY}, "DELAY_UNTIL_MS is 'x'"),
        ({"DELAY_UNTIL_MS": "1", **EVERY}, "DELAY_UNTIL_MS is 1, which is before the first run"),
        ({"DELAY_RUNS": "0", **EVERY}, "DELAY_RUNS is '0': use a number of runs, at least 1"),
        ({"DELAY_MISSED": "some", **EVERY}, "DELAY_MISSED is 'some': use latest, all, none"),
        ({"DELAY_EXPIRE_MS": "-1", **EVERY}, "DELAY_EXPIRE_MS is '-1'"),
        ({"DELAY_KEY": "k" * 256, **EVERY}, "DELAY_KEY has 256 bytes"),
        ({"DELAY_ACTION": "cancel", "DELAY_KEY": "k", "DELAY_RUNS": "1"}, "DELAY_ACTION=cancel next to DELAY_RUNS"),
    ],
)
def test_invalid_schedule_is_rejected_and_nothing_is_stored(
    harness: Harness, properties: dict[str, str], problem: str
) -> None:
    send(harness)
    end = harness.broker.store.end_offset
    answer = send(harness, **properties)
    assert answer.code == ILLEGAL
    assert problem in str(answer.remark)
    assert harness.broker.store.end_offset == end
    assert harness.broker.store.format_version == 1


def test_schedule_needs_the_index_of_keys(open_harness: Open) -> None:
    harness = open_harness(message_index_enable=False)
    answer = send(harness, **EVERY)
    assert answer.code == ILLEGAL
    assert "messageIndexEnable=true" in str(answer.remark)
    assert harness.broker.store.end_offset == 0


def test_runs_wait_while_the_index_of_keys_is_off(open_transacting: Callable[..., Transacting]) -> None:
    harness = open_transacting()
    repeat(harness, **EVERY)
    hand_over(harness, MINUTE_MS)
    harness.reopen(message_index_enable=False)
    harness.clock.advance(MINUTE_MS)
    harness.broker.hand_over(harness.clock(), 64)
    assert numbers(harness) == [1]
    assert harness.broker.delivery.counters.failed == 1
    harness.reopen()
    hand_over(harness)
    assert numbers(harness) == [1, 2]


def test_schedule_that_is_not_valid_any_more_waits(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat(harness, DELAY_CRON="* * * * *", DELAY_ZONE="Europe/Berlin")
    repeat(harness, "other", **EVERY)
    with monkeypatch.context() as patch:
        patch.setattr("delaymq.broker.delivery.repeating.cron._NOT_IN_DATABASE", ("Europe/",))
        cron_of.cache_clear()
        harness.clock.advance(MINUTE_MS)
        harness.broker.hand_over(harness.clock(), 64)
        assert [run.record.body for run in runs(harness)] == [b"other"]
        assert harness.broker.delivery.pending_total() == 2
    hand_over(harness, MINUTE_MS)
    assert {run.record.body for run in runs(harness)} == {b"other", b"m"}


def test_runs_are_counted_although_many_messages_have_the_id_as_a_key(harness: Harness) -> None:
    repeat(harness, DELAY_KEY="k", **EVERY)
    for _ in range(11):
        hand_over(harness, MINUTE_MS)
    batch = [BatchMessage(0, b"", b"KEYS\1id-m")] * 5_000
    fields = send_fields("Orders") | {"m": True}
    assert harness.answer(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(batch)).code == SUCCESS
    kill(harness)
    hand_over(harness, MINUTE_MS)
    hand_over(harness, MINUTE_MS)
    kill(harness)
    hand_over(harness, MINUTE_MS)
    assert numbers(harness) == [*range(1, 15)]
    assert harness.broker.delivery.counters.failed == 0
    assert act(harness, "cancel", DELAY_KEY="k").code == SUCCESS


def test_messages_with_the_id_as_a_key_do_not_make_a_run_expensive(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        repeat(harness, f"m{number}", UNIQ_KEY="victim", **EVERY)
    hand_over(harness, MINUTE_MS)
    batch = [BatchMessage(0, b"", b"KEYS\1victim")] * 2_000
    fields = send_fields("Orders") | {"m": True}
    assert harness.answer(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(batch)).code == SUCCESS
    kill(harness)
    lookup, read = harness.broker.delivery.lookup, 0
    found = lookup.records

    def counted(topic: str, key: str) -> Iterator[Record]:
        nonlocal read
        for record in found(topic, key):
            read += 1
            yield record

    monkeypatch.setattr(lookup, "records", counted)
    hand_over(harness, MINUTE_MS)
    assert 8 * 32 < read < 8 * 50
    assert sorted(numbers(harness)) == [1] * 8 + [2] * 8


def test_messages_with_the_ids_of_runs_as_keys_are_bounded(harness: Harness) -> None:
    repeat(harness, **EVERY)
    hand_over(harness, MINUTE_MS)
    [identity] = [record.physical_offset for record in records(harness, names.TIMER_TOPIC)]
    for key, count in (("id-m", 40), (run_id("id-m", identity, 3), 1_100)):
        batch = [BatchMessage(0, b"", b"KEYS\1" + key.encode())] * count
        fields = send_fields("Orders") | {"m": True}
        assert harness.answer(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(batch)).code == SUCCESS
    kill(harness)
    harness.clock.advance(MINUTE_MS)
    harness.broker.hand_over(harness.clock(), 64)
    assert numbers(harness) == [1]
    assert harness.broker.delivery.counters.failed == 1
    assert harness.broker.delivery.pending_total() == 1


def test_step_ends_early_if_runs_take_long(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaymq.broker.delivery.hand_over._LONGEST_STEP_S", 0.0)
    for number in range(5):
        repeat(harness, f"m{number}", **EVERY)
    harness.clock.advance(MINUTE_MS)
    for done in range(1, 6):
        assert harness.broker.hand_over(harness.clock(), 64) == 1
        assert len(runs(harness)) == done
    assert {run.record.body for run in runs(harness)} == {f"m{number}".encode() for number in range(5)}
    assert harness.broker.hand_over(harness.clock(), 64) == 0


def test_new_time_zone_database_does_not_move_an_announced_run(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat(harness, DELAY_CRON="30 9 * * *", DELAY_ZONE="Europe/Berlin")
    announced_ms = next_due_ms(harness)
    assert announced_ms is not None
    with monkeypatch.context() as patch:
        patch.setattr("delaymq.broker.delivery.repeating.cron._zone_of", lambda name: ZoneInfo("Asia/Kolkata"))
        cron_of.cache_clear()
        kill(harness)
        assert next_due_ms(harness) == announced_ms
        hand_over(harness, announced_ms - harness.clock())
        [run] = runs(harness)
        assert (run.time_ms, run.next_ms) == (announced_ms, announced_ms + (24 - 4.5) * 60 * MINUTE_MS)
    cron_of.cache_clear()


# Batches and transactions.


def test_message_of_a_batch_repeats(harness: Harness) -> None:
    batch = [BatchMessage(0, b"m", f"UNIQ_KEY\1id-m\2DELAY_EVERY_MS\1{MINUTE_MS}".encode())]
    fields = send_fields("Orders") | {"m": True}
    assert response_of(harness.ask(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(batch))).code == SUCCESS
    hand_over(harness, MINUTE_MS)
    hand_over(harness, MINUTE_MS)
    assert numbers(harness) == [1, 2]


@pytest.mark.parametrize("more", [0, 200])
def test_batch_with_too_many_repeating_messages_is_rejected(harness: Harness, more: int) -> None:
    def answer(count: int) -> Response:
        repeating = f"DELAY_EVERY_MS\1{MINUTE_MS}".encode()
        batch = [BatchMessage(0, b"m", repeating)] * count + [BatchMessage(0, b"m", b"")] * more
        return harness.answer(RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders") | {"m": True}, encode_batch(batch))

    assert answer(16).code == SUCCESS
    rejected = answer(17)
    assert (rejected.code, "more than 16 repeating messages" in str(rejected.remark)) == (ILLEGAL, True)
    assert harness.broker.delivery.pending_total() == 16


def test_commit_applies_the_schedule_from_then(open_transacting: Callable[..., Transacting]) -> None:
    harness = open_transacting()
    harness.connect()
    half = harness.prepare(**EVERY)
    harness.clock.advance(10 * MINUTE_MS)
    assert response_of(harness.end(half, COMMIT)).code == SUCCESS
    committed_ms = harness.clock()
    hand_over(harness, MINUTE_MS)
    assert [run.time_ms for run in runs(harness)] == [committed_ms + MINUTE_MS]
    kill(harness)
    hand_over(harness, MINUTE_MS)
    assert numbers(harness) == [1, 2]


def test_half_message_is_checked(open_transacting: Callable[..., Transacting]) -> None:
    harness = open_transacting()
    harness.connect()
    answer = send(harness, TRAN_MSG="true", PGROUP="payers", DELAY_CRON="* *")
    assert (answer.code, "2 fields" in str(answer.remark)) == (ILLEGAL, True)


def test_commit_after_the_last_time_ends_without_a_run(open_transacting: Callable[..., Transacting]) -> None:
    harness = open_transacting()
    harness.connect()
    half = harness.prepare(DELAY_UNTIL_MS=str(harness.clock() + 2 * MINUTE_MS), **EVERY)
    harness.clock.advance(10 * MINUTE_MS)
    assert response_of(harness.end(half, COMMIT)).code == SUCCESS
    hand_over(harness, MINUTE_MS)
    assert runs(harness) == []
    assert harness.broker.delivery.pending_total() == 0
    answer = act(harness, "cancel", TIMER_DEL_UNIQKEY=half.key)
    assert answer.fields["delayFate"] == "expired"


# Statements.


def test_first_record_states_that_it_repeats(harness: Harness) -> None:
    repeat(harness, **EVERY)
    [record] = records(harness, names.TIMER_TOPIC)
    due = parse_own_due(record.properties[names.DUE], record.physical_offset)
    assert due is not None
    assert (due.run, due.identity) == (0, record.physical_offset)


def test_stored_message_of_an_earlier_version_does_not_repeat(harness: Harness) -> None:
    repeat(harness, TIMER_DELAY_MS="1000")
    hand_over(harness, 1_000)
    ingress = harness.broker.delivery.ingress
    properties = {"UNIQ_KEY": "old", "TIMER_DELAY_MS": "1000"}
    statement = ingress.prepare_timed(properties, "Orders", 0, harness.clock() + 1_000)
    [template] = records(harness, names.TIMER_TOPIC)
    harness.broker.store.append(
        again(template, names.TIMER_TOPIC, 0, {**properties, "DELAY_EVERY_MS": "1000"}, statement)
    )
    hand_over(harness, 1_000)
    assert records(harness, "Orders")[-1].properties["UNIQ_KEY"] == "old"
    assert harness.broker.delivery.pending_total() == 0


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_format_version_is_restored_from_the_log(harness: Harness, with_snapshot: bool) -> None:
    repeat(harness, **EVERY)
    hand_over(harness, MINUTE_MS)
    folder = Path(harness.config.store_path_root_dir) / "delaymq"
    if with_snapshot:
        harness.restart()
    harness.broker.store.abandon()
    (folder / "state.json").write_bytes(b"{")
    if not with_snapshot:
        (folder / "snapshot.json").unlink(missing_ok=True)
    harness.broker = open_broker(harness.config, harness.clock)
    assert harness.broker.store.format_version == MANAGED_VERSION
