"""Limits of pending messages by topic and account, and messages whose topic was deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.api_types.delay_settings import AccountDelaySettings, LatenessObjective, TopicDelaySettings
from delaymq.broker.delivery.settings.promises import ObjectiveCounts
from delaymq.broker.delivery.settings.table import FILE_NAME, DelaySettingsTable
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode
from delaymq.schedule.timeline.partitions import Totals
from delaymq_testing.broker.changing import HOUR_MS, ILLEGAL, SUCCESS, Open, act, deliver, records, schedule, send
from delaymq_testing.broker.harness import Harness, made, send_fields
from delaymq_testing.broker.transactions import COMMIT, TOPIC, Transacting


def limit(harness: Harness, topic: str = "Orders", **settings: Any) -> None:
    harness.broker.delay_settings.put_topic(topic, TopicDelaySettings(**settings))


def pending(harness: Harness, topic: str = "Orders") -> Totals:
    return harness.broker.delivery.timeline.partitions.totals(topic)


def batch(harness: Harness, *delays_ms: int) -> Any:
    messages = [BatchMessage(0, b"m", f"TIMER_DELAY_MS\x01{ms}\x02".encode()) for ms in delays_ms]
    request = harness.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders"), encode_batch(messages))
    return made(harness.broker, RequestCode.SEND_BATCH_MESSAGE, request)


def test_number_of_pending_messages_is_limited_exactly_whatever_their_kinds(open_harness: Open) -> None:
    harness = open_harness(message_delay_level="1s 1h")
    limit(harness, max_pending_messages=3)
    for properties in ({"TIMER_DELAY_MS": "5000"}, {"DELAY": "1"}, {"TIMER_DELAY_SEC": "9"}):
        assert send(harness, **properties).code == SUCCESS
    for properties in ({"TIMER_DELAY_MS": "5000"}, {"DELAY": "1"}):
        refused = send(harness, **properties)
        assert refused.code == ILLEGAL
        assert "topic Orders has 3 pending delayed messages, and the maximum is 3" in str(refused.remark)
        assert "--topic Orders --max-pending-messages" in str(refused.remark)
    assert pending(harness).messages == 3
    assert send(harness, "now").code == SUCCESS
    assert send(harness, topic="Bills", TIMER_DELAY_MS="5000").code == SUCCESS
    assert harness.broker.delivery.counters.limited == {"maxPendingMessages": 2}
    deliver(harness, 1_000)
    assert send(harness, DELAY="1").code == SUCCESS


def test_limit_holds_after_a_restart_and_after_a_cancellation(harness: Harness) -> None:
    limit(harness, max_pending_messages=2)
    schedule(harness, "a", DELAY_KEY="a")
    schedule(harness, "b", DELAY_KEY="b")
    harness.restart()
    assert send(harness, "c", TIMER_DELAY_MS="5000").code == ILLEGAL
    assert act(harness, "cancel", DELAY_KEY="a").code == SUCCESS
    assert send(harness, "c", TIMER_DELAY_MS="5000").code == SUCCESS


def test_limit_of_bytes_is_exact(harness: Harness) -> None:
    schedule(harness, "12345")
    size = pending(harness).bytes
    limit(harness, max_pending_bytes=2 * size)
    schedule(harness, "12346")
    assert pending(harness).bytes == 2 * size
    refused = send(harness, "12347", TIMER_DELAY_MS="60000")
    assert refused.code == ILLEGAL
    assert f"topic Orders has {2 * size} bytes of pending delayed messages" in str(refused.remark)
    assert f"this message of {size} bytes" in str(refused.remark)
    limit(harness, max_pending_bytes=3 * size - 1)
    assert send(harness, "12347", TIMER_DELAY_MS="60000").code == ILLEGAL
    limit(harness, max_pending_bytes=3 * size)
    schedule(harness, "12347")


def test_message_that_replaces_a_pending_one_does_not_count_twice(harness: Harness) -> None:
    schedule(harness, "first", DELAY_KEY="k")
    limit(harness, max_pending_messages=1, max_pending_bytes=pending(harness).bytes + 200)
    assert send(harness, "other", DELAY_KEY="l", TIMER_DELAY_MS="60000").code == ILLEGAL
    schedule(harness, "second", DELAY_KEY="k")
    assert send(harness, "x" * 1_000, DELAY_KEY="k", TIMER_DELAY_MS="60000").code == ILLEGAL
    assert deliver(harness, 60_000) == ["second"]


def test_limit_that_was_lowered_lets_messages_be_replaced(harness: Harness) -> None:
    for name in "abc":
        schedule(harness, name, DELAY_KEY=name)
    limit(harness, max_pending_messages=1, max_pending_bytes=1)
    schedule(harness, "a", DELAY_KEY="a")
    assert pending(harness).messages == 3


@pytest.mark.parametrize(
    "properties", [{"TIMER_DELAY_SEC": "3601"}, {"DELAY": "2"}, {"TRAN_MSG": "true", "DELAY": "2"}]
)
def test_longest_delay_of_a_topic_is_limited(open_harness: Open, properties: dict[str, str]) -> None:
    harness = open_harness(message_delay_level="1s 2h")
    limit(harness, max_delay_seconds=3_600)
    refused = send(harness, PGROUP="g", **properties)
    assert refused.code == ILLEGAL
    assert "the maximum of topic Orders is 3600 s (maxDelaySeconds)" in str(refused.remark)
    assert pending(harness).messages == 0
    assert send(harness, TIMER_DELAY_SEC="3600").code == SUCCESS


def test_message_cannot_be_moved_beyond_the_longest_delay_of_its_topic(harness: Harness) -> None:
    limit(harness, max_delay_seconds=3_600)
    schedule(harness, DELAY_KEY="k")
    assert act(harness, "move", DELAY_KEY="k", TIMER_DELAY_MS=str(HOUR_MS + 1)).code == ILLEGAL
    assert act(harness, "move", DELAY_KEY="k", TIMER_DELAY_MS=str(HOUR_MS)).code == SUCCESS


def test_group_cannot_be_moved_beyond_the_longest_delay_of_its_topic(harness: Harness) -> None:
    limit(harness, max_delay_seconds=3_600)
    schedule(harness, DELAY_GROUP="g")
    refused = act(harness, "move", DELAY_GROUP="g", TIMER_DELAY_MS=str(HOUR_MS + 1))
    assert refused.code == ILLEGAL
    assert "maxDelaySeconds" in str(refused.remark)
    assert act(harness, "move", DELAY_GROUP="g", TIMER_DELAY_MS=str(HOUR_MS)).code == SUCCESS


def test_message_of_a_paused_group_counts_until_it_is_delivered(harness: Harness) -> None:
    limit(harness, max_pending_messages=1)
    schedule(harness, "m", DELAY_GROUP="g")
    assert act(harness, "pause", DELAY_GROUP="g").code == SUCCESS
    assert deliver(harness, 60_000) == []
    assert pending(harness).messages == 1
    assert send(harness, TIMER_DELAY_MS="5000").code == ILLEGAL
    assert act(harness, "resume", DELAY_GROUP="g").code == SUCCESS
    assert deliver(harness, 1) == ["m"]
    assert pending(harness) == Totals(0, 0)


@pytest.mark.parametrize("count", [3, 300])
def test_batch_that_exceeds_the_limit_is_rejected_as_a_whole(harness: Harness, count: int) -> None:
    limit(harness, max_pending_messages=count)
    assert batch(harness, *[5_000] * (count + 1)).code == ILLEGAL
    assert pending(harness).messages == 0
    assert batch(harness, *[5_000] * count, 0).code == SUCCESS  # the last one is not delayed
    assert pending(harness).messages == count


def test_retries_of_consumers_have_no_limits(open_harness: Open) -> None:
    harness = open_harness(message_delay_level="1s 1h")
    limit(harness, max_pending_messages=0, max_delay_seconds=1)
    assert send(harness, "m").code == SUCCESS
    [record] = records(harness, "Orders")
    fields = {"offset": record.physical_offset, "group": "readers", "delayLevel": 2, "maxReconsumeTimes": 16}
    assert harness.answer(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == SUCCESS
    assert pending(harness, "%RETRY%readers").messages == 1


def test_transaction_is_checked_at_its_half_message_and_not_at_its_commit(
    open_transacting: Callable[..., Transacting],
) -> None:
    transacting = open_transacting()
    half = transacting.prepare(TIMER_DELAY_MS="60000")
    limit(transacting, TOPIC, max_pending_messages=0)
    transacting.end(half, COMMIT)
    assert pending(transacting, TOPIC).messages == 1
    refused = send(transacting, topic=TOPIC, TRAN_MSG="true", PGROUP="g", TIMER_DELAY_MS="5000")
    assert refused.code == ILLEGAL
    assert send(transacting, topic=TOPIC, TRAN_MSG="true", PGROUP="g").code == SUCCESS


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Requests are signed by the account in `value`."""
    accounts = {"value": "alice"}
    monkeypatch.setattr("delaymq.broker.processors.send.account_of", lambda broker, command: accounts["value"])
    return accounts


