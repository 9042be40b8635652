"""Transaction checks: recipients, times, counts, and half messages whose checks go unanswered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from delaymq.message import names
from delaymq.message.ids import offset_message_id
from delaymq.message.record import decode_record
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Response
from delaymq.store.model import DiskState
from delaymq_testing.broker.harness import FakeSession
from delaymq_testing.broker.transactions import GROUP, TOPIC, Half, Transacting

Open = Callable[..., Transacting]


@pytest.fixture
def harness(open_transacting: Open) -> Transacting:
    return open_transacting()


def asked(session: FakeSession) -> list[str]:
    """The unique keys of a producer's checks, in order."""
    return [command.fields["msgId"] for command in session.notified]


def test_check_carries_the_message_as_it_would_be_committed(harness: Transacting) -> None:
    session = harness.connect()
    half = harness.prepare(KEYS="k", TAGS="paid")
    assert harness.next_round() == 1
    [command] = session.notified
    assert command.code == RequestCode.CHECK_TRANSACTION_STATE
    assert command.is_oneway
    assert command.fields == {
        "tranStateTableOffset": "0",
        "commitLogOffset": str(half.physical_offset),
        "offsetMsgId": offset_message_id(harness.broker.store_host, half.physical_offset),
        "msgId": "U1",
        "transactionId": "U1",
    }
    record = decode_record(command.body)
    assert (record.topic, record.queue_id, record.queue_offset) == (TOPIC, 0, 0)
    assert record.physical_offset == half.physical_offset
    assert record.body == b"body of U1"
    assert record.properties["WAIT"] == "false"
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert record.properties["PGROUP"] == GROUP


def test_no_check_is_sent_before_the_timeout_or_twice_in_a_round(open_transacting: Open) -> None:
    harness = open_transacting(transaction_time_out=6_000, transaction_check_interval=2_000)
    session = harness.connect()
    harness.prepare()
    for _ in range(5):
        harness.clock.advance(1_000)
        harness.check()
    assert session.notified == []
    harness.clock.advance(1_000)
    harness.check()
    assert asked(session) == ["U1"]
    harness.check()
    harness.clock.advance(1_000)
    harness.check()
    assert asked(session) == ["U1"]
    harness.clock.advance(1_000)
    harness.check()
    assert asked(session) == ["U1", "U1"]


@pytest.mark.parametrize(("immunity", "rounds"), [("30", 3), ("-1", 1), ("x", 1), ("9999999999", 1), ("0", 1)])
def test_message_may_set_its_immunity_time(open_transacting: Open, immunity: str, rounds: int) -> None:
    harness = open_transacting(transaction_time_out=6_000, transaction_check_interval=10_000)
    session = harness.connect()
    harness.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS=immunity)
    done = 0
    while not session.notified:
        harness.next_round()
        done += 1
        assert done < 20
    assert done == rounds


def test_checks_rotate_among_producers_of_a_group(harness: Transacting) -> None:
    first, second = harness.connect(), harness.connect()
    harness.prepare()
    for _ in range(4):
        harness.next_round()
    assert [len(asked(session)) for session in (first, second)] == [2, 2]


def test_undelivered_check_does_not_count_and_the_round_continues(open_transacting: Open) -> None:
    """Large messages are faster than a connection: what did not fit would be given up without having been asked."""
    harness = open_transacting(transaction_check_max=2)
    session = harness.connect()
    session.room = 2
    for _ in range(3):
        harness.prepare()
    assert harness.next_round() == 2
    assert harness.check() == 0
    session.room = 5
    assert harness.check() == 1
    assert asked(session) == ["U1", "U2", "U3"]
    assert harness.check() == 0
    assert harness.next_round() == 3
    assert harness.next_round() == 3
    assert (harness.pending, harness.broker.transactions.totals().given_up) == (0, 3)
    assert harness.broker.transactions.totals().checked == 6


