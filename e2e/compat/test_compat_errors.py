"""Rejected requests and their response codes, on which programs based on RocketMQ's clients depend."""

from collections.abc import Callable

import pytest
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError

pytestmark = pytest.mark.core

SYSTEM_ERROR = 1
MESSAGE_ILLEGAL = 13
NO_PERMISSION = 16
TOPIC_NOT_EXIST = 17
CONSUMER_NOT_ONLINE = 206
NO_MESSAGE = 208
CLIENT_NO_ROUTE = 10005
READ_ONLY, WRITE_ONLY = 4, 2


def refusal(operation: Callable[[], object]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        operation()
    return caught.value


def test_body_above_the_limit_is_rejected_as_illegal(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.new_producer(compressOver=16 << 20, maxMessageSize=16 << 20, timeoutMs=10_000)
    assert refusal(lambda: producer.send(topic, (4 << 20) + 1)).code == MESSAGE_ILLEGAL
    assert producer.send(topic, "the connection is still good").queue_offset == 0


def test_properties_above_the_limit_are_rejected_as_illegal(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    too_long = {"long": "x" * 33_000}
    assert refusal(lambda: clients.producer.send(topic, "m", properties=too_long)).code == MESSAGE_ILLEGAL


def test_invalid_queue_id_is_a_system_error(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    assert refusal(lambda: clients.producer.send(topic, "m", queue_id=2)).code == SYSTEM_ERROR
    consumer = clients.pull(group=clients.group())
    assert refusal(lambda: consumer.pull(topic, 2, 0)).code == SYSTEM_ERROR


@pytest.mark.parametrize("name", ["bad topic", "bäd", "a/b", "x" * 128])
def test_topic_with_invalid_name_is_not_created(clients: Workbench, name: str) -> None:
    answer = refusal(lambda: clients.admin.update_topic(name, broker=clients.broker_address))
    assert answer.code == SYSTEM_ERROR


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_mine"])
def test_topic_with_name_of_a_system_topic_is_not_created(clients: Workbench, name: str) -> None:
    answer = refusal(lambda: clients.admin.update_topic(name, broker=clients.broker_address))
    assert answer.code == SYSTEM_ERROR
    assert "conflict with system topic" in answer.remark


def test_pull_from_unknown_topic_is_rejected_with_topic_not_exist(clients: Workbench) -> None:
    consumer = clients.pull(group=clients.group())
    # The route of another topic contains the broker's address.
    consumer.pull(clients.topic(queues=1), 0, 0)
    assert refusal(lambda: consumer.pull("NoSuchTopic", 0, 0)).code == TOPIC_NOT_EXIST


def test_pull_from_topic_without_read_permission_is_rejected(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    consumer = clients.pull(group=clients.group())
    consumer.pull(topic, 0, 0)
    clients.admin.update_topic(topic, broker=clients.broker_address, queues=1, permission=WRITE_ONLY)
    assert refusal(lambda: consumer.pull(topic, 0, 0)).code == NO_PERMISSION


def test_producer_finds_no_route_of_topic_without_write_permission(clients: Workbench) -> None:
    topic = clients.topic(queues=1, permission=READ_ONLY)
    assert refusal(lambda: clients.new_producer().send(topic, "m")).code == CLIENT_NO_ROUTE


def test_query_by_unknown_id_or_key_finds_no_message(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    sent = clients.producer.send(topic, "m")
    beyond = sent.offset_message_id[:16] + f"{int(sent.offset_message_id[16:], 16) + (1 << 30):016X}"
    assert refusal(lambda: clients.admin.view(beyond)).code == SYSTEM_ERROR
    assert refusal(lambda: clients.admin.query(topic, "no such key")).code == NO_MESSAGE


def test_group_without_members_is_not_online(clients: Workbench) -> None:
    group = clients.group()
    topic = clients.topic(queues=1)
    consumer = clients.push(topic, group=group)
    clients.stop(consumer)
    assert refusal(lambda: clients.admin.consumers(group)).code == CONSUMER_NOT_ONLINE


def test_send_to_unknown_topic_is_rejected_without_auto_creation(
    strict_cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]
) -> None:
    clients = new_workbench(strict_cluster)
    assert refusal(lambda: clients.new_producer().send("Unknown", "m")).code == CLIENT_NO_ROUTE
    topic = clients.topic(queues=1)
    producer = clients.new_producer()
    producer.send(topic, "now it knows the broker")
    answer = refusal(lambda: producer.send("Unknown", "m", queue_id=0))
    assert answer.code == TOPIC_NOT_EXIST
    assert "apply first please" in answer.remark


def test_pull_of_unknown_group_is_rejected_without_auto_creation(
    strict_cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]
) -> None:
    clients = new_workbench(strict_cluster)
    topic = clients.topic(queues=1)
    consumer = clients.pull(group=clients.group())
    assert refusal(lambda: consumer.pull(topic, 0, 0)).code == 26
