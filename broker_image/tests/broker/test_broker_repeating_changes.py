"""Changes of repeating messages on request: single ones between runs, replacements, groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from delaymq.broker.opening import open_broker
from delaymq_testing.broker.changing import ILLEGAL, NOT_DONE, SUCCESS, act, recall
from delaymq_testing.broker.harness import Harness
from delaymq_testing.broker.repeating import MINUTE_MS, hand_over, kill, numbers, repeat, runs

EVERY = {"DELAY_EVERY_MS": str(MINUTE_MS)}


@pytest.mark.parametrize("by", [{"DELAY_KEY": "k"}, {"TIMER_DEL_UNIQKEY": "id-m"}])
def test_cancel_between_runs_ends_the_schedule(harness: Harness, by: dict[str, str]) -> None:
    repeat(harness, DELAY_KEY="k", **EVERY)
    hand_over(harness, MINUTE_MS)
    assert act(harness, "cancel", **by).code == SUCCESS
    kill(harness)
    hand_over(harness, 5 * MINUTE_MS)
    assert numbers(harness) == [1]
    assert harness.broker.delivery.pending_total() == 0
    answer = act(harness, "fire", **by)
    assert (answer.code, answer.fields["delayFate"]) == (NOT_DONE, "cancelled")


def test_recall_handle_ends_the_schedule_after_runs(harness: Harness) -> None:
    handle = repeat(harness, **EVERY).fields["recallHandle"]
    hand_over(harness, MINUTE_MS)
    assert recall(harness, handle).code == SUCCESS
    assert harness.broker.delivery.pending_total() == 0


def test_move_and_fire_apply_to_the_next_run(harness: Harness) -> None:
    repeat(harness, DELAY_KEY="k", DELAY_EVERY_MS="600000")
    moved_ms = harness.clock() + 4 * MINUTE_MS
    assert act(harness, "move", DELAY_KEY="k", TIMER_DELIVER_MS=str(moved_ms)).code == SUCCESS
    kill(harness)
    hand_over(harness, 4 * MINUTE_MS)
    assert [(run.time_ms, run.next_ms) for run in runs(harness)] == [(moved_ms, moved_ms + 600_000)]
    assert act(harness, "fire", DELAY_KEY="k").code == SUCCESS
    fired_ms = harness.clock()
    hand_over(harness)
    assert runs(harness)[-1].time_ms - fired_ms in (0, 1)
    assert runs(harness)[-1].next_ms == runs(harness)[-1].time_ms + 600_000
    assert numbers(harness) == [1, 2]


def test_touch_restarts_an_interval_and_finds_the_next_time_of_a_cron(harness: Harness) -> None:
    repeat(harness, DELAY_KEY="k", **EVERY)
    repeat(harness, "c", DELAY_KEY="c", DELAY_CRON="0 * * * *")
    assert act(harness, "move", DELAY_KEY="c", TIMER_DELAY_MS="86400000").code == SUCCESS
    hand_over(harness, 50_000)
    touched = act(harness, "touch", DELAY_KEY="k")
    assert touched.fields["delayDueMs"] == str(harness.clock() + MINUTE_MS)
    touched = act(harness, "touch", DELAY_KEY="c")
    assert int(touched.fields["delayDueMs"]) - 3_600_000 <= harness.clock()
    assert int(touched.fields["delayDueMs"]) % 3_600_000 in (0, 1)


def test_run_is_not_moved_beyond_the_end(harness: Harness) -> None:
    repeat(harness, DELAY_KEY="k", DELAY_UNTIL_MS=str(harness.clock() + 2 * MINUTE_MS), **EVERY)
    answer = act(harness, "move", DELAY_KEY="k", TIMER_DELAY_MS="120001")
    assert answer.code == ILLEGAL
    assert "after DELAY_UNTIL_MS=" in str(answer.remark)
    harness.clock.advance(90_000)
    answer = act(harness, "touch", DELAY_KEY="k")
    assert (answer.code, "which is before the first run" in str(answer.remark)) == (ILLEGAL, True)


def test_message_with_the_same_key_replaces_a_schedule_between_runs(harness: Harness) -> None:
    repeat(harness, DELAY_KEY="k", DELAY_EXPIRE_MS="1000", **EVERY)
    hand_over(harness, MINUTE_MS)
    kept = repeat(harness, "kept", DELAY_KEY="k", DELAY_ON_SAME_KEY="keep", **EVERY)
    assert kept.fields["delayKept"] == "true"
    repeat(harness, "other", DELAY_KEY="k", DELAY_EVERY_MS="30000")
    kill(harness)
    hand_over(harness, MINUTE_MS)
    assert [run.record.body for run in runs(harness)] == [b"m", b"other"]
    assert harness.broker.delivery.pending_total() == 1
    answer = act(harness, "cancel", TIMER_DEL_UNIQKEY="id-m")
    assert (answer.code, answer.fields["delayFate"]) == (NOT_DONE, "replaced")


# Groups.


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_group_is_changed_between_runs(harness: Harness, with_snapshot: bool) -> None:
    def start_again() -> None:
        if with_snapshot:
            harness.restart()
        else:
            kill(harness)
            harness.broker.store.abandon()
            (Path(harness.config.store_path_root_dir) / "delaymq/snapshot.json").unlink(missing_ok=True)
            harness.broker = open_broker(harness.config, harness.clock)

    repeat(harness, DELAY_GROUP="g", DELAY_KEY="k", **EVERY)
    hand_over(harness, MINUTE_MS)
    moved_ms = harness.clock() + 5 * MINUTE_MS
    assert act(harness, "move", DELAY_GROUP="g", TIMER_DELIVER_MS=str(moved_ms)).fields["delayChanged"] == "1"
    start_again()
    hand_over(harness, 4 * MINUTE_MS)
    assert numbers(harness) == [1]
    hand_over(harness, MINUTE_MS)
    assert [(run.number, run.time_ms) for run in runs(harness)][1:] == [(2, moved_ms)]
    start_again()
    hand_over(harness, MINUTE_MS)
    assert numbers(harness) == [1, 2, 3]
    assert act(harness, "pause", DELAY_GROUP="g").code == SUCCESS
    start_again()
    hand_over(harness, 3 * MINUTE_MS)
    assert numbers(harness) == [1, 2, 3]
    assert act(harness, "resume", DELAY_GROUP="g").code == SUCCESS
    hand_over(harness)
    assert [run.number for run in runs(harness)] == [1, 2, 3, 4]
    assert runs(harness)[-1].time_ms == runs(harness)[-2].time_ms + 3 * MINUTE_MS
    assert act(harness, "touch", DELAY_KEY="k").code == SUCCESS
    assert act(harness, "cancel", DELAY_GROUP="g").fields["delayChanged"] == "1"
    start_again()
    hand_over(harness, 5 * MINUTE_MS)
    assert numbers(harness) == [1, 2, 3, 4]
    assert harness.broker.delivery.pending_total() == 0
    answer = act(harness, "cancel", TIMER_DEL_UNIQKEY="id-m")
    assert (answer.code, answer.fields.get("delayFate", "cancelled")) in ((SUCCESS, "cancelled"), (604, "cancelled"))


@pytest.mark.parametrize("target", [{"DELAY_GROUP": "g"}, {"DELAY_KEY": "k"}])
def test_overdue_run_that_is_fired_after_the_end_is_delivered_as_the_last_one(
    harness: Harness, target: dict[str, str]
) -> None:
    repeat(harness, DELAY_GROUP="g", DELAY_KEY="k", DELAY_UNTIL_MS=str(harness.clock() + 2 * MINUTE_MS), **EVERY)
    assert act(harness, "pause", DELAY_GROUP="g").code == SUCCESS
    hand_over(harness, 3 * MINUTE_MS)
    assert act(harness, "fire", **target).code == SUCCESS
    kill(harness)
    fired_ms = harness.clock()
    assert act(harness, "resume", DELAY_GROUP="g").code == SUCCESS
    hand_over(harness)
    [run] = runs(harness)
    assert run.time_ms - fired_ms in (0, 1)
    assert run.next_ms is None
    assert harness.broker.delivery.pending_total() == 0


def test_run_that_is_moved_beyond_the_end_with_its_group_is_the_last_one(harness: Harness) -> None:
    repeat(harness, DELAY_GROUP="g", DELAY_UNTIL_MS=str(harness.clock() + 2 * MINUTE_MS), **EVERY)
    moved_ms = harness.clock() + 5 * MINUTE_MS
    assert act(harness, "move", DELAY_GROUP="g", TIMER_DELIVER_MS=str(moved_ms)).code == SUCCESS
    hand_over(harness, 4 * MINUTE_MS)
    assert numbers(harness) == []
    kill(harness)
    hand_over(harness, 10 * MINUTE_MS)
    assert [(run.number, run.time_ms, run.next_ms) for run in runs(harness)] == [(1, moved_ms, None)]
    assert harness.broker.delivery.counters.skipped == 0