def of_alice(harness: Harness) -> int:
    return harness.broker.delivery.timeline.partitions.of_account("alice").messages


def lose_snapshot(harness: Harness) -> None:
    """Kill -9, and a start that builds the index from the whole log."""
    harness.broker.store.abandon()
    Path(harness.config.store_path_root_dir, "delaymq/snapshot.json").unlink(missing_ok=True)
    harness.broker = open_broker(harness.config, harness.clock)


def test_timed_messages_of_an_account_are_limited_in_all_topics(harness: Harness, accounts: dict[str, str]) -> None:
    harness.broker.delay_settings.put_account("alice", AccountDelaySettings(max_pending_messages=2))
    schedule(harness, "a", DELAY_KEY="a")
    schedule(harness, "b", "Bills")
    refused = send(harness, "c", TIMER_DELAY_MS="5000")
    assert refused.code == ILLEGAL
    assert "account alice has 2 pending delayed messages, and the maximum is 2" in str(refused.remark)
    schedule(harness, "a", DELAY_KEY="a")  # replaces its own
    accounts["value"] = "bob"
    schedule(harness, "c")
    schedule(harness, "d", DELAY_KEY="d")
    accounts["value"] = "alice"
    assert send(harness, "e", DELAY_KEY="d", TIMER_DELAY_MS="5000").code == ILLEGAL  # one of another account
    assert of_alice(harness) == 2
    harness.restart()
    assert of_alice(harness) == 2
    assert deliver(harness, 60_000)
    assert of_alice(harness) == 0


