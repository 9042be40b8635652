"""Requests that administrators send to members through the broker, and the use of their responses."""

import json
from typing import Any

import pytest
from delaymq.broker.groups.client_versions import version_name
from delaymq.broker.processors import members as module
from delaymq.broker.requests.results import RelayedRequests
from delaymq.message.ids import offset_message_id
from delaymq.protocol.bodies import (
    ConsumerData,
    ConsumerStatus,
    HeartbeatData,
    MessageQueue,
    ResetOffset,
    SubscriptionData,
)
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response
from delaymq_testing.broker.harness import FakeSession, Harness, response_of

RUNNING_INFO = {"consumerGroup": "readers", "clientId": "c1", "jstackEnable": "true"}
STATUS = {"topic": "Orders", "group": "readers"}
QUEUE = MessageQueue("broker-a", 0, "Orders")


def join(harness: Harness, client_id: str = "c1", version: int = 407, language: str = "JAVA") -> FakeSession:
    """A member of `readers` with a connection of its own."""
    session = FakeSession()
    data = HeartbeatData(
        client_id,
        consumer_data_set=[ConsumerData("readers", subscription_data_set=[SubscriptionData("Orders", "*")])],
    )
    answer = harness.answer(
        RequestCode.HEART_BEAT, body=data.encode(), session=session, language=language, version=version
    )
    assert answer.code == ResponseCode.SUCCESS
    session.notified.clear()
    return session


def asked(harness: Harness, code: int, fields: dict[str, Any], body: bytes = b"") -> RelayedRequests:
    result = harness.ask(code, fields, body)
    assert isinstance(result, RelayedRequests), result
    return result


def commit(harness: Harness, offset: int, queue_id: int = 0) -> None:
    assert harness.broker.offsets.commit("Orders", "readers", queue_id, offset)


def stored_id(harness: Harness, **fields: Any) -> str:
    return str(response_of(harness.send(**fields)).fields["msgId"])


def test_running_info_request_reaches_the_member_with_all_fields(harness: Harness) -> None:
    session = join(harness)
    join(harness, "c2")
    fields = RUNNING_INFO | {"bname": "broker-a", "AccessKey": "a", "Signature": "b", "SecurityToken": "c"}
    question = asked(harness, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert question.timeout_ms == 10_000
    ((to, command),) = question.requests
    assert to is session
    assert (command.code, command.flag) == (RequestCode.GET_CONSUMER_RUNNING_INFO, 0)
    assert command.fields == RUNNING_INFO | {"bname": "broker-a"}
    said = Command(7, remark="so so", fields={"x": "y"}, body=b"anything, even nonsense")
    assert question.answer([said]) == Response(7, "so so", {"x": "y"}, b"anything, even nonsense")


def test_silent_member_is_distinguished_from_one_that_left(harness: Harness) -> None:
    session = join(harness)
    question = asked(harness, RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    silent = response_of(question.answer([None]))
    assert silent.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert silent.remark == "consumer <readers> <c1> Timeout: no response within 10000 ms"
    harness.broker.session_closed(session)
    left = response_of(question.answer([None]))
    assert left.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert left.remark == "consumer <readers> <c1> Timeout: it left the group before it responded"


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY])
def test_disconnected_or_old_client_gets_no_request(harness: Harness, code: int) -> None:
    fields = RUNNING_INFO | {"msgId": stored_id(harness)}
    for wanted in ({}, {"consumerGroup": "others"}):
        answer = harness.answer(code, fields | wanted)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"The Consumer <{(fields | wanted)['consumerGroup']}> <c1> not online"
    join(harness, version=61)
    assert harness.answer(code, fields).remark == (
        "The Consumer <c1> Version <V3_1_7> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
    )


def test_newest_connection_of_a_client_gets_the_request(harness: Harness) -> None:
    older, newer = join(harness), join(harness)
    ((to, _),) = asked(harness, RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO).requests
    assert to is newer
    ((to, _),) = asked(harness, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS).requests
    assert to is newer
    harness.broker.session_closed(newer)
    ((to, _),) = asked(harness, RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO).requests
    assert to is older