def test_unreachable_group_does_not_block_checks_of_others(open_transacting: Open) -> None:
    harness = open_transacting(transaction_check_max=1)
    deaf, well = harness.connect("deaf"), harness.connect("well")
    deaf.room = 0
    for _ in range(3):
        harness.prepare(group="deaf")
        harness.prepare(group="well")
    for _ in range(3):
        harness.next_round()
        for _ in range(10):
            harness.check()
    assert asked(well) == ["U2", "U4", "U6"]
    assert (harness.pending, harness.broker.transactions.totals().given_up) == (3, 3)
    deaf.room = None
    harness.next_round()
    assert asked(deaf) == ["U1", "U3", "U5"]


def test_check_skips_a_producer_with_a_backlog(harness: Transacting) -> None:
    behind, ready = harness.connect(), harness.connect()
    behind.room = 0
    for _ in range(4):
        harness.prepare()
    harness.next_round()
    assert asked(ready) == ["U1", "U2", "U3", "U4"]


def test_immunity_holds_across_a_restart(open_transacting: Open) -> None:
    harness = open_transacting(transaction_check_interval=10_000)
    harness.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    harness.restart()
    session = harness.connect()
    for _ in range(4):
        harness.next_round()
    assert session.notified == []
    for _ in range(2):
        harness.next_round()
    assert asked(session) == ["U1"]


def test_birth_time_in_the_future_does_not_defer_the_check(harness: Transacting) -> None:
    session = harness.connect()
    harness.send(TOPIC, b"b", {"UNIQ_KEY": "F", "TRAN_MSG": "true", "PGROUP": GROUP}, g=2**62)
    harness.next_round()
    assert asked(session) == ["F"]


def test_checks_rotate_among_producers_of_the_group_only(harness: Transacting) -> None:
    first, second, other = harness.connect(), harness.connect(), harness.connect("others")
    for _ in range(6):
        harness.prepare()
    harness.next_round()
    assert len(first.notified) == len(second.notified) == 3
    assert sorted(asked(first) + asked(second)) == [f"U{number}" for number in range(1, 7)]
    assert other.notified == []


def test_check_is_deferred_and_not_counted_without_a_producer(harness: Transacting) -> None:
    session = harness.connect()
    harness.prepare()
    harness.broker.clients.session_closed(session)
    end = harness.broker.store.end_offset
    for _ in range(40):
        assert harness.next_round() == 0
    assert harness.broker.store.end_offset == end
    assert harness.pending == 1
    back = harness.connect()
    harness.next_round()
    [command] = back.notified
    assert decode_record(command.body).properties["TRANSACTION_CHECK_TIMES"] == "1"


def test_round_continues_where_its_budget_ended(open_transacting: Open) -> None:
    harness = open_transacting(mapped_file_size_commit_log=8 << 20)
    session = harness.connect()
    for _ in range(50):
        harness.prepare()
    harness.clock.advance(61_000)
    counts = []
    while done := harness.broker.transactions.check(harness.clock(), 8):
        counts.append(done)
    assert counts == [8, 8, 8, 8, 8, 8, 2]
    assert asked(session) == [f"U{number}" for number in range(1, 51)]


def test_transaction_ended_during_a_round_is_not_checked(harness: Transacting) -> None:
    session = harness.connect()
    halves = [harness.prepare() for _ in range(10)]
    harness.clock.advance(61_000)
    harness.broker.transactions.check(harness.clock(), 3)
    for half in halves[2:6]:
        harness.commit(half)
    late = harness.prepare()
    harness.check()
    assert asked(session) == ["U1", "U2", "U3", "U7", "U8", "U9", "U10"]
    assert late.key not in asked(session)


def test_response_to_a_check_ends_the_transaction(harness: Transacting) -> None:
    session = harness.connect()
    harness.prepare()
    harness.prepare()
    harness.next_round()
    first, second = map(Half.of_check, session.notified)
    assert harness.commit(first, fromTransactionCheck=True).code == 0
    assert harness.roll_back(second, fromTransactionCheck=True).code == 0
    [record] = harness.records(TOPIC)
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert harness.next_round() == 0


