"""Transactions at start: RocketMQ's records, snapshots, wrong progress, pins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.transactions import PROGRESS_GROUP, ledger, pending
from delaymq.broker.transactions.ledger import OpProgress
from delaymq.broker.transactions.pending import PendingHalves
from delaymq.message import names
from delaymq.message.ids import offset_message_id
from delaymq.store.model import NewRecord
from delaymq_testing.broker.harness import FakeSession
from delaymq_testing.broker.transactions import COMMIT, GROUP, ROLLBACK, TOPIC, Half, Transacting
from hypothesis import given
from hypothesis import strategies as st

HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
Open = Callable[..., Transacting]


@pytest.fixture
def harness(open_transacting: Open) -> Transacting:
    return open_transacting()


def foreign_half(harness: Transacting, key: str, **properties: str) -> Half:
    """A half message as RocketMQ stores it."""
    sent = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": GROUP, "REAL_TOPIC": TOPIC, "REAL_QID": "0", **properties}
    record = NewRecord(names.HALF_TOPIC, 0, f"body of {key}".encode(), sent, 0, 0, harness.clock(), HOST, HOST)
    appended = harness.broker.store.append(record)
    return Half(key, appended.queue_offset, appended.physical_offset)


def foreign_mark(harness: Transacting, body: bytes) -> None:
    record = NewRecord(names.OP_HALF_TOPIC, 0, body, {"TAGS": "d"}, 0, 0, harness.clock(), HOST, HOST)
    harness.broker.store.append(record)


def foreign_commit(harness: Transacting, half: Half) -> None:
    """What RocketMQ appends for a commit: the copy, then the op mark without a physical offset."""
    properties = {"UNIQ_KEY": half.key, "TRAN_MSG": "true", "PGROUP": GROUP, "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
    body = f"body of {half.key}".encode()
    copy = NewRecord(TOPIC, 0, body, properties, 0, 8, 1, HOST, HOST, 0, half.physical_offset)
    harness.broker.store.append(copy)
    foreign_mark(harness, str(half.queue_offset).encode())


def forget_snapshot(harness: Transacting) -> None:
    (Path(harness.config.store_path_root_dir) / "delaymq" / "snapshot.json").unlink(missing_ok=True)


def open_offsets(harness: Transacting) -> list[int]:
    return list(harness.broker.transactions.ledger.pending.offsets())


@pytest.mark.parametrize("snapshot", [True, False])
def test_rocketmqs_op_marks_settle_the_half_messages_in_their_bodies(harness: Transacting, snapshot: bool) -> None:
    halves = [foreign_half(harness, f"F{number}") for number in range(6)]
    if snapshot:
        harness.restart()
    foreign_commit(harness, halves[1])
    foreign_mark(harness, b"3")
    foreign_mark(harness, b"not a number")
    foreign_mark(harness, b"99")
    foreign_commit(harness, halves[4])
    if not snapshot:
        forget_snapshot(harness)
    harness.kill()
    assert open_offsets(harness) == [0, 2, 5]
    assert harness.commit(halves[1]).code == 0  # again
    assert harness.commit(halves[3]).code == 1
    assert harness.committed_keys() == ["F1", "F4"]
    assert harness.commit(halves[0]).code == 0
    harness.kill()
    assert open_offsets(harness) == [2, 5]


def test_half_messages_behind_rocketmqs_progress_are_settled(harness: Transacting) -> None:
    for number in range(4):
        foreign_half(harness, f"F{number}")
    harness.broker.offsets.commit(names.HALF_TOPIC, PROGRESS_GROUP, 0, 3)
    harness.broker._tables.write_definitions()
    for write in harness.broker._tables.changed(harness.clock()):
        write()
    harness.kill()
    assert open_offsets(harness) == [3]


def test_newest_of_rocketmqs_restored_half_messages_counts_after_a_kill(harness: Transacting) -> None:
    first = foreign_half(harness, "A")
    other = foreign_half(harness, "B")
    newer = foreign_half(harness, "A", TRANSACTION_CHECK_TIMES="1")
    newest = foreign_half(harness, "A", TRANSACTION_CHECK_TIMES="2")
    harness.kill()
    assert open_offsets(harness) == [other.queue_offset, newest.queue_offset]
    harness.check()
    assert sorted(harness.marks()) == [first.queue_offset, newer.queue_offset]
    assert harness.commit(first).code == 1
    session = harness.connect()
    harness.next_round()
    for command in session.notified:
        half = Half.of_check(command)
        assert harness.end(half, COMMIT if half.key == "A" else ROLLBACK).code == 0
    assert harness.committed_keys() == ["A"]


def test_rocketmqs_check_counts_are_kept(open_transacting: Open) -> None:
    harness = open_transacting(transaction_check_max=3)
    foreign_half(harness, "A", TRANSACTION_CHECK_TIMES="2")
    harness.kill()
    session = harness.connect()
    harness.next_round()
    harness.next_round()
    assert len(session.notified) == 1
    assert [r.properties["UNIQ_KEY"] for r in harness.records(names.TRANS_CHECK_MAX_TOPIC)] == ["A"]


def test_messages_discarded_by_rocketmq_can_be_checked_again_once(harness: Transacting) -> None:
    harness.send(TOPIC)
    properties = {"UNIQ_KEY": "G", "TRAN_MSG": "true", "PGROUP": GROUP, "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
    copy = NewRecord(names.TRANS_CHECK_MAX_TOPIC, 0, b"body of G", properties, 0, 0, 1, HOST, HOST)
    place = harness.broker.store.append(copy).physical_offset
    message = {"msgId": offset_message_id(HOST, place)}
    for _ in range(2):
        assert harness.answer(323, message).code == 0
        harness.kill()
        assert harness.pending == 1
    session = harness.connect()
    harness.next_round()
    assert harness.commit(Half.of_check(session.notified[0])).code == 0
    assert harness.answer(323, message).code == 1
    assert [r.properties.get("UNIQ_KEY") for r in harness.records(TOPIC)] == [None, "G"]


def test_retry_of_a_committed_message_settles_nothing(harness: Transacting) -> None:
    """RocketMQ's send-back keeps the commit bit and no offset, which reads as that of the first record."""
    first = harness.prepare()
    assert first.physical_offset == 0
    properties = {"UNIQ_KEY": "another", "TRAN_MSG": "true"}
    harness.broker.store.append(NewRecord("%RETRY%readers", 0, b"b", properties, 0, 8, 1, HOST, HOST, 1))
    assert harness.pending == 1
    harness.kill()
    assert harness.pending == 1
    assert harness.commit(first).code == 0
    forget_snapshot(harness)
    harness.kill()
    assert harness.pending == 0
    assert harness.commit(first).code == 0
    assert harness.committed_keys() == ["U1"]