def test_messages_with_a_delay_level_count_for_their_account_after_every_kind_of_start(
    open_harness: Open, accounts: dict[str, str]
) -> None:
    harness = open_harness(message_delay_level="1s 1h")
    harness.broker.delay_settings.put_account("alice", AccountDelaySettings(max_pending_messages=3))
    assert send(harness, "1", DELAY="1").code == SUCCESS
    assert send(harness, "2", "Bills", DELAY="2").code == SUCCESS
    accounts["value"] = "bob"
    assert send(harness, "3", DELAY="2").code == SUCCESS
    accounts["value"] = "alice"
    assert send(harness, "4", DELAY="2").code == SUCCESS
    for properties in ({"DELAY": "1"}, {"TIMER_DELAY_MS": "5000"}):
        refused = send(harness, "5", **properties)
        assert "account alice has 3 pending delayed messages, and the maximum is 3" in str(refused.remark)
    assert send(harness, "6").code == SUCCESS
    for restart in (harness.restart, lambda: lose_snapshot(harness), harness.restart):
        harness.flush()
        restart()
        assert of_alice(harness) == 3
    deliver(harness, 1_000)
    assert of_alice(harness) == 2
    lose_snapshot(harness)
    assert of_alice(harness) == 2
    deliver(harness, HOUR_MS)
    assert of_alice(harness) == 0
    assert harness.broker.delivery.timeline.partitions.of_account("bob").messages == 0
    copies = [*records(harness, "Orders"), *records(harness, "Bills")]
    assert sorted(copy.body for copy in copies) == [b"1", b"2", b"3", b"4", b"6"]
    assert all(names.ACCOUNT not in copy.properties for copy in copies)


def test_message_that_is_moved_from_its_delay_level_still_counts_for_its_account(
    open_harness: Open, accounts: dict[str, str]
) -> None:
    harness = open_harness(message_delay_level="1s 1h")
    assert send(harness, "m", DELAY="2", UNIQ_KEY="id-1").code == SUCCESS
    assert act(harness, "move", TIMER_DEL_UNIQKEY="id-1", TIMER_DELAY_MS="5000").code == SUCCESS
    assert of_alice(harness) == 1
    lose_snapshot(harness)
    assert of_alice(harness) == 1
    deliver(harness, 5_000)
    assert of_alice(harness) == 0
    [copy] = records(harness, "Orders")
    assert names.ACCOUNT not in copy.properties


