"""Sends: where a message goes, its stored form, and response codes of rejections."""

from collections.abc import Callable
from typing import Any

import pytest
from delaymq.broker.requests.results import Deferred
from delaymq.message import names
from delaymq.message.ids import parse_offset_message_id
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Response
from delaymq.store.errors import SegmentCreateError, StoreFullError
from delaymq_testing.broker.harness import START_MS, Harness, records_of, response_of, send_fields


def batch_of(*bodies: bytes, properties: bytes = b"") -> bytes:
    return encode_batch([BatchMessage(0, body, properties) for body in bodies])


def test_send_to_an_unknown_topic_creates_it_and_stores_the_message(harness: Harness) -> None:
    answer = response_of(harness.send(body=b"first", properties={"UNIQ_KEY": "U1", "WAIT": "true", "TAGS": "A"}))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields["queueId"] == "0"
    assert answer.fields["queueOffset"] == "0"
    assert answer.fields["MSG_REGION"] == "DefaultRegion"
    assert answer.fields["TRACE_ON"] == "true"
    assert parse_offset_message_id(answer.fields["msgId"]) == ("127.0.0.1", 10911, 0)
    (record,) = harness.pulled()
    assert (record.topic, record.body, record.born_timestamp_ms) == ("Orders", b"first", START_MS)
    assert record.born_host == harness.session.remote_host
    assert record.properties == {"UNIQ_KEY": "U1", "TAGS": "A", "CLUSTER": "DefaultCluster"}
    topic = harness.broker.topics.get("Orders")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (4, 4, 6)


def test_long_header_is_equivalent(harness: Harness) -> None:
    fields = {
        "producerGroup": "p",
        "topic": "Orders",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 2,
        "queueId": 1,
        "sysFlag": 0,
        "bornTimestamp": 5,
        "flag": 7,
        "properties": "TAGS\x01A",
    }
    assert harness.answer(RequestCode.SEND_MESSAGE, fields, b"x").fields["queueId"] == "1"
    (record,) = harness.pulled(queue_id=1)
    assert (record.flag, record.born_timestamp_ms, record.queue_id) == (7, 5, 1)


def test_negative_queue_id_selects_any_queue(harness: Harness) -> None:
    used = {response_of(harness.send(e=-1)).fields["queueId"] for _ in range(64)}
    assert used <= {"0", "1", "2", "3"}
    assert len(used) > 1


def test_oneway_send_is_stored_without_response(harness: Harness) -> None:
    assert harness.ask(RequestCode.SEND_MESSAGE_V2, send_fields("Orders"), b"x", flag=FLAG_ONEWAY) is None
    assert len(harness.pulled()) == 1


