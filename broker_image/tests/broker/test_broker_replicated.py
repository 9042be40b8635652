"""A broker whose replicas lack the end of the log: what clients see, what files state, and what answers wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.requests.results import Deferred, Held
from delaymq.broker.transactions.transactions import PROGRESS_GROUP
from delaymq.message import names
from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.server.log_reader import LogFiles
from delaymq_testing.broker.harness import Harness, records_of, response_of

pytestmark = pytest.mark.usefixtures("closed_stores")


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """Three messages that replicas have, and two that they do not have yet."""
    harness = Harness(tmp_path)
    for number in range(3):
        harness.clock.advance(1_000)
        harness.send(body=b"%d" % number, properties={"KEYS": "key", "UNIQ_KEY": f"id{number}"})
    harness.broker.set_replicated(harness.broker.store.end_offset)
    for number in range(3, 5):
        harness.clock.advance(1_000)
        harness.send(body=b"%d" % number, properties={"KEYS": "key", "UNIQ_KEY": f"id{number}"})
    return harness


def confirm(harness: Harness) -> None:
    harness.broker.set_replicated(harness.broker.store.end_offset)
    harness.broker.announce_arrivals()


def test_pull_returns_confirmed_messages_only(harness: Harness) -> None:
    assert [record.body for record in harness.pulled()] == [b"0", b"1", b"2"]
    response = harness.pull()
    assert not isinstance(response, Held)
    assert response.fields["maxOffset"] == "3"
    confirm(harness)
    assert [record.body for record in harness.pulled(offset=3)] == [b"3", b"4"]


@pytest.mark.parametrize(("offset", "code"), [(4, 19), (5, 19), (6, 21)])
def test_consumer_that_read_more_than_a_new_master_knows_as_confirmed_keeps_its_offset(
    harness: Harness, offset: int, code: int
) -> None:
    response = harness.pull(offset=offset)
    assert not isinstance(response, Held)
    assert response.code == code
    assert (int(response.fields["nextBeginOffset"]) == offset) == (code == ResponseCode.PULL_NOT_FOUND)
    harness.broker.set_replicated(0)
    response = harness.pull(offset=offset)
    assert not isinstance(response, Held)
    assert response.code == code


def test_held_pull_is_notified_when_replicas_have_the_message(harness: Harness) -> None:
    arrived: list[tuple[str, int, int]] = []
    harness.broker.watch_arrivals(
        lambda topic, queue, offset, *_: arrived.append((topic, queue, offset)), {("Orders", 0)}
    )
    assert isinstance(harness.pull(offset=3, sysFlag=6), Held)
    harness.send(body=b"5")
    assert arrived == []
    confirm(harness)
    assert ("Orders", 0, 5) in arrived


@pytest.mark.parametrize(
    ("code", "more"),
    [(RequestCode.GET_MAX_OFFSET, {}), (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": 1 << 50})],
)
def test_offsets_of_a_queue_end_at_confirmed(harness: Harness, code: RequestCode, more: dict[str, int]) -> None:
    def offset() -> int:
        return int(harness.answer(code, {"topic": "Orders", "queueId": 0, **more}).fields["offset"])

    before = offset()
    confirm(harness)
    assert offset() == before + 2


def test_query_by_key_finds_confirmed_messages_only(harness: Harness) -> None:
    def found() -> list[bytes]:
        fields = {"topic": "Orders", "key": "key", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 50}
        return [record.body for record in records_of(harness.answer(RequestCode.QUERY_MESSAGE, fields).body)]

    assert sorted(found()) == [b"0", b"1", b"2"]
    confirm(harness)
    assert len(found()) == 5


def test_message_id_of_an_unconfirmed_message_is_unknown(harness: Harness) -> None:
    offset = harness.broker.store.last_offset
    assert harness.answer(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).code == ResponseCode.SYSTEM_ERROR
    assert LogFiles(harness.broker.store).records([offset]) == [None]
    confirm(harness)
    assert harness.answer(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).code == ResponseCode.SUCCESS
    assert LogFiles(harness.broker.store).records([offset]) != [None]


def test_statistics_of_a_topic_end_at_confirmed(harness: Harness) -> None:
    def end() -> int:
        body = harness.answer(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Orders"}).body
        return sum(int(text.partition(b",")[0].partition(b"}")[0]) for text in body.split(b'"maxOffset":')[1:])

    before = end()
    confirm(harness)
    assert end() == before + 2


def test_delivered_copy_is_visible_when_replicas_have_it(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.send(properties={"DELAY": "1"})
    harness.broker.set_replicated(harness.broker.store.end_offset)
    harness.clock.advance(1_000)
    assert harness.broker.hand_over(harness.clock(), 10) == 1
    assert harness.pulled() == []
    confirm(harness)
    assert len(harness.pulled()) == 1


def saved_delay_offsets(harness: Harness) -> Any:
    harness.clock.advance(20_000)
    for _ in range(2):
        if (task := harness.broker.delivery.save_task()) is not None:
            task.run()
            assert task.finish() is None
    file = Path(harness.broker.store.path) / "config" / "delayOffset.json"
    return json.loads(file.read_bytes())["offsetTable"] if file.exists() else {}


def test_delay_offsets_and_pins_state_nothing_beyond_confirmed(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.send(properties={"DELAY": "1"})
    harness.broker.set_replicated(harness.broker.store.end_offset)
    harness.flush()
    pinned = harness.broker.delivery.pin()
    harness.clock.advance(1_000)
    assert harness.broker.hand_over(harness.clock(), 10) == 1
    harness.flush()
    assert saved_delay_offsets(harness) in ({}, {"1": 0})
    assert harness.broker.delivery.pin() == pinned
    confirm(harness)
    assert saved_delay_offsets(harness) == {"1": 1}
    assert harness.broker.delivery.pin() != pinned


def test_transactions_state_progress_only_up_to_confirmed(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    broker = harness.broker
    prepared = harness.send(
        properties={"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "id"}, f=TRANSACTION_PREPARED
    )
    place = int(response_of(prepared).fields["msgId"][16:], 16)
    broker.set_replicated(broker.store.end_offset)
    harness.flush()

    def progress() -> int | None:
        harness.flush()
        broker.transactions.pin()
        broker.transactions.state_progress()
        return broker.offsets.get(names.HALF_TOPIC, PROGRESS_GROUP, 0)

    before = progress()
    ended = harness.answer(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "producers",
            "tranStateTableOffset": 0,
            "commitLogOffset": place,
            "commitOrRollback": TRANSACTION_COMMIT,
            "fromTransactionCheck": False,
            "msgId": "id",
            "transactionId": "id",
        },
    )
    assert ended.code == ResponseCode.SUCCESS
    assert (before or 0, progress() or 0) == (0, 0)
    confirm(harness)
    assert progress() == 1


@pytest.mark.parametrize("waits", [True, False])
def test_transaction_ends_before_replicas_have_its_half_message(tmp_path: Path, waits: bool) -> None:
    harness = Harness(tmp_path)
    harness.broker.replicate(waits=waits)
    harness.broker.set_replicated(0)
    properties = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": "id"}
    prepared = harness.send(properties=properties, f=TRANSACTION_PREPARED)
    answer = prepared.response if isinstance(prepared, Deferred) else response_of(prepared)
    fields = {
        "producerGroup": "producers",
        "tranStateTableOffset": 0,
        "commitLogOffset": int(answer.fields["msgId"][16:], 16),
        "commitOrRollback": TRANSACTION_COMMIT,
        "fromTransactionCheck": False,
        "msgId": "id",
    }
    ended = harness.ask(RequestCode.END_TRANSACTION, fields)
    if not waits:
        assert response_of(ended).code == ResponseCode.SUCCESS
        return
    assert isinstance(ended, Deferred)
    assert ended.replicas is not None
    assert ended.until == harness.broker.store.end_offset
    assert ended.replicas.alone.code == ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_answers_of_a_synchronous_master_wait_for_replicas(tmp_path: Path, flush: str) -> None:
    harness = Harness(tmp_path, flush_disk_type=flush, slave_timeout=700)
    harness.broker.replicate(waits=True)
    sent = harness.send()
    assert isinstance(sent, Deferred)
    assert sent.replicas is not None
    assert (sent.replicas.timeout_ms, sent.replicas.late.code) == (700, ResponseCode.FLUSH_SLAVE_TIMEOUT)
    assert sent.replicas.late.fields == sent.response.fields
    assert sent.waits_for_flush == (flush == "SYNC_FLUSH")
    assert sent.late.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert not isinstance(harness.send(properties={"WAIT": "false"}), Deferred)
    harness.broker.replicate(waits=False)
    assert isinstance(harness.send(), Deferred) == (flush == "SYNC_FLUSH")
