"""Changes of groups together with damage, clocks set back, rebuilds, other versions and programs, and failing disks."""

from __future__ import annotations

import pytest
from delaymq.broker.delivery.changes.changes import Requester
from delaymq.broker.delivery.changes.requests import Action, ChangeRequest, Outcome, perform
from delaymq.broker.delivery.level_entries import UNKNOWN_TOPIC
from delaymq.broker.delivery.timed import replay
from delaymq.broker.delivery.timed.requests import TimeRequest
from delaymq.schedule.buckets import Buckets
from delaymq.schedule.timeline import Timeline, state
from delaymq.schedule.timeline.inspection import count_by_due
from delaymq.schedule.timeline.rates import Smoothing
from delaymq.schedule.timeline.sweeping import Sweep
from delaymq_testing.broker.delivery_harness import HOST, START_MS, Bench

DUE_MS = START_MS + 60_000
HOUR_MS = 3_600_000


def change(bench: Bench, action: Action, due_ms: int = 0, unique_id: str | None = None) -> Outcome:
    """A change of group g, or of one message."""
    time = TimeRequest(False, due_ms)
    group = None if unique_id is not None else "g"
    request = ChangeRequest(action=action, topic="orders", group=group, unique_id=unique_id, time=time)
    return perform(bench.delivery, request, Requester("", HOST))


def maintain(bench: Bench) -> None:
    while bench.delivery.maintain():
        pass


def run(bench: Bench, now_ms: int) -> list[str]:
    """Delivers what is due; bodies of everything delivered."""
    bench.now_ms = now_ms
    bench.hand_over()
    maintain(bench)
    bench.hand_over()
    return bench.delivered()


def rebuild(bench: Bench) -> None:
    bench.kill()
    bench.snapshot = None
    bench.start()


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_held_group_is_moved_to_its_due_time_after_the_clock_was_set_back(
    is_cancelled: bool, is_restarted: bool
) -> None:
    bench = Bench()
    bench.send_timed("m", DUE_MS, DELAY_GROUP="g")
    change(bench, Action.PAUSE)
    assert run(bench, DUE_MS + 500) == []
    bench.take_snapshot()  # a run contains the held message
    bench.now_ms = DUE_MS - 5_000
    change(bench, Action.MOVE, DUE_MS)
    maintain(bench)
    bench.take_snapshot()  # a run contains its end, and another entry with the same key in another partition
    if is_restarted:
        bench.kill()
        bench.start()
    if is_cancelled:
        assert change(bench, Action.CANCEL).messages == 1
        maintain(bench)
    change(bench, Action.RESUME)
    assert run(bench, DUE_MS + 10_000) == ([] if is_cancelled else ["m"])
    assert bench.delivery.pending_total() == 0


def test_counts_are_exact_after_a_group_was_moved_away_and_back() -> None:
    bench = Bench()
    bench.send_timed("m", DUE_MS, DELAY_GROUP="g")
    bench.take_snapshot()
    for due_ms in (DUE_MS + HOUR_MS, DUE_MS) * 3:
        change(bench, Action.MOVE, due_ms)
        maintain(bench)
        bench.take_snapshot()
        buckets = Buckets(START_MS, 60_000, 200)
        timeline = bench.delivery.timeline
        for _ in count_by_due(timeline, timeline.partitions.pending(), buckets):
            continue
        assert (sum(buckets.counts), min(buckets.counts)) == (1, 0)


def test_message_that_rocketmq_delivered_is_not_delivered_again_after_its_group_was_moved() -> None:
    bench = Bench()
    place = bench.send_timed("a", DUE_MS, DELAY_GROUP="g").physical_offset
    bench.send_timed("b", DUE_MS + HOUR_MS, DELAY_GROUP="g")
    bench.now_ms = DUE_MS
    bench.foreign_deliver(place)
    bench.kill()
    bench.start()
    assert change(bench, Action.MOVE, DUE_MS + 2 * HOUR_MS).messages == 1
    rebuild(bench)
    assert bench.delivery.pending_total() == 1
    assert run(bench, DUE_MS + 3 * HOUR_MS) == ["b"]


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_damaged_mark_of_a_copy_does_not_double_a_message_whose_group_was_moved(has_snapshot: bool) -> None:
    bench = Bench()
    bench.send_timed("a", DUE_MS, DELAY_GROUP="g")
    bench.send_timed("b", DUE_MS + HOUR_MS, DELAY_GROUP="g")
    if has_snapshot:
        bench.take_snapshot()
    begin = bench.store.end_offset
    assert run(bench, DUE_MS) == ["a"]
    change(bench, Action.MOVE, DUE_MS + 2 * HOUR_MS)
    bench.kill()
    damage(bench, b"delivered:", begin)
    bench.start()
    assert run(bench, DUE_MS + 3 * HOUR_MS) == ["a", "b"]


