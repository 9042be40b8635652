"""Requests to group members, sent by RocketMQ's administration client; its consumers respond."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from delaymq.protocol.command import Command
from harness.clients import Workbench
from harness.driver import ClientError
from harness.operators import Operators
from harness.raw_member import RawMember

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}
SYSTEM_ERROR, TIMED_OUT = 1, 207


@pytest.fixture
def operators(clients: Workbench) -> Operators:
    return Operators(clients)


def test_running_info_of_a_member_is_returned(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=2), clients.group()
    consumer = clients.push(topic, group=group, threads=3, **FIRST)
    info = operators.running_info(group, consumer.client_id)
    assert sorted(info["topics"]) == sorted([topic, f"%RETRY%{group}"])
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
    assert {queue["queueId"] for queue in info["queues"] if queue["topic"] == topic} <= {0, 1}
    assert topic in info["statusTopics"]
    assert not info["jstack"]


def test_running_info_includes_thread_dump_on_request(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    consumer = clients.push(topic, group=group)
    assert "TID: " in operators.running_info(group, consumer.client_id, jstack=True)["jstack"]


def test_request_for_disconnected_or_unknown_member_is_rejected(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    sent = clients.producer.send(topic, "m")
    consumer = clients.push(topic, group=group, **FIRST)
    clients.stop(consumer)
    member = consumer.client_id
    with pytest.raises(ClientError) as left:
        operators.running_info(group, member)
    assert (left.value.code, left.value.remark) == (SYSTEM_ERROR, f"The Consumer <{group}> <{member}> not online")
    with pytest.raises(ClientError) as unknown:
        operators.consume_directly("nobody", member, sent.offset_message_id)
    assert (unknown.value.code, unknown.value.remark) == (SYSTEM_ERROR, f"The Consumer <nobody> <{member}> not online")


def test_message_is_consumed_directly_regardless_of_offsets(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    sent = [clients.producer.send(topic, f"m{number}", properties={"colour": "red"}) for number in range(2)]
    consumer = clients.push(topic, group=group, **FIRST)
    consumer.inbox.wait_count(2)
    by_place = operators.consume_directly(group, consumer.client_id, sent[0].offset_message_id)
    by_unique_id = operators.consume_directly(group, consumer.client_id, sent[1].message_id, topic=topic)
    assert by_place == by_unique_id == {"result": "CR_SUCCESS", "order": False}
    again = consumer.inbox.messages()[2:]
    assert [m.body for m in again] == [b"m0", b"m1"]
    assert [m.message_id for m in again] == [each.offset_message_id for each in sent]
    assert [m.queue_offset for m in again] == [0, 1]
    assert again[0].properties["colour"] == "red"


def test_result_of_direct_consumption_is_returned(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    sent = clients.producer.send(topic, "m")
    consumer = clients.push(topic, group=group, failTimes=1, **FIRST)
    retried = consumer.inbox.wait_for(lambda messages: any(m.reconsume_times for m in messages), timeout_s=30)[-1]
    first_try = operators.consume_directly(group, consumer.client_id, sent.offset_message_id)
    assert first_try["result"] == "CR_LATER"
    # For a message of the retry topic, the client shows the original topic.
    assert operators.consume_directly(group, consumer.client_id, retried.offset_message_id)["result"] == "CR_SUCCESS"
    last = consumer.inbox.messages()[-1]
    assert (last.topic, last.reconsume_times, last.body) == (topic, 1, b"m")


def test_orderly_consumer_reports_ordered_result(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    sent = clients.producer.send(topic, "m")
    consumer = clients.push(topic, group=group, orderly=True, **FIRST)
    consumer.inbox.wait_count(1)
    result = operators.consume_directly(group, consumer.client_id, sent.offset_message_id)
    assert result == {"result": "CR_SUCCESS", "order": True}


def test_id_without_message_is_rejected(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    sent = clients.producer.send(topic, "m")
    consumer = clients.push(topic, group=group)
    nowhere = sent.offset_message_id[:-16] + f"{1 << 40:016X}"
    with pytest.raises(ClientError) as refused:
        operators.consume_directly(group, consumer.client_id, nowhere)
    assert refused.value.code == SYSTEM_ERROR


def test_offsets_of_all_members_or_of_one_are_returned(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=4), clients.group()
    for queue_id in range(4):
        clients.producer.send(topic, "m", queue_id=queue_id)
    member = clients.push(topic, group=group, **FIRST)
    member.inbox.wait_count(4)
    alone = operators.status(topic, group)
    assert alone == {member.client_id: dict.fromkeys(range(4), 1)}
    other = clients.push(topic, group=group, **FIRST)
    assert set(operators.status(topic, group)) == {member.client_id, other.client_id}
    assert set(operators.status(topic, group, member=other.client_id)) == {other.client_id}
    assert operators.status(topic, group, member="nobody") == {}
    with pytest.raises(ClientError) as offline:
        operators.status(topic, "nobody")
    assert offline.value.code == SYSTEM_ERROR


def test_members_with_invalid_or_failed_responses_are_omitted(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    sound = clients.push(topic, group=group)
    raw: dict[str, Any] = {"broker_address": clients.broker_address, "group": group, "topic": topic}

    def nonsense(command: Command) -> Command:
        return Command(0, body=b'{"messageQueueTable":[')

    def refusal(command: Command) -> Command:
        return Command(1, remark="not now")

    with (
        RawMember(**raw, client_id="nonsense", answer=nonsense) as first,
        RawMember(**raw, client_id="refusal", answer=refusal) as second,
    ):
        assert set(operators.status(topic, group)) == {sound.client_id}
        for member in (first, second):
            assert [command.fields["group"] for command in member.asked] == [group]


def test_request_to_unresponsive_member_times_out_after_ten_seconds(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    raw: dict[str, Any] = {"broker_address": clients.broker_address, "group": group, "topic": topic}
    with RawMember(**raw, client_id="silent", answer=lambda command: None) as member:
        with pytest.raises(ClientError) as silent:
            operators.running_info(group, "silent")
        assert silent.value.code == TIMED_OUT
        assert silent.value.remark.startswith(f"consumer <{group}> <silent> Timeout: ")
        (asked,) = member.asked
        assert (asked.code, asked.fields["consumerGroup"], asked.fields["clientId"]) == (307, group, "silent")


def test_request_to_member_that_disconnects_times_out(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    raw: dict[str, Any] = {"broker_address": clients.broker_address, "group": group, "topic": topic}
    member = RawMember(**raw, client_id="leaving", answer=lambda command: None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(operators.running_info, group, "leaving")
        member.wait_asked()
        member.leave()
        with pytest.raises(ClientError) as left:
            waiting.result(60)
    assert left.value.code == TIMED_OUT
    assert left.value.remark.startswith(f"consumer <{group}> <leaving> Timeout: ")


def test_client_too_old_for_a_request_does_not_receive_it(clients: Workbench, operators: Operators) -> None:
    topic, group = clients.topic(queues=1), clients.group()
    raw = {"broker_address": clients.broker_address, "group": group, "topic": topic}
    with RawMember(**raw, client_id="old", answer=lambda command: None, version=20) as member:
        with pytest.raises(ClientError) as too_low:
            operators.running_info(group, "old")
        assert too_low.value.remark == (
            "The Consumer <old> Version <V3_0_3_SNAPSHOT> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
        )
        with pytest.raises(ClientError) as unsupported:
            operators.status(topic, group)
        assert unsupported.value.remark == "the client does not support this feature. version=V3_0_3_SNAPSHOT"
        assert member.asked == []