def test_ranges_beyond_the_snapshots_limit_are_found_by_their_op_marks(
    open_transacting: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MAX_RUNS", 3)
    harness = open_transacting()
    halves = [harness.prepare() for _ in range(40)]
    for half in halves[::2]:
        harness.commit(half)
    for half in halves[1::10]:
        harness.roll_back(half)
    expected = open_offsets(harness)
    assert len(expected) == 16
    harness.restart()
    assert harness.broker.store.recovery.snapshot_used
    assert open_offsets(harness) == expected
    late = harness.prepare()
    harness.commit(halves[3])
    harness.kill()
    assert open_offsets(harness) == [offset for offset in expected if offset != 3] + [late.queue_offset]


@pytest.mark.parametrize(
    "state",
    [
        5,
        {"version": 9},
        {"version": 1},
        {"version": 1, "pending": [[1]], "knownTo": None, "halfEnd": 1, "opEnd": 0, "lastOffset": 0, "unmarked": []},
        {"version": 1, "pending": 7, "knownTo": None, "halfEnd": 1, "opEnd": 0, "lastOffset": 0, "unmarked": []},
    ],
)
def test_invalid_state_is_rejected(state: object) -> None:
    with pytest.raises(ValueError, match=r"transactions|unpack"):
        ledger.Ledger(6_000).restore(state)


def test_commit_that_crashed_before_its_op_mark_gets_it_at_start(harness: Transacting) -> None:
    half = harness.prepare()
    harness.prepare()
    broker = harness.broker
    append = broker.store.append

    def failing(message: NewRecord) -> Any:
        if message.topic == names.OP_HALF_TOPIC:
            raise OSError("no")
        return append(message)

    broker.store.append = failing
    assert harness.commit(half).code == 0
    assert harness.marks() == []
    harness.kill()
    assert harness.committed_keys() == ["U1"]
    assert open_offsets(harness) == [1]
    harness.check()
    assert harness.marks() == [0]
    harness.check()
    assert harness.marks() == [0]


def test_commit_that_failed_after_its_append_is_not_repeated(harness: Transacting) -> None:
    half = harness.prepare()
    store = harness.broker.store
    append = store.append

    def failing_late(message: NewRecord) -> Any:
        append(message)
        raise OSError("the index failed")

    store.append = failing_late
    assert harness.commit(half).code == 0
    store.append = append
    assert harness.commit(half).code == 0
    assert harness.committed_keys() == ["U1"]


def test_store_without_space_rejects_the_commit_and_keeps_the_half_message(harness: Transacting) -> None:
    half = harness.prepare()
    store = harness.broker.store
    disk, store._retention.disk = store._retention.disk, store._retention.disk._replace(writes_refused=True)
    assert harness.commit(half).code == 14
    assert harness.roll_back(half).code == 14
    assert harness.pending == 1
    store._retention.disk = disk
    assert harness.commit(half).code == 0
    assert harness.committed_keys() == ["U1"]


def stated(harness: Transacting) -> tuple[int | None, int | None]:
    task = harness.broker.persist_task(harness.clock())
    if task is not None:
        task.run()
        task.finish()
    path = Path(harness.config.store_path_root_dir) / "config" / "consumerOffset.json"
    table = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
    topics = names.HALF_TOPIC, names.OP_HALF_TOPIC
    half, op = (table.get(f"{topic}@{PROGRESS_GROUP}", {}).get("0") for topic in topics)
    return half, op


def test_stored_progress_is_never_ahead_of_durable_data(harness: Transacting) -> None:
    halves = [harness.prepare() for _ in range(3)]
    harness.flush()
    stated(harness)
    harness.commit(halves[0])
    assert stated(harness) == (0, 0)
    harness.flush()
    stated(harness)
    harness.flush()
    assert stated(harness) == (1, 0)
    for half in halves[1:]:
        harness.commit(half)
    harness.flush()
    stated(harness)
    assert stated(harness) == (3, 3)


def test_forged_progress_is_corrected_before_it_is_written(harness: Transacting) -> None:
    half = harness.prepare()
    harness.flush()
    stated(harness)
    fields = {"consumerGroup": PROGRESS_GROUP, "topic": names.HALF_TOPIC, "queueId": 0, "commitOffset": 1}
    harness.ask(15, fields)
    assert stated(harness)[0] == 0
    harness.ask(15, fields)
    harness.kill()
    assert harness.pending == 1
    assert harness.commit(half).code == 0


def test_store_without_transactions_stores_no_progress(harness: Transacting) -> None:
    harness.send(TOPIC)
    harness.flush()
    assert stated(harness) == (None, None)
    assert harness.broker.transactions.check(harness.clock(), 10) == 0


def pinned(harness: Transacting) -> int | None:
    return {pin.holder: pin.offset for pin in harness.broker.store.pins.report()}.get("half messages")


def test_log_is_kept_from_the_oldest_open_half_message_until_its_end_is_durable(
    harness: Transacting,
) -> None:
    assert pinned(harness) is None
    harness.send(TOPIC)
    first, second = harness.prepare(), harness.prepare()
    harness.flush()
    pinned(harness)
    assert pinned(harness) == first.physical_offset
    harness.commit(first)
    assert pinned(harness) == first.physical_offset
    harness.flush()
    pinned(harness)
    harness.flush()
    assert pinned(harness) == second.physical_offset
    harness.roll_back(second)
    harness.restart()
    assert pinned(harness) is None


def test_segments_with_open_half_messages_outlive_retention(open_transacting: Open) -> None:
    harness = open_transacting(mapped_file_size_commit_log=64 * 1024, file_reserved_time=72)
    half = harness.prepare()
    for _ in range(300):
        harness.send(TOPIC, b"x" * 1_000)
    while (task := harness.broker.store.allocation_task()) is not None:
        task.run()
        task.finish()
    harness.flush()
    harness.broker.store.clean(harness.clock() + 80 * 3_600_000, at_any_hour=True)
    assert harness.broker.store.min_offset == 0
    assert harness.commit(half).code == 0


def test_read_only_broker_ends_no_transaction(open_transacting: Open) -> None:
    harness = open_transacting()
    half = harness.prepare()
    harness.reopen(read_only=True)
    assert harness.pending == 1
    assert harness.end(half, COMMIT).code == 16
    harness.reopen()


def test_check_can_go_to_a_producer_connected_after_the_start(harness: Transacting) -> None:
    harness.prepare()
    harness.kill()
    session = FakeSession()
    harness.connect(session=session)
    harness.next_round()
    assert [command.fields["msgId"] for command in session.notified] == ["U1"]


@given(
    count=st.integers(0, 400),
    settled=st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=400),
    small=st.sampled_from([4, 16, 1_024]),
)
def test_pending_half_messages_are_found_by_both_offsets(
    count: int, settled: list[tuple[int, bool]], small: int
) -> None:
    kept = pending._CHUNK_HALVES, pending._JOINED_BELOW
    pending._CHUNK_HALVES, pending._JOINED_BELOW = small, small // 4
    try:
        halves = PendingHalves()
        model = {}
        for number in range(count):
            halves.add(2 * number, 1_000 + 7 * number, number, number % 3, number % 5)
            model[2 * number] = 1_000 + 7 * number
        for number, by_place in settled:
            offset, place = 2 * number, 1_000 + 7 * number
            expected = model.pop(offset, None)
            if by_place:
                assert halves.settle(place) == (None if expected is None else offset)
            else:
                assert halves.settle_offset(offset) == expected
            assert halves.settle(place + 1) is None
            assert halves.settle_offset(offset + 1) is None
        assert len(halves) == len(model)
        assert list(halves.offsets()) == sorted(model)
        assert halves.first() == (min(model.items()) if model else None)
        for offset, place in model.items():
            found = halves.find(place)
            assert found is not None
            assert found[0].offsets[found[1]] == offset
            assert found[0].checks[found[1]] == offset // 2 % 5
        runs, known_to = halves.runs(10_000)
        assert known_to is None
        assert [offset for first, end, _ in runs for offset in range(first, end)] == sorted(model)
        few, known_to = halves.runs(3)
        told = [offset for first, end, _ in few for offset in range(first, end)]
        assert told == [offset for offset in sorted(model) if known_to is None or offset < known_to]
    finally:
        pending._CHUNK_HALVES, pending._JOINED_BELOW = kept


@given(st.lists(st.tuples(st.integers(0, 4_000), st.integers(1, 4_000)), max_size=20))
def test_op_queue_progress_never_passes_a_required_mark(steps: list[tuple[int, int]]) -> None:
    progress = OpProgress(0)
    op_end = half_end = half_low = 0
    needed: list[tuple[int, int]] = []
    for marks, halves in steps:
        half_end += halves
        for _ in range(marks):
            progress.advance(op_end, half_end)
            needed.append((op_end, half_end - 1))
            op_end += 1
        half_low = max(half_low, half_end - 2_000)
        low = progress.low(half_low, op_end, all_settled=False)
        assert low <= op_end
        assert all(offset >= low or half < half_low for offset, half in needed)
        needed = [each for each in needed if each[0] >= low]
    assert progress.low(half_end, op_end, all_settled=True) == op_end
