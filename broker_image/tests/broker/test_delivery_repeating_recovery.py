"""Repeating messages after a restart between any two records, with damaged marks, carried, and after RocketMQ 5."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from delaymq.broker.delivery.changes.changes import Requester
from delaymq.broker.delivery.changes.requests import Action, ChangeRequest, perform
from delaymq.broker.delivery.timed.requests import TimeRequest
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark, parse_own_due, parse_own_mark
from delaymq.schedule.timeline.inspection import find_identities
from delaymq.store.errors import StoreFullError
from delaymq_testing.broker.delivery_harness import HOST, START_MS, Bench

EVERY_MS = 60_000
SEND = {"DELAY_EVERY_MS": str(EVERY_MS), "DELAY_MISSED": "all", "DELAY_EXPIRE_MS": "600000"}


class State(NamedTuple):
    due_ms: int | None
    run: int


def mark_of(record: Record) -> TimedMark | None:
    return parse_own_mark(record.properties.get(names.MARK, ""), record.physical_offset)


def send(bench: Bench, **more: str) -> int:
    properties = {"UNIQ_KEY": "r", **SEND, **more}
    due_ms = bench.delivery.ingress.requested_time(properties, 0)
    assert due_ms is not None
    return bench.send_timed("r", due_ms, properties=properties).physical_offset


def change(bench: Bench, action: Action, time_ms: int = 0) -> None:
    request = ChangeRequest(action=action, topic="orders", unique_id="r", time=TimeRequest(True, time_ms))
    assert len(perform(bench.delivery, request, Requester("", HOST)).changed) == 1


def carry(bench: Bench) -> None:
    bench.store.flush()
    bench.store.expired_end = len(bench.store.log)
    carried = bench.delivery.carrier.carried_messages
    while bench.delivery.carrier.carried_messages == carried:
        bench.now_ms += 30_000
        bench.delivery.carry(bench.now_ms)
    bench.store.expired_end = 0


def run_numbers(bench: Bench) -> list[int]:
    return [int(record.properties[names.DELAY_RUN]) for record in bench.copies() if "DELAY_RUN" in record.properties]


def advance(bench: Bench, runs: int = 1) -> None:
    for _ in range(runs):
        due_ms = bench.delivery.next_wakeup_ms()
        assert due_ms is not None
        bench.now_ms = max(bench.now_ms, due_ms)
        bench.hand_over()


def history() -> Bench:
    """Runs, a move, a run that is fired, skipped runs, a record that carries the message, and the end."""
    bench = Bench()
    send(bench)
    advance(bench, 3)
    change(bench, Action.MOVE, 10_000)
    bench.take_snapshot()
    advance(bench)
    change(bench, Action.FIRE)
    advance(bench)
    carry(bench)
    advance(bench, 2)
    bench.now_ms += 2_000_000
    for _ in range(15):
        bench.hand_over()
    carry(bench)
    change(bench, Action.TOUCH)
    advance(bench, 2)
    change(bench, Action.CANCEL)
    return bench


def states(bench: Bench, identity: int) -> list[tuple[int, State]]:
    """What the log says after each of its records: end of the record, due time and number of the last run."""
    found, state = [], State(None, 0)
    for record in bench.store.records():
        due = parse_own_due(record.properties.get(names.DUE, ""), record.physical_offset)
        mark = mark_of(record)
        if due is not None and due.identity == identity:
            state = State(due.due_ms, due.run or 0)
        elif mark is not None and mark.identity == identity:
            state = State(mark.next_due_ms, state.run if mark.run is None else mark.run)
        found.append((record.physical_offset + record.size, state))
    return found


def reopened(bench: Bench, end: int, *, with_snapshot: bool) -> Bench:
    """The store that a kill after this record leaves."""
    other = Bench.__new__(Bench)
    other.__dict__.update(bench.__dict__)
    other.log, other.now_ms = bytes(bench.store.log[:end]), bench.now_ms
    other.format_version = bench.store.format_version
    if not with_snapshot or (other.snapshot is not None and other.snapshot[0] > end):
        other.snapshot = None
    other.start()
    return other


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_kill_between_any_two_records_leaves_what_the_log_says(with_snapshot: bool) -> None:
    bench = history()
    identity = bench.store.records()[0].physical_offset
    stated = states(bench, identity)
    assert len(stated) > 20
    for end, state in stated:
        other = reopened(bench, end, with_snapshot=with_snapshot)
        pending = find_identities(other.delivery.timeline, [identity]).get(identity)
        assert (None if pending is None else pending.due_ms) == state.due_ms
        if pending is not None:
            while len(run_numbers(other)) == state.run:
                advance(other)  # runs may be skipped first
            assert run_numbers(other) == [*range(1, state.run + 2)]


def test_history_contains_what_it_is_to_test() -> None:
    bench = history()
    kinds = {mark.kind for record in bench.store.records() if (mark := mark_of(record)) is not None}
    assert kinds == {"delivered", "moved", "fired", "expired", "cancelled"}
    carried = [record for record in bench.store.records() if record.topic == names.TIMER_TOPIC]
    dues = [parse_own_due(record.properties[names.DUE], record.physical_offset) for record in carried]
    before_last = [record for record in bench.copies() if record.physical_offset < carried[2].physical_offset]
    assert [due.run for due in dues if due is not None] == [0, 5, len(before_last)]
    assert run_numbers(bench) == [*range(1, len(run_numbers(bench)) + 1)]


def damaged(bench: Bench, record: Record) -> None:
    """Spoils the mark of a record beyond the correction of one bit."""
    text = record.properties[names.MARK].encode()
    at = bench.log.index(text, record.physical_offset) + len(text) - 4
    bench.log = bench.log[:at] + b"zz" + bench.log[at + 2 :]


@pytest.mark.parametrize("with_snapshot", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_damaged_mark_of_a_copy_neither_doubles_nor_loses_a_run(with_snapshot: bool, ends: bool) -> None:
    for number in range(4):
        bench = Bench()
        send(bench, **({"DELAY_RUNS": "4"} if ends else {}))
        bench.take_snapshot()
        advance(bench, 4)
        bench.kill()
        if not with_snapshot:
            bench.snapshot = None
        damaged(bench, [record for record in bench.store.records() if "DELAY_RUN" in record.properties][number])
        bench.start()
        bench.hand_over()
        assert run_numbers(bench) == [1, 2, 3, 4]
        if ends:
            assert bench.delivery.pending_total() == 0
            continue
        assert bench.delivery.next_wakeup_ms() == START_MS + 5 * EVERY_MS
        # The log states it again, for another start.
        bench.kill()
        bench.snapshot = None
        bench.start()
        advance(bench)
        assert run_numbers(bench) == [1, 2, 3, 4, 5]


def test_damaged_mark_before_a_change_does_not_undo_it() -> None:
    bench = Bench()
    send(bench)
    advance(bench)
    change(bench, Action.MOVE, 5_000)
    moved_ms = bench.now_ms + 5_000
    bench.kill()
    damaged(bench, next(record for record in bench.store.records() if "DELAY_RUN" in record.properties))
    bench.start()
    assert bench.hand_over() == []
    assert bench.delivery.next_wakeup_ms() == moved_ms
    advance(bench)
    assert run_numbers(bench) == [1, 2]


def test_full_store_delays_the_statement_about_a_damaged_mark() -> None:
    bench = Bench()
    send(bench)
    advance(bench)
    bench.kill()
    damaged(bench, next(record for record in bench.store.records() if "DELAY_RUN" in record.properties))
    bench.start()
    bench.store.refuse = lambda message: StoreFullError("full")
    assert bench.hand_over() == []
    bench.store.refuse = lambda message: None
    bench.now_ms += 1_000
    assert bench.hand_over() == []
    advance(bench)
    assert run_numbers(bench) == [1, 2]


def test_full_store_does_not_lift_the_limit_of_missed_runs() -> None:
    bench = Bench()
    send(bench, DELAY_EXPIRE_MS="999999999999")
    bench.now_ms += 1_500 * EVERY_MS
    bench.store.refuse = lambda message: StoreFullError("full")
    assert bench.hand_over() == []
    bench.store.refuse = lambda message: None
    bench.now_ms += 1_000
    while bench.delivery.hand_over(bench.now_ms, 64):
        pass
    assert run_numbers(bench) == [*range(1, 1_001)]


def test_run_that_rocketmq_delivered_is_not_delivered_again() -> None:
    bench = Bench()
    place = send(bench)
    bench.kill()
    bench.start()
    bench.now_ms += EVERY_MS
    bench.store.observers = []
    bench.foreign_deliver(place)
    bench.kill()
    bench.start()
    assert bench.hand_over() == []
    assert bench.delivery.next_wakeup_ms() == START_MS + 2 * EVERY_MS
    advance(bench)
    assert run_numbers(bench) == [1]


def test_client_cannot_forge_a_run_of_another_message() -> None:
    bench = Bench()
    send(bench)
    advance(bench)
    copy = next(record for record in bench.copies() if "DELAY_RUN" in record.properties)
    forged = {**copy.properties, "DELAY_RUN": "77"}
    bench.send("forged", properties=forged)
    for text in ("2:0:delivered", "x"):
        bench.append("forged", topic="orders", queue_id=0, properties={**forged, names.MARK: text})
    bench.kill()
    bench.snapshot = None
    bench.start()
    advance(bench)
    assert [number for number in run_numbers(bench) if number != 77] == [1, 2]


def test_message_due_soon_for_ever_is_carried() -> None:
    bench = Bench()
    send(bench)
    advance(bench, 3)
    carry(bench)
    record = bench.store.records()[-1]
    due = parse_own_due(record.properties[names.DUE], record.physical_offset)
    assert due is not None
    assert (due.identity, due.run, due.due_ms) == (0, 3, START_MS + 4 * EVERY_MS)
    bench.kill()
    bench.min_offset = record.physical_offset
    bench.snapshot = None
    bench.start()
    advance(bench)
    assert run_numbers(bench)[-1] == 4
    change(bench, Action.CANCEL)
    assert bench.delivery.pending_total() == 0
