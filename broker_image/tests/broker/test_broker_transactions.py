"""Transactions: half messages, commit, rollback and rejections."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from delaymq.broker.delivery.delay_rewrite import MARK_ROOM_BYTES
from delaymq.broker.requests.results import Deferred
from delaymq.message import names
from delaymq.message.properties import MAX_PROPERTIES_BYTES
from delaymq.message.record import Record
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.bodies import SubscriptionGroupConfig
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import FLAG_ONEWAY
from delaymq_testing.broker.transactions import COMMIT, GROUP, ROLLBACK, TOPIC, UNKNOWN, Half, Transacting

Open = Callable[..., Transacting]


@pytest.fixture
def harness(open_transacting: Open) -> Transacting:
    return open_transacting()


def test_half_message_is_stored_as_by_rocketmq_and_invisible(harness: Transacting) -> None:
    half = harness.prepare(KEYS="order-1")
    [record] = harness.records(names.HALF_TOPIC)
    assert (record.queue_id, record.queue_offset, record.physical_offset) == (0, 0, half.physical_offset)
    assert record.sys_flag & 12 == 0
    assert record.properties["REAL_TOPIC"] == TOPIC
    assert record.properties["REAL_QID"] == "0"
    assert record.properties["TRAN_MSG"] == "true"
    assert harness.records(TOPIC) == []
    assert harness.broker.topics.table[names.HALF_TOPIC].write_queue_nums == 1
    assert names.OP_HALF_TOPIC not in harness.broker.topics.table
    assert harness.pending == 1


def test_half_message_response_has_requested_queue_and_half_queue_offset(harness: Transacting) -> None:
    harness.prepare()
    properties = {"UNIQ_KEY": "K", "TRAN_MSG": "true", "PGROUP": GROUP}
    answer = harness.send(TOPIC, b"b", properties, e=3)
    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "3", "1")
    assert "transactionId" not in answer.fields


def test_commit_makes_the_message_visible_with_its_proof(harness: Transacting) -> None:
    half = harness.prepare(TAGS="paid")
    assert harness.commit(half).code == 0
    [record] = harness.records(TOPIC)
    assert record.body == b"body of U1"
    assert record.sys_flag & 12 == 8
    assert record.prepared_transaction_offset == half.physical_offset
    assert record.properties["TAGS"] == "paid"
    [mark] = harness.records(names.OP_HALF_TOPIC)
    assert (mark.body, mark.properties["TAGS"], mark.properties["WAIT"]) == (b"0", "d", "true")
    assert mark.born_host == mark.store_host == harness.broker.store_host
    assert harness.pending == 0


def test_rollback_leaves_an_op_mark_and_no_message(harness: Transacting) -> None:
    half = harness.prepare()
    assert harness.roll_back(half).code == 0
    assert harness.records(TOPIC) == []
    assert harness.marks() == [0]
    assert harness.pending == 0


@pytest.mark.parametrize("from_check", [True, False])
def test_unknown_state_gets_no_response_and_changes_nothing(harness: Transacting, from_check: bool) -> None:
    half = harness.prepare()
    assert harness.end(half, UNKNOWN, fromTransactionCheck=from_check) is None
    assert harness.end(half, 4) is None
    assert harness.pending == 1
    assert harness.marks() == []


@pytest.mark.parametrize(
    ("group", "queue_offset", "physical_offset", "remark"),
    [
        ("others", 0, 0, "The producer group wrong"),
        (GROUP, 1, 0, "The transaction state table offset wrong"),
        (GROUP, 0, 1, "Find prepared transaction message failed"),
        (GROUP, 0, 1 << 40, "Find prepared transaction message failed"),
        (GROUP, 0, -1, "Find prepared transaction message failed"),
    ],
)
def test_mismatching_end_is_rejected_as_by_rocketmq(
    harness: Transacting, group: str, queue_offset: int, physical_offset: int, remark: str
) -> None:
    half = harness.prepare()
    wrong = Half(half.key, half.queue_offset + queue_offset, half.physical_offset + physical_offset)
    for outcome in (COMMIT, ROLLBACK):
        answer = harness.end(wrong, outcome, group=group)
        assert (answer.code, answer.remark) == (1, remark)
    assert harness.pending == 1
    assert harness.records(TOPIC) == []


def test_ordinary_message_cannot_be_committed(harness: Transacting) -> None:
    answer = harness.send(TOPIC, b"plain", {"PGROUP": GROUP, "UNIQ_KEY": "P"})
    plain = Half("P", int(answer.fields["queueOffset"]), int(answer.fields["msgId"][16:], 16))
    assert harness.commit(plain).remark == "Find prepared transaction message failed"
    assert len(harness.records(TOPIC)) == 1


def test_repeated_commit_creates_one_message(harness: Transacting) -> None:
    half = harness.prepare()
    assert harness.commit(half).code == 0
    assert harness.commit(half).code == 0
    assert harness.commit(half, fromTransactionCheck=True).code == 0
    assert harness.committed_keys() == ["U1"]
    assert harness.marks() == [0]


def test_rollback_after_commit_and_commit_after_rollback_are_rejected(harness: Transacting) -> None:
    committed, rolled_back = harness.prepare(), harness.prepare()
    harness.commit(committed)
    harness.roll_back(rolled_back)
    assert harness.roll_back(committed).remark == "The transaction has already been committed"
    assert harness.roll_back(rolled_back).code == 0
    answer = harness.commit(rolled_back)
    assert (answer.code, answer.remark) == (1, "The transaction has already been rolled back or given up")
    assert harness.committed_keys() == ["U1"]


def test_repeated_end_reads_no_other_message_in_full(harness: Transacting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes that were sent under the key of a transaction would hold everybody up at each of its ends."""
    half = harness.prepare()
    for _ in range(5):
        assert harness.send(TOPIC, b"body of U1", {"UNIQ_KEY": "U1"}).code == 0
    harness.roll_back(half)
    store = harness.broker.store
    read: list[int] = []
    record_at = store.record_at

    def noted(place: int) -> Record | None:
        read.append(place)
        return record_at(place)

    monkeypatch.setattr(store, "record_at", noted)
    assert harness.roll_back(half).code == 0
    assert harness.commit(half).code == 1
    assert read == [half.physical_offset] * 2