def test_message_is_discarded_after_the_last_check(open_transacting: Open) -> None:
    harness = open_transacting(transaction_check_max=3)
    session = harness.connect()
    half = harness.prepare(KEYS="k")
    for _ in range(3):
        harness.next_round()
    assert len(session.notified) == 3
    assert harness.pending == 1
    harness.next_round()
    assert len(session.notified) == 3
    [copy] = harness.records(names.TRANS_CHECK_MAX_TOPIC)
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert (copy.properties["REAL_TOPIC"], copy.body) == (TOPIC, b"body of U1")
    assert copy.prepared_transaction_offset == half.physical_offset
    assert harness.broker.topics.table[names.TRANS_CHECK_MAX_TOPIC].write_queue_nums == 1
    assert harness.pending == 0
    totals = harness.broker.transactions.totals()
    assert (totals.checked, totals.given_up) == (3, 1)


def given_up(harness: Transacting) -> Half:
    half = harness.prepare()
    session = harness.connect()
    while harness.pending:
        harness.next_round()
    harness.broker.clients.session_closed(session)
    return half


@pytest.mark.parametrize("restart", [False, True])
def test_late_commit_of_a_discarded_message_counts_once(open_transacting: Open, restart: bool) -> None:
    harness = open_transacting(transaction_check_max=1)
    half = given_up(harness)
    if restart:
        harness.kill()
    assert harness.commit(half).code == 0
    assert harness.commit(half).code == 0
    if restart:
        harness.kill()
    assert harness.commit(half).code == 0
    assert harness.committed_keys() == ["U1"]


def test_late_rollback_of_a_discarded_message_holds(open_transacting: Open) -> None:
    harness = open_transacting(transaction_check_max=1)
    half = given_up(harness)
    assert harness.roll_back(half).code == 0
    harness.kill()
    assert harness.commit(half).code == 1
    assert harness.committed_keys() == []


def test_message_older_than_retention_is_discarded_with_or_without_producer(open_transacting: Open) -> None:
    harness = open_transacting(file_reserved_time=2)
    harness.prepare(CHECK_IMMUNITY_TIME_IN_SECONDS="999999")
    harness.clock.advance(3_600_000)
    harness.prepare()
    harness.next_round()
    assert harness.pending == 2
    harness.clock.advance(3_600_000)
    harness.next_round()
    assert [record.properties["UNIQ_KEY"] for record in harness.records(names.TRANS_CHECK_MAX_TOPIC)] == ["U1"]
    assert harness.pending == 1