def test_directly_consumed_message_is_forwarded_as_stored(harness: Harness) -> None:
    session = join(harness)
    fields = {"consumerGroup": "readers", "clientId": "c1", "msgId": stored_id(harness, topic="%RETRY%readers")}
    question = asked(harness, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    ((to, command),) = question.requests
    assert to is session
    assert command.fields == fields | {"brokerName": "broker-a"}
    store = harness.broker.store
    assert command.body == store.read_bytes(0, store.end_offset)


@pytest.mark.parametrize("offset", [1, 10_000_000, -8])
def test_message_id_without_a_record_is_rejected(harness: Harness, offset: int) -> None:
    join(harness)
    harness.send()
    fields = {
        "consumerGroup": "readers",
        "clientId": "c1",
        "msgId": offset_message_id(harness.broker.store_host, offset),
    }
    answer = harness.answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {offset}"


@pytest.mark.parametrize("message_id", [None, "", "7F", "x" * 32, "7F000001" * 20_000])
def test_invalid_message_id_is_rejected(harness: Harness, message_id: str | None) -> None:
    join(harness)
    fields = {"consumerGroup": "readers", "clientId": "c1"} | ({} if message_id is None else {"msgId": message_id})
    answer = harness.answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is not an offset message id" in str(answer.remark)
    assert len(str(answer.remark)) < 200


def stated(offset: int) -> Command:
    return Command(0, body=ConsumerStatus(message_queue_table={QUEUE: offset}).encode())


def test_all_members_are_queried_for_their_progress(harness: Harness) -> None:
    sessions = [join(harness, f"c{number}") for number in (1, 2, 3)]
    question = asked(harness, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    assert question.timeout_ms == 5_000
    assert [to for to, _ in question.requests] == sessions
    for _, command in question.requests:
        assert (command.code, command.fields) == (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, STATUS)
    assert len({id(command) for _, command in question.requests}) == 3
    answer = response_of(question.answer([stated(5), None, stated(7)]))
    assert (answer.code, answer.remark) == (0, None)
    assert ConsumerStatus.decode(answer.body).consumer_table == {"c1": {QUEUE: 5}, "c3": {QUEUE: 7}}


def test_one_member_can_be_queried_alone(harness: Harness) -> None:
    sessions = [join(harness, f"c{number}") for number in (1, 2)]
    fields = STATUS | {"clientAddr": "c2"}
    question = asked(harness, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
    assert [to for to, _ in question.requests] == sessions[1:]
    nobody = asked(harness, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS | {"clientAddr": "c9"})
    assert ConsumerStatus.decode(response_of(nobody.answer([])).body).consumer_table == {}


def test_member_with_invalid_or_error_response_is_omitted(harness: Harness) -> None:
    for number in range(5):
        join(harness, f"c{number}")
    question = asked(harness, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    answers = [
        Command(0, body=b'{"messageQueueTable":7}'),
        Command(1, remark="no"),
        Command(0),
        Command(0, body=b"[" * 100_000),
        stated(3),
    ]
    answer = response_of(question.answer(list(answers)))
    assert answer.code == 0
    assert str(answer.remark).startswith("the responses of 2 members were unreadable")
    assert ConsumerStatus.decode(answer.body).consumer_table == {"c4": {QUEUE: 3}}


def test_members_with_oversized_responses_are_omitted(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        join(harness, f"c{number}")
    monkeypatch.setattr(module, "MAX_STATUS_BYTES", 2 * len(stated(1).body) + 100)
    question = asked(harness, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    answer = response_of(question.answer([stated(1), stated(2), stated(3)]))
    assert list(ConsumerStatus.decode(answer.body).consumer_table) == ["c0", "c1"]
    assert "query these members individually" in str(answer.remark)


def test_group_without_current_members_has_no_status(harness: Harness) -> None:
    answer = harness.answer(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    assert answer.remark == "No Any Consumer online in the consumer group: [readers]"
    join(harness, version=27)
    answer = harness.answer(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    assert (answer.code, answer.remark) == (1, "the client does not support this feature. version=V3_0_6")


def reset_fields(**changes: Any) -> dict[str, Any]:
    return {"topic": "Orders", "group": "readers", "timestamp": 1, "isForce": "true"} | changes


def reset(harness: Harness, **changes: Any) -> dict[int, int]:
    answer = harness.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields(**changes))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return {queue.queue_id: offset for queue, offset in ResetOffset.decode(answer.body).offset_table.items()}


def with_messages(harness: Harness, committed: int) -> int:
    """Three messages a second apart in each of four queues, and offsets; the first one's store time."""
    first_ms = harness.clock()
    for _ in range(3):
        for queue_id in range(4):
            harness.send(e=queue_id)
        harness.clock.advance(1_000)
    for queue_id in range(4):
        commit(harness, committed, queue_id)
    return first_ms


def test_reset_moves_forward_only_when_forced(harness: Harness) -> None:
    first_ms = with_messages(harness, committed=1)
    join(harness)
    assert set(reset(harness, timestamp=first_ms + 2_000).values()) == {2}
    assert set(reset(harness, timestamp=first_ms + 2_000, isForce="false").values()) == {1}
    assert set(reset(harness, timestamp=first_ms, isForce="false").values()) == {0}
    assert set(reset(harness, timestamp=-1).values()) == {3}
    assert set(reset(harness, timestamp=-1, isForce="false").values()) == {1}


def test_reset_has_each_members_format_and_a_table_for_the_requester(harness: Harness) -> None:
    with_messages(harness, committed=1)
    java, cpp = join(harness, "c1"), join(harness, "c2", language="CPP")
    java.notified.clear()
    answer = harness.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields(), language="CPP")
    table = ResetOffset.decode(answer.body).offset_table
    assert set(table.values()) == {0}
    (to_java,), (to_cpp,) = java.notified, cpp.notified
    assert ResetOffset.decode(to_java.body).offset_table == table
    listed = json.loads(to_cpp.body)["offsetTable"]
    assert listed[0] == {"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "Orders"}
    for order in (to_java, to_cpp):
        assert order.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        assert order.flag == FLAG_ONEWAY
        # Java clients refuse an order without one of these.
        assert set(order.fields) == {"topic", "group", "timestamp", "isForce"}


def test_group_with_an_old_member_is_not_reset(harness: Harness) -> None:
    with_messages(harness, committed=1)
    session = join(harness)
    join(harness, "old", version=12)
    session.notified.clear()
    answer = harness.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields())
    assert (answer.code, answer.remark) == (
        1,
        "the client does not support this feature. version=V3_0_0_BETA8",
    )
    assert session.notified == []


def test_queue_without_an_offset_makes_the_group_unknown(harness: Harness) -> None:
    with_messages(harness, committed=1)
    join(harness)
    del harness.broker.offsets.table["Orders@readers"][2]
    answer = harness.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields())
    assert (answer.code, answer.remark) == (1, "THe consumer group <readers> not exist")


def test_versions_of_old_clients_have_names() -> None:
    assert version_name(0) == "V3_0_0_SNAPSHOT"
    assert version_name(15) == "V3_0_0_FINAL"
    assert version_name(28) == "V3_0_7_SNAPSHOT"
    assert version_name(45) == "V3_0_15"
    assert version_name(46) == "V3_1_0_SNAPSHOT"
    assert version_name(61) == "V3_1_7"
    assert version_name(407) == "407"
    assert version_name(-3) == "-3"