def test_transaction_can_be_ended_oneway(harness: Transacting) -> None:
    half = harness.prepare()
    assert harness.ask(RequestCode.END_TRANSACTION, {"commitOrRollback": "x"}, flag=FLAG_ONEWAY) is None
    header = {
        "producerGroup": GROUP, "tranStateTableOffset": half.queue_offset, "commitLogOffset": half.physical_offset,
        "commitOrRollback": COMMIT, "msgId": half.key,
    }  # fmt: skip
    assert harness.ask(RequestCode.END_TRANSACTION, header, flag=FLAG_ONEWAY) is None
    assert harness.committed_keys() == ["U1"]


def test_commit_response_waits_for_synchronous_flush(open_transacting: Open) -> None:
    harness = open_transacting(flush_disk_type="SYNC_FLUSH")
    half = harness.prepare()
    assert harness.end(half, COMMIT).remark == "Find prepared transaction message failed"  # its send is not answered
    harness.flush()
    result = harness.end(half, COMMIT)
    assert isinstance(result, Deferred)
    assert result.until == harness.broker.store.end_offset
    assert result.late.code == 10
    again = harness.end(half, COMMIT)
    assert isinstance(again, Deferred)
    assert again.until >= result.until
    assert harness.committed_keys() == ["U1"]


def test_broker_that_rejects_transactions_reports_it(open_transacting: Open) -> None:
    harness = open_transacting(reject_transaction_message=True, broker_ip1="10.0.0.1")
    answer = harness.send(TOPIC, b"b", {"TRAN_MSG": "true", "PGROUP": GROUP}, f=4)
    assert (answer.code, answer.remark) == (16, "the broker[10.0.0.1] sending transaction message is forbidden")
    assert answer.fields["MSG_REGION"] == "DefaultRegion"


def test_batch_cannot_be_a_transaction(harness: Transacting) -> None:
    body = encode_batch([BatchMessage(0, b"b", b"TRAN_MSG\x01true")])
    answer = harness.send(TOPIC, body, {}, m=True)
    assert answer.code == 13
    assert harness.send(TOPIC, b"b", {}, f=4).code == 16


def test_transaction_needs_a_producer_group(harness: Transacting) -> None:
    answer = harness.send(TOPIC, b"b", {"TRAN_MSG": "true"}, f=4)
    assert answer.code == 13
    assert "PGROUP" in answer.remark