def test_nearly_full_disk_is_not_pinned_by_messages_without_producer(
    open_transacting: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction of a producer that is gone would keep every later segment for fileReservedTime."""
    harness = open_transacting(transaction_check_max=3, transaction_check_interval=60_000, transaction_time_out=6_000)
    harness.prepare(group="gone")
    harness.prepare(group="gone", CHECK_IMMUNITY_TIME_IN_SECONDS="999999")
    harness.next_round()
    for _ in range(8):
        harness.next_round()
    assert harness.pending == 2
    store = harness.broker.store
    monkeypatch.setattr(store, "disk_state", lambda: DiskState(0.86, writes_refused=False))
    harness.next_round()
    copies = harness.records(names.TRANS_CHECK_MAX_TOPIC)
    assert [record.properties["UNIQ_KEY"] for record in copies] == ["U1", "U2"]
    harness.prepare(group="gone")
    harness.next_round()
    assert harness.pending == 1
    harness.flush()
    assert (harness.broker.transactions.pin() or 0) > copies[-1].physical_offset


def resume(harness: Transacting, message_id: str) -> Response:
    answer = harness.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id})
    assert isinstance(answer, Response)
    return answer


@pytest.mark.parametrize("restart", [False, True])
def test_checks_of_a_discarded_message_can_resume(open_transacting: Open, restart: bool) -> None:
    harness = open_transacting(transaction_check_max=2)
    half = given_up(harness)
    [copy] = harness.records(names.TRANS_CHECK_MAX_TOPIC)
    assert resume(harness, offset_message_id(copy.store_host, copy.physical_offset)).code == 0
    if restart:
        harness.kill()
    assert harness.pending == 1
    assert resume(harness, offset_message_id(copy.store_host, copy.physical_offset)).code == 0  # checks resume
    assert harness.pending == 1
    assert harness.commit(half).code == 1
    session = harness.connect()
    harness.next_round()
    [command] = session.notified
    assert decode_record(command.body).properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert harness.commit(Half.of_check(command)).code == 0
    assert harness.committed_keys() == ["U1"]
    assert resume(harness, offset_message_id(copy.store_host, copy.physical_offset)).code == 1


def test_resumed_checks_start_from_zero(open_transacting: Open) -> None:
    harness = open_transacting(transaction_check_max=2)
    session = harness.connect()
    half = harness.prepare()
    harness.next_round()
    harness.next_round()
    assert resume(harness, offset_message_id(harness.broker.store_host, half.physical_offset)).code == 0
    harness.next_round()
    harness.next_round()
    assert len(session.notified) == 4
    assert harness.pending == 1
    assert len(harness.records(names.HALF_TOPIC)) == 1


@pytest.mark.parametrize("message_id", ["", "xyz", "0" * 32, "Z" * 32, "0" * 24 + "7" * 8])
def test_ordinary_message_cannot_resume_checks(harness: Transacting, message_id: str) -> None:
    harness.prepare()
    answer = resume(harness, message_id)
    if message_id == "0" * 32:
        assert answer.code == 0  # the half message at offset 0
    else:
        assert answer.code == 1
        assert answer.remark is not None
        assert answer.remark.startswith("Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed.")


def test_ended_transaction_cannot_resume_checks(harness: Transacting) -> None:
    half = harness.prepare()
    harness.commit(half)
    answer = resume(harness, offset_message_id(harness.broker.store_host, half.physical_offset))
    assert (answer.code, answer.remark) == (
        1,
        "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed. The transaction has ended",
    )


def test_check_counts_survive_a_clean_stop(open_transacting: Open) -> None:
    harness = open_transacting(transaction_check_max=3)
    harness.connect()
    harness.prepare()
    harness.next_round()
    harness.next_round()
    harness.restart()
    session = harness.connect()
    harness.next_round()
    [command] = session.notified
    assert decode_record(command.body).properties["TRANSACTION_CHECK_TIMES"] == "3"
    harness.next_round()
    assert harness.pending == 0


def test_changed_configuration_applies_immediately(harness: Transacting) -> None:
    session = harness.connect()
    harness.prepare()
    changed = harness.config.__class__(**{**vars_of(harness), "transaction_check_interval": 1_000})
    harness.broker.apply(changed)
    harness.clock.advance(61_000)
    harness.check()
    harness.clock.advance(1_000)
    harness.check()
    assert len(session.notified) == 2


def vars_of(harness: Transacting) -> dict[str, Any]:
    return {name: getattr(harness.config, name) for name in harness.config.__dataclass_fields__}


def test_messages_without_producers_cost_array_reads_and_no_log_writes(harness: Transacting) -> None:
    for _ in range(20):
        harness.prepare()
    ledger = harness.broker.transactions.ledger
    group = ledger.groups.number(GROUP)
    for number in range(20, 10_000):
        ledger.pending.add(number, 10_000_000 + number, 1, group)
    end = harness.broker.store.end_offset
    harness.clock.advance(61_000)
    assert harness.broker.transactions.check(harness.clock(), 64) == 0
    assert harness.broker.store.end_offset == end
    chunks = ledger.pending.chunks
    assert sum(len(chunk.offsets) for chunk in chunks) == 10_000
    bytes_each = sum(
        array.itemsize
        for array in (
            chunks[0].offsets,
            chunks[0].physical_offsets,
            chunks[0].due_s,
            chunks[0].groups,
            chunks[0].checks,
        )
    )
    assert bytes_each == 24
    for chunk in list(chunks):
        for offset in [offset for offset in chunk.offsets if offset >= 20]:
            ledger.pending.settle_offset(offset)