def test_retries_belong_to_no_account(harness: Harness, accounts: dict[str, str]) -> None:
    harness.broker.delay_settings.put_account("alice", AccountDelaySettings(max_pending_messages=0))
    assert send(harness, topic="%RETRY%group", DELAY="1").code == SUCCESS
    assert of_alice(harness) == 0
    [pending] = records(harness, names.SCHEDULE_TOPIC)
    assert names.ACCOUNT not in pending.properties


def test_repeating_messages_of_transactions_are_limited(open_transacting: Callable[..., Transacting]) -> None:
    transacting = open_transacting()
    limit(transacting, TOPIC, max_pending_messages=1, max_delay_seconds=3_600)
    half = {"TRAN_MSG": "true", "PGROUP": "g"}
    refused = send(transacting, topic=TOPIC, DELAY_EVERY_MS=str(2 * HOUR_MS), **half)
    assert "the maximum of topic Orders is 3600 s" in str(refused.remark)
    transacting.end(transacting.prepare(DELAY_EVERY_MS=str(HOUR_MS)), COMMIT)
    refused = send(transacting, topic=TOPIC, DELAY_EVERY_MS=str(HOUR_MS), **half)
    assert "topic Orders has 1 pending delayed messages" in str(refused.remark)


@pytest.mark.parametrize("properties", [{"TIMER_DELAY_MS": "60000"}, {"DELAY": "2"}])
def test_committed_messages_count_for_the_account_of_their_producer(
    open_transacting: Callable[..., Transacting], accounts: dict[str, str], properties: dict[str, str]
) -> None:
    transacting = open_transacting(message_delay_level="1s 1h")
    transacting.broker.delay_settings.put_account("alice", AccountDelaySettings(max_pending_messages=1))
    first, plain = transacting.prepare(**properties), transacting.prepare()
    [half, undelayed] = records(transacting, names.HALF_TOPIC)
    assert (half.properties[names.ACCOUNT], undelayed.properties.get(names.ACCOUNT)) == ("alice", None)
    for each in (first, plain):
        transacting.end(each, COMMIT)
    assert of_alice(transacting) == 1
    transacting.broker.persist_definitions()
    lose_snapshot(transacting)
    assert of_alice(transacting) == 1
    refused = send(transacting, topic=TOPIC, TRAN_MSG="true", PGROUP="g", **properties)
    assert "account alice has 1 pending delayed messages" in str(refused.remark)
    assert send(transacting, topic=TOPIC, TRAN_MSG="true", PGROUP="g").code == SUCCESS
    deliver(transacting, HOUR_MS)
    assert of_alice(transacting) == 0
    assert all(names.ACCOUNT not in copy.properties for copy in records(transacting, TOPIC))


@pytest.mark.parametrize("properties", [{"TIMER_DELAY_MS": "1000"}, {"DELAY": "1"}])
@pytest.mark.parametrize("treatment", ["recreate", "deadLetter", "drop"])
def test_message_whose_topic_was_deleted_is_treated_as_the_topic_requests(
    open_harness: Open, treatment: str, properties: dict[str, str]
) -> None:
    harness = open_harness(message_delay_level="1s 1h")
    limit(harness, when_topic_is_gone=treatment)
    send(harness, "gone", **properties)
    send(harness, "other", "Bills", **properties)
    harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
    assert "Orders" in harness.broker.delay_settings.topics or treatment == "recreate"
    harness.restart()
    assert deliver(harness, 1_000) == (["gone"] if treatment == "recreate" else [])
    assert len(records(harness, "Bills")) == 1
    dead = [record.body for record in records(harness, names.SCHEDULE_DLQ_TOPIC)]
    assert dead == ([b"gone"] if treatment == "deadLetter" else [])
    counters = harness.broker.delivery.counters
    assert counters.topic_gone == ({} if treatment == "recreate" else {treatment: 1})
    assert (counters.dead, harness.broker.delivery.pending_total()) == (0, 0)
    harness.restart()
    assert deliver(harness, HOUR_MS) == (["gone"] if treatment == "recreate" else [])  # once