def test_clients_cannot_forge_check_counts_or_restored_half_messages(harness: Transacting) -> None:
    harness.prepare(TRANSACTION_CHECK_TIMES="14", TRAN_PREPARED_QUEUE_OFFSET="0", __DMQ_MARK="delivered:0:0:0")
    [record] = harness.records(names.HALF_TOPIC)
    assert not {"TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "__DMQ_MARK"} & set(record.properties)


def test_transaction_with_a_delay_is_delayed_from_its_commit(harness: Transacting) -> None:
    half = harness.prepare(DELAY="3")
    harness.clock.advance(60_000)
    assert harness.commit(half).code == 0
    assert harness.records(TOPIC) == []
    [waiting] = harness.records(names.SCHEDULE_TOPIC, 2)
    assert waiting.prepared_transaction_offset == half.physical_offset
    assert waiting.sys_flag & 12 == 8
    due_ms = harness.clock() + harness.config.levels.delay_ms(3)
    assert waiting.properties["__DMQ_DUE"].startswith(f"{due_ms:016d}:")
    assert harness.broker.hand_over(due_ms - 1, 10) == 0
    harness.clock.advance(due_ms - harness.clock())
    assert harness.broker.hand_over(due_ms, 10) == 1
    assert harness.commit(half).code == 0  # again
    assert harness.committed_keys() == ["U1"]
    assert harness.pending == 0


def test_level_invalid_for_the_commit_is_rejected_with_the_half_message(open_transacting: Open) -> None:
    harness = open_transacting(delay_level_overflow="reject")
    properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "DELAY": "99"}
    assert harness.send(TOPIC, b"b", properties).code == 13
    assert harness.send(TOPIC, b"b", properties | {"DELAY": "soon"}).code == 13
    assert harness.pending == 0


def test_shortened_level_table_does_not_fail_the_commit(open_transacting: Open) -> None:
    harness = open_transacting(delay_level_overflow="reject")
    half = harness.prepare(DELAY="18")
    harness.reopen(delay_level_overflow="reject", message_delay_level="1s 5s")
    assert harness.commit(half).code == 0
    assert len(harness.records(names.SCHEDULE_TOPIC, 1)) == 1


@pytest.mark.parametrize("level", [0, 18])
def test_properties_too_long_for_the_commit_are_rejected_immediately(harness: Transacting, level: int) -> None:
    delay = {"DELAY": str(level)} if level else {}
    fitting = 0
    for size in range(MAX_PROPERTIES_BYTES - MARK_ROOM_BYTES - 400, MAX_PROPERTIES_BYTES, 7):
        properties = {"UNIQ_KEY": f"K{size}", "TRAN_MSG": "true", "PGROUP": GROUP, "filler": "x" * size, **delay}
        answer = harness.send(TOPIC, b"b", properties, f=4)
        if answer.code == 0:
            fitting += 1
            half = Half("", int(answer.fields["queueOffset"]), int(answer.fields["msgId"][16:], 16))
            harness.connect()
            harness.next_round()  # the copy also states the number of checks
            assert harness.commit(half).code == 0
        else:
            assert answer.code == 13
            break
    assert fitting > 3
    harness.clock.advance(3 * 3_600_000)
    assert harness.broker.hand_over(harness.clock(), 1_000) == (fitting if level else 0)
    assert len(harness.records(TOPIC)) == fitting


@pytest.mark.parametrize(
    "topic", [names.HALF_TOPIC, names.OP_HALF_TOPIC, names.SCHEDULE_TOPIC, names.TRANS_CHECK_MAX_TOPIC]
)
def test_system_topic_cannot_be_the_target(harness: Transacting, topic: str) -> None:
    answer = harness.send(topic, b"b", {"TRAN_MSG": "true", "PGROUP": GROUP}, f=4)
    assert (answer.code, answer.remark) == (16, f"Sending message to topic[{topic}] is forbidden.")


def test_retry_topic_can_be_the_target_and_later_retries_are_no_transactions(harness: Transacting) -> None:
    harness.broker.groups.put(SubscriptionGroupConfig("readers"))
    half = harness.prepare(topic="%RETRY%readers")
    assert harness.records("%RETRY%readers") == []
    assert harness.commit(half).code == 0
    assert len(harness.records("%RETRY%readers")) == 1
    retried = {"TRAN_MSG": "true", "PGROUP": GROUP, "DELAY": "3", "UNIQ_KEY": "R"}
    assert harness.send("%RETRY%readers", b"b", retried, j=1, l=16).code == 0
    assert len(harness.records(names.SCHEDULE_TOPIC, 2)) == 1
    assert harness.send("%RETRY%readers", b"b", retried, j=16, l=16).code == 0
    assert len(harness.records("%DLQ%readers")) == 1
    assert harness.pending == 0
