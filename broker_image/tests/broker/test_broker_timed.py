"""Timed messages: requested due times, records, delivery, restarts, and timers of RocketMQ 5."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.message.levels import DelayLevels
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMarkKind, parse_own_due, parse_own_mark
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.store.errors import NotAStoreError, StoreFullError, StoreOpenError
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord
from delaymq_testing.broker.guarded import Guarded
from delaymq_testing.broker.harness import Harness, broker_config, response_of, send_fields
from delaymq_testing.broker.transactions import TOPIC, Transacting

Open = Callable[..., Harness]


def send_timed(harness: Harness, unique: str = "U", topic: str = "Orders", **properties: str) -> Any:
    answer = response_of(harness.send(topic, unique.encode(), {"UNIQ_KEY": unique, **properties}))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def records(harness: Harness, topic: str, queue_id: int = 0) -> list[Record]:
    store = harness.broker.store
    found = []
    for offset in range(store.next_queue_offset(topic, queue_id)):
        place = int.from_bytes(store.read_entries(topic, queue_id, offset, 1)[:8], "big")
        record = store.record_at(place)
        assert record is not None
        found.append(record)
    return found


def deliver(harness: Harness) -> list[str]:
    """Hands over what is due; bodies in topic Orders, queue 0."""
    while harness.broker.hand_over(harness.clock(), 64):
        pass
    return [record.body.decode() for record in records(harness, "Orders")]


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({"TIMER_DELAY_MS": "1500"}, 1_500),
        ({"TIMER_DELAY_SEC": "+90"}, 90_000),
        ({"TIMER_DELAY_SEC": "315360000"}, 315_360_000_000),
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "7"}, 2_000),
        ({"TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": "later"}, 5),
        ({"TIMER_DELIVER_MS": "{now}250"}, None),
        ({"__STARTDELIVERTIME": "{now}250"}, None),
    ],
)
def test_due_time_follows_the_precedence_of_rocketmq(
    harness: Harness, properties: dict[str, str], delay_ms: int | None
) -> None:
    now_s = str(harness.clock() // 1_000 + 60)
    properties = {name: value.replace("{now}", now_s) for name, value in properties.items()}
    send_timed(harness, **properties)
    [record] = records(harness, names.TIMER_TOPIC)
    due = parse_own_due(record.properties[names.DUE], record.physical_offset)
    assert due is not None
    assert due.due_ms == (harness.clock() + delay_ms if delay_ms is not None else int(now_s) * 1_000 + 250)
    assert record.properties[names.TIMER_OUT_MS] == str(due.due_ms)
    assert {record.properties["REAL_TOPIC"], record.properties["REAL_QID"]} == {"Orders", "0"}
    assert properties.items() <= record.properties.items()
    assert harness.broker.delivery.next_wakeup_ms() == due.due_ms


@pytest.mark.parametrize("properties", [{"TIMER_DELIVER_MS": "17"}, {"TIMER_DELAY_MS": "0"}, {"TIMER_DELAY_SEC": "0"}])
def test_due_time_in_the_past_means_now(harness: Harness, properties: dict[str, str]) -> None:
    answer = send_timed(harness, **properties)
    assert "recallHandle" not in answer.fields
    assert [record.body for record in records(harness, "Orders")] == [b"U"]
    assert harness.broker.store.format_version == 1


def test_level_takes_precedence_over_a_due_time(harness: Harness) -> None:
    send_timed(harness, DELAY="3", TIMER_DELAY_MS="5")
    assert len(records(harness, names.SCHEDULE_TOPIC, 2)) == 1
    assert records(harness, names.TIMER_TOPIC) == []


def test_limit_of_the_delay_is_configurable(open_harness: Open) -> None:
    harness = open_harness(timer_max_delay_sec=7_200, message_delay_level="1s 2h")
    send_timed(harness, TIMER_DELAY_MS="7200000")
    answer = response_of(harness.send("Orders", b"x", {"TIMER_DELAY_MS": "7200001"}))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "the maximum is 7200 s (0 days, timerMaxDelaySec)" in str(answer.remark)


def test_message_is_delivered_when_due_with_its_properties_and_a_mark(harness: Harness) -> None:
    answer = send_timed(harness, TIMER_DELAY_MS="1500", KEYS="k", TAGS="t")
    [pending] = records(harness, names.TIMER_TOPIC)
    due_ms = harness.clock() + 1_500
    handle = urlsafe_b64decode(answer.fields["recallHandle"]).decode()
    assert handle == f"v1 Orders {harness.config.broker_name} {due_ms} U"
    harness.clock.advance(1_499)
    assert deliver(harness) == []
    harness.clock.advance(1)
    assert deliver(harness) == ["U"]
    [copy] = records(harness, "Orders")
    properties = copy.properties
    mark = parse_own_mark(properties.pop(names.MARK), copy.physical_offset)
    assert mark is not None
    assert (mark.kind, mark.identity, mark.due_ms) == (TimedMarkKind.DELIVERED, pending.physical_offset, due_ms)
    kept = pending.properties
    del kept[names.DUE]
    assert properties == kept
    assert harness.broker.delivery.pending_total() == 0
    assert harness.broker.delivery.counters.delivered == {"Orders": 1}


def test_format_version_and_timer_topic_come_with_the_first_timed_message(harness: Harness) -> None:
    send_timed(harness, DELAY="3")
    assert (harness.broker.store.format_version, names.TIMER_TOPIC in harness.broker.topics.table) == (1, False)
    send_timed(harness, TIMER_DELAY_MS="1500")
    assert (harness.broker.store.format_version, names.TIMER_TOPIC in harness.broker.topics.table) == (2, True)
    harness.restart()
    assert names.TIMER_TOPIC in harness.broker.topics.table


def test_version_that_cannot_be_raised_rejects_the_message(harness: Harness) -> None:
    def fail(version: int) -> None:
        raise StoreFullError("no space for state.json")

    harness.broker.store.raise_format_version = fail
    answer = response_of(harness.send("Orders", b"x", {"TIMER_DELAY_MS": "1500"}))
    assert (answer.code, answer.remark) == (14, "service not available now: no space for state.json")
    assert harness.broker.store.end_offset == 0


def test_each_message_of_a_batch_has_its_own_due_time(harness: Harness) -> None:
    messages = [
        BatchMessage(0, b"one", b"UNIQ_KEY\x01U1\x02TIMER_DELAY_MS\x013000"),
        BatchMessage(0, b"now", b"UNIQ_KEY\x01U2"),
        BatchMessage(0, b"two", b"UNIQ_KEY\x01U3\x02TIMER_DELAY_MS\x012000"),
    ]
    answer = response_of(harness.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders"), encode_batch(messages)))
    assert answer.code == ResponseCode.SUCCESS
    assert len(answer.fields["msgId"].split(",")) == 3
    assert deliver(harness) == ["now"]
    harness.clock.advance(2_000)
    assert deliver(harness) == ["now", "two"]
    harness.clock.advance(1_000)
    assert deliver(harness) == ["now", "two", "one"]
    assert harness.broker.stats.stored_of("Orders") == 3


def test_large_batch_is_stored_in_slices_with_its_due_times(harness: Harness) -> None:
    messages = [BatchMessage(0, b"%d" % number, b"TIMER_DELAY_MS\x01%d" % (number + 1)) for number in range(700)]
    answer = harness.answer(RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders"), encode_batch(messages))
    assert answer.code == ResponseCode.SUCCESS
    harness.clock.advance(700)
    assert deliver(harness) == [str(number) for number in range(700)]


@pytest.mark.parametrize(
    ("properties", "delays_ms"),
    [
        ({"TIMER_DELAY_MS": "1000"}, (1_000, 60_000)),
        ({"TIMER_DELIVER_MS": "{start+90000}"}, (30_000, 60_000)),
        ({"TIMER_DELIVER_MS": "{start+20000}"}, (0, 60_000)),
    ],
)
def test_delay_of_a_transaction_counts_from_its_commit(
    open_transacting: Callable[..., Transacting], properties: dict[str, str], delays_ms: tuple[int, int]
) -> None:
    harness = open_transacting()
    start_ms = harness.clock()
    properties = {
        name: value.replace("{start+90000}", str(start_ms + 90_000)).replace("{start+20000}", str(start_ms + 20_000))
        for name, value in properties.items()
    }
    half = harness.prepare(**properties)
    harness.clock.advance(60_000)
    assert harness.commit(half).code == 0
    assert harness.commit(half).code == 0
    due_in_ms, _ = delays_ms
    if due_in_ms:
        assert harness.records(TOPIC) == []
        harness.clock.advance(due_in_ms - 1)
        harness.broker.hand_over(harness.clock(), 10)
        assert harness.records(TOPIC) == []
        harness.clock.advance(1)
        harness.broker.hand_over(harness.clock(), 10)
    [copy] = harness.records(TOPIC)
    assert copy.sys_flag & 12 == 8
    harness.kill()
    assert len(harness.records(TOPIC)) == 1
    assert harness.broker.delivery.pending_total() == 0


def test_half_message_with_an_invalid_due_time_is_rejected(open_transacting: Callable[..., Transacting]) -> None:
    harness = open_transacting()
    properties = {"TRAN_MSG": "true", "PGROUP": "p", "TIMER_DELAY_MS": "x"}
    answer = response_of(harness.send(TOPIC, b"b", properties))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.broker.store.end_offset == 0


@pytest.mark.parametrize("topic", [TOPIC, "%RETRY%readers"])
def test_half_message_beyond_the_longest_delay_is_rejected_in_any_topic(
    open_transacting: Callable[..., Transacting], topic: str
) -> None:
    harness = open_transacting()
    properties = {"TRAN_MSG": "true", "PGROUP": "p", "TIMER_DELAY_SEC": "9" * 19}
    answer = response_of(harness.send(topic, b"b", properties))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.broker.store.end_offset == 0


def test_commit_never_stores_a_due_time_that_recovery_cannot_read(
    open_transacting: Callable[..., Transacting], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = open_transacting()
    with monkeypatch.context() as another_broker:
        another_broker.setattr("delaymq.broker.delivery.timed.requests.TimeRequest.check", lambda *_: None)
        another_broker.setattr("delaymq.broker.delivery.delay_rewrite._LATEST_DUE_MS", 1 << 99)
        half = harness.prepare(TIMER_DELAY_SEC="9" * 19)
    assert harness.commit(half).code != 0
    harness.kill()
    assert harness.broker.store.format_version == 1
    assert harness.roll_back(half).code == 0


def test_rejected_message_does_not_raise_the_format_version(harness: Harness) -> None:
    properties = {"UNIQ_KEY": "U", "TIMER_DELAY_MS": "1000", "long": "x" * 32_500}
    assert response_of(harness.send("Orders", b"b", properties)).code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.broker.store.format_version == 1


def test_received_message_that_is_sent_again_is_not_scheduled_again(harness: Harness) -> None:
    send_timed(harness, TIMER_DELAY_MS="1500")
    harness.clock.advance(1_500)
    deliver(harness)
    [copy] = records(harness, "Orders")
    send_timed(harness, "again", **{name: value for name, value in copy.properties.items() if name != "UNIQ_KEY"})
    stored = records(harness, "Orders")[1]
    assert not any(name.startswith(("TIMER_", "__DMQ")) for name in stored.properties)


def test_returned_message_is_retried_by_its_level_alone(harness: Harness) -> None:
    send_timed(harness, TIMER_DELAY_SEC="100")
    harness.clock.advance(100_000)
    deliver(harness)
    [copy] = records(harness, "Orders")
    fields = {"offset": copy.physical_offset, "group": "readers", "delayLevel": 1, "originTopic": "Orders"}
    assert harness.answer(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 0
    harness.clock.advance(1_000)
    deliver(harness)
    [retry] = records(harness, "%RETRY%readers")
    assert retry.properties["RETRY_TOPIC"] == "Orders"
    # The client's own way to a retry, when the broker did not answer.
    retry.properties.pop(names.MARK, None)
    again = response_of(
        harness.send("%RETRY%readers", b"U", {"TIMER_DELAY_SEC": "100", "DELAY": "1", "UNIQ_KEY": "U"}, j=2)
    )
    assert again.code == 0
    assert harness.broker.delivery.timeline.partitions.of_level(0).messages == 0


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_pending_messages_survive_a_kill(tmp_path: Path, with_snapshot: bool) -> None:
    harness = Harness(tmp_path)
    for number in range(500):
        send_timed(harness, f"U{number}", TIMER_DELAY_MS=str(1 + number % 50 * 100))
    harness.clock.advance(1_000)
    first = deliver(harness)
    if with_snapshot:
        task = harness.broker.store.snapshot_task(force=True)
        assert task is not None
        task.run()
        assert task.finish() is None
    harness.clock.advance(1_000)
    second = deliver(harness)
    for number in range(500, 600):
        send_timed(harness, f"U{number}", TIMER_DELAY_MS="1")
    harness.broker.store.abandon()
    harness.broker = open_broker(harness.config, harness.clock)
    assert harness.broker.store.recovery.snapshot_used is with_snapshot
    assert harness.broker.delivery.pending_total() == 600 - len(second)
    harness.clock.advance(10_000)
    everything = deliver(harness)
    assert everything[: len(second)] == second
    assert sorted(everything) == sorted(f"U{number}" for number in range(600))
    assert len(first) < len(second) < len(everything)
    harness.broker.close()


def test_account_is_stored_with_the_pending_message_only(guarded: Guarded) -> None:
    harness = guarded.harness
    answer = guarded.ask(RequestCode.SEND_MESSAGE_V2, send_fields("Orders", {"TIMER_DELAY_MS": "5"}), b"x")
    assert answer.code == 0, answer.remark
    [pending] = records(harness, names.TIMER_TOPIC)
    assert pending.properties[names.ACCOUNT] == "application"
    [(key, owner, totals)] = harness.broker.delivery.timeline.partitions.classes()
    assert (key.topic, owner.account, totals.messages, totals.bytes) == ("Orders", "application", 1, pending.size)
    harness.clock.advance(5)
    deliver(harness)
    [copy] = records(harness, "Orders")
    assert names.ACCOUNT not in copy.properties


# Timers of RocketMQ 5.


def foreign_timer(store: MessageStore, unique: str, out_ms: int, **properties: str) -> int:
    """A record as RocketMQ 5 stores it in its timer topic."""
    kept = {"UNIQ_KEY": unique, "REAL_TOPIC": "Orders", "REAL_QID": "0", "TIMER_OUT_MS": str(out_ms), **properties}
    host = bytes(8)
    record = NewRecord(names.TIMER_TOPIC, 0, unique.encode(), kept, 0, 0, 1, host, host)
    return store.append(record).physical_offset


def foreign_copy(store: MessageStore, place: int) -> None:
    record = store.record_at(place)
    assert record is not None
    properties = record.properties | {"TIMER_DEQUEUE_MS": "1"}
    store.append(
        NewRecord(
            properties["REAL_TOPIC"], int(properties["REAL_QID"]), record.body, properties, record.flag,
            record.sys_flag, record.born_timestamp_ms, record.born_host, record.store_host, record.reconsume_times,
        )
    )  # fmt: skip


def foreign_store(path: Path, now_ms: int) -> None:
    """A store of RocketMQ 5 with pending, delivered, rolled and recalled timers."""
    config = broker_config(path)
    config.store_path.parent.mkdir(parents=True, exist_ok=True)
    store = MessageStore.open(
        config.store_path_root_dir,
        options=Harness(path / "for-options").broker.store.options,
        now_ms=lambda: now_ms,
        levels=DelayLevels.parse(),
    )
    foreign_timer(store, "pending", now_ms + 8_000, TIMER_DELIVER_MS=str(now_ms + 9_500))
    foreign_timer(store, "relative", now_ms + 3_000, TIMER_DELAY_SEC="4")
    foreign_copy(store, foreign_timer(store, "delivered", now_ms - 5_000, TIMER_DELIVER_MS=str(now_ms - 4_000)))
    foreign_timer(store, "rolled", now_ms + 1_000, TIMER_DELIVER_MS=str(now_ms + 20_000))
    foreign_timer(store, "rolled", now_ms + 19_000, TIMER_DELIVER_MS=str(now_ms + 20_000), TIMER_ROLL_TIMES="1")
    # Sent 18 s ago.
    foreign_timer(store, "rolled relative", now_ms - 16_000, TIMER_DELAY_SEC="30")
    foreign_timer(store, "rolled relative", now_ms + 11_000, TIMER_DELAY_SEC="30", TIMER_ROLL_TIMES="1")
    foreign_timer(store, "recalled", now_ms + 5_000, TIMER_DELIVER_MS=str(now_ms + 5_000))
    foreign_timer(store, "recalled too", now_ms + 5_000, TIMER_DELIVER_MS=str(now_ms + 5_000))
    foreign_timer(store, "r1", now_ms + 6_000, TIMER_DEL_UNIQKEY="Ordersrecalled")
    foreign_timer(store, "r2", now_ms + 6_000, TIMER_DEL_UNIQKEY="recalled too")
    store.close()


def test_store_with_pending_timers_of_rocketmq_5_is_rejected(tmp_path: Path) -> None:
    foreign_store(tmp_path, 1_700_000_000_000)
    for _ in range(2):
        with pytest.raises(StoreOpenError, match=r"contains 4 pending timers of RocketMQ 5.*--adopt-timers"):
            Harness(tmp_path)


def test_pending_timers_of_rocketmq_5_are_taken_over_on_request(tmp_path: Path) -> None:
    now_ms = 1_700_000_000_000
    foreign_store(tmp_path, now_ms)
    harness = Harness(tmp_path, adopt_timers=True)
    harness.clock.now_ms = now_ms
    assert deliver(harness) == ["delivered"]
    harness.broker.store.abandon()
    # The whole log is read again, with the option or without.
    harness.config = broker_config(tmp_path)
    harness.broker = open_broker(harness.config, harness.clock)
    expected = ["delivered"]
    for delay_ms, body in ((4_000, "relative"), (9_500, "pending"), (12_000, "rolled relative"), (20_000, "rolled")):
        harness.clock.now_ms = now_ms + delay_ms - 1
        assert deliver(harness) == expected
        harness.clock.now_ms += 1
        expected.append(body)
        assert deliver(harness) == expected
    harness.broker.close()


def test_messages_that_rocketmq_5_delivered_are_not_delivered_again(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for number in range(3):
        send_timed(harness, f"U{number}", TIMER_DELAY_MS="1000")
    pending = records(harness, names.TIMER_TOPIC)
    foreign_copy(harness.broker.store, pending[1].physical_offset)
    # Rolled: stored again with the due time of another place.
    rolled = pending[2].properties | {"TIMER_ROLL_TIMES": "1"}
    harness.broker.store.append(NewRecord(names.TIMER_TOPIC, 0, b"U2", rolled, 0, 0, 1, bytes(8), bytes(8)))
    harness.broker.store.abandon()
    harness.broker = open_broker(harness.config, harness.clock)
    harness.clock.advance(1_000)
    assert sorted(deliver(harness)) == ["U0", "U1", "U2"]
    harness.broker.close()


@pytest.mark.parametrize("damage", ["bit", "digit"])
def test_damaged_mark_still_ends_its_message(tmp_path: Path, damage: str) -> None:
    harness = Harness(tmp_path)
    send_timed(harness, "U0", TIMER_DELAY_MS="1000")
    send_timed(harness, "U1", TIMER_DELAY_MS="1000")
    harness.clock.advance(1_000)
    assert deliver(harness) == ["U0", "U1"]
    [copy, _] = records(harness, "Orders")
    harness.flush()
    harness.broker.store.abandon()
    path = next(Path(harness.config.store_path_root_dir, "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    at = data.index(b"delivered", copy.physical_offset)
    data[at + 10] ^= 1 if damage == "bit" else 6
    path.write_bytes(data)
    harness.broker = open_broker(harness.config, harness.clock)
    assert harness.broker.delivery.pending_total() == 0
    assert deliver(harness) == ["U0", "U1"]
    harness.broker.close()


def test_damaged_state_of_a_store_with_timed_messages_excludes_older_programs(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    send_timed(harness, "U0", TIMER_DELAY_MS="1000")
    harness.broker.close()
    Path(harness.config.store_path_root_dir, "delaymq/state.json").write_text("{")
    harness.broker = open_broker(harness.config, harness.clock)
    assert harness.broker.store.format_version == 2
    harness.broker.close()


def test_statement_of_a_later_form_is_refused(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    place = harness.broker.store.end_offset
    body = f"3:{place:020d}:delivered:somehow"
    mark = f"{body}:{crc32(body.encode()):08x}"
    harness.broker.store.append(NewRecord("Orders", 0, b"x", {names.MARK: mark}, 0, 0, 1, bytes(8), bytes(8)))
    harness.broker.store.abandon()
    with pytest.raises(NotAStoreError, match=r"has a form that this program does not know: use the version"):
        open_broker(harness.config, harness.clock)