@pytest.mark.parametrize("properties", [{"TIMER_DELAY_MS": "1000"}, {"DELAY": "1"}])
def test_topic_that_is_missing_without_a_deletion_does_not_lose_messages(
    open_harness: Open, properties: dict[str, str]
) -> None:
    harness = open_harness(message_delay_level="1s 1h")
    limit(harness, when_topic_is_gone="drop")
    send(harness, "m", **properties)
    harness.broker.close()
    config = Path(harness.config.store_path_root_dir) / "config"
    for file in config.glob("topics.json*"):
        file.write_bytes(b"{")
    harness.broker = open_broker(harness.config, harness.clock)
    assert "Orders" not in harness.broker.topics.table
    assert deliver(harness, 1_000) == ["m"]


def test_topic_that_is_created_again_receives_its_messages(harness: Harness) -> None:
    limit(harness, when_topic_is_gone="drop")
    schedule(harness, "first")
    harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
    harness.restart()
    send(harness, "second")
    assert deliver(harness, 60_000) == ["second", "first"]


def test_existing_topic_is_served_whatever_its_settings(harness: Harness) -> None:
    limit(harness, when_topic_is_gone="drop")
    schedule(harness, "m")
    assert deliver(harness, 60_000) == ["m"]


def test_settings_end_with_their_topic_unless_messages_are_pending(harness: Harness) -> None:
    for topic in ("Orders", "Bills"):
        send(harness, "now", topic)
        limit(harness, topic, when_topic_is_gone="drop")
    schedule(harness, "later", "Bills")
    for topic in ("Orders", "Bills"):
        harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    harness.restart()
    assert list(harness.broker.delay_settings.topics) == ["Bills"]


def test_lateness_objective_counts_messages_that_are_too_late(harness: Harness) -> None:
    limit(harness, lateness_objective=LatenessObjective(within_ms=100, percent=99.0))
    for late_ms in (0, 100, 101, 5_000):
        schedule(harness, f"m{late_ms}", TIMER_DELAY_MS="1000")
        deliver(harness, 1_000 + late_ms)
    schedule(harness, "other", "Bills", TIMER_DELAY_MS="1000")
    deliver(harness, 9_000)
    promises = harness.broker.delivery.promises
    assert promises.counts() == {"Orders": ObjectiveCounts(4, 2)}
    schedule(harness, "expired", TIMER_DELAY_MS="1000", DELAY_EXPIRE_MS="500")
    deliver(harness, 2_000)
    assert harness.broker.delivery.counters.expired == 1
    assert promises.counts() == {"Orders": ObjectiveCounts(5, 3)}
    limit(harness)
    assert promises.counts() == {}


def test_settings_survive_restarts_and_ignore_what_newer_versions_add(harness: Harness) -> None:
    limit(harness, max_pending_messages=5, lateness_objective=LatenessObjective(within_ms=5_000, percent=99.5))
    harness.broker.delay_settings.put_account("alice", AccountDelaySettings(max_pending_bytes=7))
    harness.restart()
    table = harness.broker.delay_settings
    assert table.of_topic("Orders").lateness_objective == LatenessObjective(within_ms=5_000, percent=99.5)
    assert table.of_account("alice") == AccountDelaySettings(max_pending_bytes=7)
    assert not table.dirty
    assert (Path(harness.config.store_path_root_dir) / "delaymq" / FILE_NAME).is_file()
    newer = b'{"version":1,"topics":{"T":{"maxPendingMessages":1,"priority":7}},"accounts":{},"groups":{}}'
    assert DelaySettingsTable.parse(newer).of_topic("T") == TopicDelaySettings(max_pending_messages=1)
    assert DelaySettingsTable.parse(table.encode()).topics == table.topics


@pytest.mark.parametrize(
    "text",
    [
        b"[]", b"{", b'{"version":2,"topics":{},"accounts":{}}', b'{"version":1,"topics":[],"accounts":{}}',
        b'{"version":1,"topics":{"T":{"maxPendingMessages":-1}},"accounts":{}}',
        b'{"version":1,"topics":{"T":{"latenessObjective":{"withinMs":5}}},"accounts":{}}',
        b'{"version":1,"topics":{"T":7},"accounts":{}}',
        b'{"version":1,"topics":{},"accounts":{},"gone":"T"}',
        b'{"version":1,"topics":{},"accounts":{},"gone":[7]}',
    ],
)  # fmt: skip
def test_damaged_file_of_settings_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        DelaySettingsTable.parse(text)