def damage(bench: Bench, text: bytes, begin: int) -> None:
    """Flips several bits of the first occurrence."""
    log = bytearray(bench.log)
    at = log.index(text, begin)
    log[at + 1] ^= 3
    log[at + 2] ^= 5
    bench.log = bytes(log)


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_group_move_applies_after_single_moves_of_which_one_is_damaged(has_snapshot: bool) -> None:
    bench = Bench()
    bench.send_timed("a", DUE_MS, DELAY_GROUP="g")
    if has_snapshot:
        bench.take_snapshot()
    begin = bench.store.end_offset
    for due_ms in (DUE_MS + 100_000, DUE_MS + 200_000):
        change(bench, Action.MOVE, due_ms, unique_id="a")
    change(bench, Action.MOVE, DUE_MS + 2 * HOUR_MS)
    bench.kill()
    damage(bench, b":moved:", begin)
    bench.start()
    assert run(bench, DUE_MS + 300_000) == []
    assert run(bench, DUE_MS + 2 * HOUR_MS) == ["a"]


def test_start_sweeps_a_topic_once_for_many_changes_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(300):
        bench.send_timed(f"m{number}", DUE_MS + number, DELAY_GROUP=f"g{number % 100}")
    bench.take_snapshot()
    for number in range(100):
        action = Action.CANCEL if number % 2 else Action.MOVE
        request = ChangeRequest(
            action=action, topic="orders", group=f"g{number}", time=TimeRequest(False, DUE_MS + HOUR_MS)
        )
        assert perform(bench.delivery, request, Requester("", HOST)).messages == 3
    assert len(run(bench, DUE_MS + 10_000)) == 0
    assert len(run(bench, DUE_MS + HOUR_MS)) == 150
    passes: list[Sweep] = []
    begin = Sweep._begin

    def counted(sweep: Sweep) -> None:
        passes.append(sweep)
        begin(sweep)

    monkeypatch.setattr(Sweep, "_begin", counted)
    bench.kill()
    bench.start()
    assert bench.delivery.pending_total() == 0
    assert len(passes) < 5


def test_carried_messages_of_moved_groups_are_not_doubled_by_a_start() -> None:
    bench = Bench()
    for number in range(20):
        bench.send_timed(f"m{number}", DUE_MS + number, DELAY_GROUP="g")
    bench.take_snapshot()
    change(bench, Action.MOVE, DUE_MS + HOUR_MS)
    bench.store.flush()
    bench.store.expired_end = bench.store.flushed_offset
    for _ in range(50):
        bench.delivery.carry(bench.now_ms)
        bench.now_ms += 1
    assert bench.delivery.carrier.carried_messages == 20
    bench.kill()
    bench.start()
    assert bench.delivery.pending_total() == 20
    assert len(run(bench, DUE_MS + 2 * HOUR_MS)) == 20


def test_messages_of_a_version_without_groups_belong_to_their_groups_after_the_upgrade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    with monkeypatch.context() as earlier:
        earlier.setattr(replay, "group_in", lambda properties: "")
        earlier.setattr(state, "STATE_VERSION", 1)
        bench.send_timed("old", DUE_MS, DELAY_GROUP="g")
        bench.stop()
    bench.start()
    bench.send_timed("new", DUE_MS, DELAY_GROUP="g")
    assert change(bench, Action.CANCEL).messages == 2
    rebuild(bench)
    assert run(bench, DUE_MS) == []


def test_fired_group_is_delivered_although_merges_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(50):
        bench.send_timed(f"m{number}", DUE_MS + number, DELAY_GROUP="g")
    bench.take_snapshot()

    def full(self: Timeline) -> bool:
        raise OSError(28, "no space")

    monkeypatch.setattr(Timeline, "maintain", full)
    change(bench, Action.FIRE)
    for _ in range(100):
        bench.delivery.maintain()
    bench.hand_over()
    assert len(bench.delivered()) == 50


def test_held_messages_do_not_use_up_the_rate_of_their_topic() -> None:
    bench = Bench()
    bench.delivery.timeline.queues.set_rate("orders", Smoothing(per_second=10))
    for number in range(200):
        bench.send_timed(f"held{number}", DUE_MS, DELAY_GROUP="g")
    bench.send_timed("other", DUE_MS + 1)
    change(bench, Action.PAUSE)
    bench.now_ms = DUE_MS + 100
    for _ in range(500):
        bench.hand_over()
        bench.now_ms += 1
        if bench.delivered():
            break
    assert bench.delivered() == ["other"]
    assert bench.now_ms < DUE_MS + 500


def test_paused_topic_holds_level_messages_whose_topic_the_index_does_not_know() -> None:
    bench = Bench()
    bench.send("m", 1)
    timeline = bench.delivery.timeline
    [pending] = timeline.held_messages
    timeline.remove(pending)
    timeline.add(pending._replace(partition=timeline.partitions.number(UNKNOWN_TOPIC, level=1)))
    request = ChangeRequest(action=Action.PAUSE, topic="orders")
    perform(bench.delivery, request, Requester("", HOST))
    assert run(bench, START_MS + 60_000) == []
    perform(bench.delivery, ChangeRequest(action=Action.RESUME, topic="orders"), Requester("", HOST))
    assert run(bench, START_MS + 60_001) == ["m"]