def test_reserved_properties_are_stripped(harness: Harness) -> None:
    mark = "delivered:0:0:0"
    harness.send(properties={names.MARK: mark, names.DUE: "1:0:0", "__DMQ_anything": "x", "color": "red"})
    assert harness.pulled()[0].properties == {"color": "red", "CLUSTER": "DefaultCluster"}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"b": ""}, ResponseCode.SYSTEM_ERROR, "blank"),
        ({"b": "a b"}, ResponseCode.SYSTEM_ERROR, "illegal characters"),
        ({"b": "x" * 128}, ResponseCode.SYSTEM_ERROR, "127"),
        ({"b": names.SCHEDULE_TOPIC}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"b": names.HALF_TOPIC}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"b": names.OP_HALF_TOPIC}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"b": names.MARKS_TOPIC}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({"c": "NoSuchDefault"}, ResponseCode.TOPIC_NOT_EXIST, "apply first please"),
        ({"d": 0}, ResponseCode.SYSTEM_ERROR, "defaultTopicQueueNums"),
        ({"e": 4}, ResponseCode.SYSTEM_ERROR, "request queueId[4] is illegal"),
        ({"e": "one"}, ResponseCode.SYSTEM_ERROR, "field e"),
        ({"g": 2**63}, ResponseCode.SYSTEM_ERROR, "field g"),
        ({"f": 4}, ResponseCode.NO_PERMISSION, "transaction"),
        ({"i": "TRAN_MSG\x01true"}, ResponseCode.MESSAGE_ILLEGAL, "PGROUP"),
        ({"b": names.TIMER_TOPIC}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"i": "TIMER_DELIVER_MS\x01soon"}, ResponseCode.MESSAGE_ILLEGAL, "'soon', which is not a number of milli"),
        ({"i": "TIMER_DELAY_SEC\x011.5"}, ResponseCode.MESSAGE_ILLEGAL, "not a number of seconds"),
        ({"i": "TIMER_DELAY_MS\x01-5"}, ResponseCode.MESSAGE_ILLEGAL, "not negative"),
        ({"i": "TIMER_DELAY_MS\x01" + "9" * 20}, ResponseCode.MESSAGE_ILLEGAL, "not a number"),
        ({"i": "TIMER_DELAY_SEC\x01315360001"}, ResponseCode.MESSAGE_ILLEGAL, "maximum is 315360000 s (3650 days"),
        ({"i": "TIMER_DELIVER_MS\x019000000000000000000"}, ResponseCode.MESSAGE_ILLEGAL, "timerMaxDelaySec"),
        ({"i": "__STARTDELIVERTIME\x0117\x02DELAY\x013"}, ResponseCode.MESSAGE_ILLEGAL, "next to DELAY"),
        (
            {"i": "__STARTDELIVERTIME\x0117\x02TIMER_DELAY_MS\x013"},
            ResponseCode.MESSAGE_ILLEGAL,
            "next to TIMER_DELAY_MS",
        ),
        ({"i": "TIMER_DELAY_MS\x0199999\x02P\x01" + "x" * 32_450}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
        ({"i": "DELAY\x01soon"}, ResponseCode.MESSAGE_ILLEGAL, "'soon'"),
        ({"i": "P\x01a\0"}, ResponseCode.MESSAGE_ILLEGAL, "NUL"),
        ({"i": "P\0Q\x01a"}, ResponseCode.MESSAGE_ILLEGAL, "NUL"),
        ({"i": "DELAY\x011\x02P\x01a\0b"}, ResponseCode.MESSAGE_ILLEGAL, "NUL"),
        ({"i": "TRAN_MSG\x01true\x02PGROUP\x01g\x02P\x01\0"}, ResponseCode.MESSAGE_ILLEGAL, "NUL"),
        ({"i": "P\x01" + "x" * 32_800}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
        ({"i": "P\x01" + "é" * 16_400}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
        ({"i": "DELAY\x011\x02P\x01" + "x" * 32_600}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
    ],
)
def test_rejected_send_stores_nothing(harness: Harness, changes: dict[str, Any], code: int, words: str) -> None:
    before = harness.broker.store.end_offset
    answer = response_of(harness.ask(RequestCode.SEND_MESSAGE_V2, send_fields("Orders") | changes, b"x"))
    assert (answer.code, words in str(answer.remark)) == (code, True), answer.remark
    assert answer.fields["MSG_REGION"] == "DefaultRegion"
    assert harness.broker.store.end_offset == before


@pytest.mark.parametrize("missing", ["a", "b", "c", "d", "e", "f", "g", "h"])
def test_missing_field_is_named(harness: Harness, missing: str) -> None:
    fields = send_fields("Orders")
    del fields[missing]
    answer = harness.answer(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"lacks field {missing}" in str(answer.remark)


def test_body_above_the_limit_is_rejected_and_at_the_limit_stored(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(max_message_size=2_000)
    assert response_of(harness.send(body=bytes(2_000))).code == ResponseCode.SUCCESS
    answer = response_of(harness.send(body=bytes(2_001)))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "maxMessageSize=2000" in str(answer.remark)


def test_unknown_topic_gets_17_without_auto_creation(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(auto_create_topic_enable=False)
    assert response_of(harness.send()).code == ResponseCode.TOPIC_NOT_EXIST


def test_properties_at_the_format_limit_are_stored(harness: Harness) -> None:
    cluster = len("CLUSTER\x01DefaultCluster\x02")
    text = "x" * (32_767 - len("P\x01") - cluster)
    assert response_of(harness.send(properties={"P": text})).code == ResponseCode.SUCCESS
    assert harness.pulled()[0].properties["P"] == text
    assert response_of(harness.send(properties={"P": text + "x"})).code == ResponseCode.MESSAGE_ILLEGAL


def test_delayed_message_is_pending_in_the_schedule_topic_until_due(harness: Harness) -> None:
    answer = response_of(harness.send(properties={"DELAY": "2", "WAIT": "true", "UNIQ_KEY": "U"}, e=3))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields["queueId"] == "3"
    assert answer.fields["queueOffset"] == "0"
    assert harness.pulled(queue_id=3) == []
    (waiting,) = harness.pulled(names.SCHEDULE_TOPIC, queue_id=1)
    assert waiting.properties["REAL_TOPIC"] == "Orders"
    assert waiting.properties["REAL_QID"] == "3"
    assert waiting.properties["WAIT"] == "true"
    harness.clock.advance(4_999)
    assert harness.broker.hand_over(harness.clock(), 100) == 0
    harness.clock.advance(1)
    assert harness.broker.hand_over(harness.clock(), 100) == 1
    (record,) = harness.pulled(queue_id=3)
    assert record.properties["UNIQ_KEY"] == "U"


@pytest.mark.parametrize("level", ["0", "-1"])
def test_level_of_zero_or_less_means_no_delay(harness: Harness, level: str) -> None:
    harness.send(properties={"DELAY": level})
    assert len(harness.pulled()) == 1


def test_level_above_the_table_is_clamped_or_rejected_as_configured(open_harness: Callable[..., Harness]) -> None:
    clamping = open_harness()
    assert response_of(clamping.send(properties={"DELAY": "99"})).code == ResponseCode.SUCCESS
    assert len(clamping.pulled(names.SCHEDULE_TOPIC, queue_id=17)) == 1
    rejecting = open_harness(delay_level_overflow="reject")
    assert response_of(rejecting.send(properties={"DELAY": "99"})).code == ResponseCode.MESSAGE_ILLEGAL
    retry = {"DELAY": "99"}
    rejecting.broker.groups.find("readers")
    assert response_of(rejecting.send("%RETRY%readers", properties=retry, j=1, l=16)).code == ResponseCode.SUCCESS


def test_batch_records_are_consecutive_and_merge_properties(harness: Harness) -> None:
    body = encode_batch(
        [BatchMessage(n, b"m%d" % n, b"UNIQ_KEY\x01U%d\x02WAIT\x01true" % n) for n in range(3)],
    )
    answer = response_of(
        harness.ask(
            RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders", {"WAIT": "true", "all": "yes"}) | {"m": True}, body
        )
    )
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields["queueOffset"] == "0"
    records = harness.pulled()
    assert [record.body for record in records] == [b"m0", b"m1", b"m2"]
    assert [record.flag for record in records] == [0, 1, 2]
    assert [record.queue_offset for record in records] == [0, 1, 2]
    assert records[1].properties == {"UNIQ_KEY": "U1", "WAIT": "true", "all": "yes", "CLUSTER": "DefaultCluster"}
    ids = answer.fields["msgId"].split(",")
    assert [parse_offset_message_id(each)[2] for each in ids] == [record.physical_offset for record in records]


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_batch_field_turns_a_send_into_a_batch(harness: Harness, code: int) -> None:
    answer = response_of(harness.ask(code, send_fields("Orders") | {"m": True}, batch_of(b"a", b"b")))
    assert answer.code == ResponseCode.SUCCESS
    assert len(harness.pulled()) == 2


@pytest.mark.parametrize(
    ("topic", "fields", "body", "words"),
    [
        ("%RETRY%readers", {}, batch_of(b"a"), "retry group"),
        ("Orders", {"i": "DELAY\x013"}, batch_of(b"a"), "delay level"),
        ("Orders", {}, batch_of(b"a", properties=b"DELAY\x013"), "delay level"),
        ("Orders", {}, batch_of(b"a", properties=b"TRAN_MSG\x01true"), "transaction"),
        ("Orders", {"f": 4}, batch_of(b"a"), "transaction"),
        ("Orders", {}, batch_of(b"a", b"b", properties=b"TIMER_DELAY_MS\x01x"), "not a number"),
        ("Orders", {}, batch_of(b"a", b"b", properties=b"P\x01a\0"), "NUL"),
        ("Orders", {"i": "P\x01a\0"}, batch_of(b"a"), "NUL"),
        ("Orders", {}, batch_of(b"a")[:-1], "batch"),
        ("Orders", {}, b"", "batch"),
        ("Orders", {}, b"\0\0\0\5hello", "batch"),
    ],
)
def test_invalid_batch_is_rejected_as_a_whole(
    harness: Harness, topic: str, fields: dict[str, Any], body: bytes, words: str
) -> None:
    answer = response_of(harness.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(topic) | fields, body))
    assert (answer.code, words in str(answer.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True), answer.remark
    assert harness.broker.store.end_offset == 0


def test_batch_above_the_limit_is_rejected_as_a_whole(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(max_message_size=1_024)
    body = batch_of(*[bytes(100)] * 10)
    assert len(body) > 1_024
    answer = response_of(harness.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders"), body))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.broker.store.end_offset == 0


def test_response_waits_for_flush_with_synchronous_flush(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=700)
    result = harness.send(properties={"WAIT": "true"})
    assert isinstance(result, Deferred)
    assert result.until == harness.broker.store.end_offset
    assert result.timeout_ms == 700
    assert result.response.code == ResponseCode.SUCCESS
    assert result.late.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert result.late.fields == result.response.fields
    assert isinstance(harness.send(properties={"WAIT": "false"}), Response)
    assert isinstance(harness.send(), Deferred), "no WAIT means that the producer waits"
    batch = harness.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders"), batch_of(b"a", b"b"))
    assert isinstance(batch, Deferred)
    assert batch.until == harness.broker.store.end_offset


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreFullError("the disk is full: free some space"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (SegmentCreateError("the segment could not be made"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_store_rejections_are_returned_with_their_reason(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise error

    harness.send()
    monkeypatch.setattr(type(harness.broker.store), "append", refuse)
    monkeypatch.setattr(type(harness.broker.store), "append_batch", refuse)
    monkeypatch.setattr(type(harness.broker.store), "append_encoded", lambda *_: None)
    for answer in (harness.send(), harness.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders"), batch_of(b"a"))):
        assert response_of(answer).code == code
        assert str(error) in str(response_of(answer).remark)
    assert harness.broker.stats.put_failed == 2


def test_drained_broker_rejects_sends_and_serves_pulls(harness: Harness) -> None:
    harness.send()
    harness.broker.writable = False
    assert response_of(harness.send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(harness.pulled()) == 1


def test_unexpected_error_is_returned_and_the_next_request_served(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    with monkeypatch.context() as context:
        context.setattr(type(harness.broker.store), "append", fail)
        answer = response_of(harness.send())
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: by zero")
    assert response_of(harness.send()).code == ResponseCode.SUCCESS


def test_send_to_the_retry_topic_becomes_a_dead_letter_after_the_last_attempt(harness: Harness) -> None:
    fields: dict[str, Any] = {"j": 2, "l": 3}
    assert response_of(harness.send("%RETRY%readers", **fields)).code == ResponseCode.SUCCESS
    assert len(harness.pulled("%RETRY%readers")) == 1
    answer = response_of(harness.send("%RETRY%readers", properties={"DELAY": "5"}, j=3, l=3))
    assert answer.code == ResponseCode.SUCCESS
    (dead,) = harness.pulled("%DLQ%readers")
    assert dead.properties["DELAY"] == "0"
    assert dead.reconsume_times == 3


def test_records_are_found_by_the_id_in_the_response(harness: Harness) -> None:
    harness.send(body=b"one")
    answer = response_of(harness.send(body=b"two"))
    offset = parse_offset_message_id(answer.fields["msgId"])[2]
    (record,) = records_of(harness.answer(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).body)
    assert record.body == b"two"


def test_batch_strips_reserved_properties_and_obeys_limits(harness: Harness) -> None:
    own = b"__DMQ_DUE\x011\x02UNIQ_KEY\x01U"
    fields = send_fields("Orders", {"__DMQ_MARK": "delivered:0:0:0:0", "all": "yes"})
    harness.ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch_of(b"a", properties=own))
    assert harness.pulled()[0].properties == {"UNIQ_KEY": "U", "all": "yes", "CLUSTER": "DefaultCluster"}
    half = "x" * 16_400
    both = harness.ask(
        RequestCode.SEND_BATCH_MESSAGE,
        send_fields("Orders", {"all": half}),
        batch_of(b"a", properties=b"own\x01" + half.encode()),
    )
    assert (both.code, "properties" in str(both.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
    only_shared = harness.ask(
        RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders", {"all": half + half}), batch_of(b"a")
    )
    assert only_shared.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(harness.pulled()) == 1
