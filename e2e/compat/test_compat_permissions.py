"""Permissions set by administrators: a group's consumption, broadcasting, and a broker's reads and writes."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError, Driver
from harness.waiting import until

NO_PERMISSION = 16


@pytest.fixture(scope="module")
def allowed(driver: Driver, new_cluster: Callable[..., Cluster]) -> Iterator[Workbench]:
    """Provide clients of a separate cluster: other tests need a broker that permits everything."""
    with new_cluster() as cluster:
        addresses: dict[str, Any] = {
            "namesrv_address": cluster.namesrv_address,
            "broker_address": cluster.broker_address,
        }
        with closing(Workbench(driver, **addresses)) as clients:
            yield clients


def refusal(action: Callable[[], object]) -> int | None:
    """Return the response code of a rejection; None if the action succeeded."""
    try:
        action()
    except ClientError as error:
        return error.code
    return None


def test_group_without_permission_to_consume_is_rejected_until_permitted(allowed: Workbench) -> None:
    topic, group = allowed.topic(queues=1), allowed.name("group")
    allowed.producer.send(topic, "m", queue_id=0)
    allowed.mqadmin("updateSubGroup", "-b", allowed.broker_address, "-g", group, "-s", "false")
    consumer = allowed.pull(group=group)
    with pytest.raises(ClientError) as refused:
        consumer.pull(topic, 0, 0)
    assert refused.value.code == NO_PERMISSION
    assert group in refused.value.remark
    allowed.mqadmin("updateSubGroup", "-b", allowed.broker_address, "-g", group, "-s", "true")
    assert [each.body for each in consumer.pull(topic, 0, 0).messages] == [b"m"]


def test_broker_permission_is_propagated_to_routes_and_restored(allowed: Workbench) -> None:
    topic, group = allowed.topic(queues=1), allowed.group()
    allowed.producer.send(topic, "m", queue_id=0)
    change = ("updateBrokerConfig", "-b", allowed.broker_address, "-k", "brokerPermission", "-v")
    allowed.mqadmin(*change, "4")
    producer = allowed.new_producer(retries=0)
    consumer = allowed.pull(group=group)
    until(lambda: allowed.admin.route(topic)["queueDatas"][0]["perm"] == 4, "the permission in routes")
    # As with RocketMQ: clients find no queue for sending, but a send to a known queue is accepted.
    with pytest.raises(ClientError):
        producer.send(topic, "n")
    assert allowed.producer.send(topic, "n", queue_id=0).status == "SEND_OK"
    assert [each.body for each in consumer.pull(topic, 0, 0).messages] == [b"m", b"n"]

    allowed.mqadmin(*change, "2")
    until(lambda: allowed.admin.route(topic)["queueDatas"][0]["perm"] == 2, "the permission in routes")
    assert refusal(lambda: consumer.pull(topic, 0, 0)) == NO_PERMISSION
    allowed.mqadmin(*change, "6")
    until(lambda: allowed.admin.route(topic)["queueDatas"][0]["perm"] == 6, "the permission in routes")
    until(lambda: refusal(lambda: allowed.new_producer().send(topic, "o")) is None, "an accepted send")
    assert consumer.pull(topic, 0, 2).messages[0].body == b"o"
