"""Calls of RocketMQ's dashboard and Prometheus exporter through Java's administration API.

The calls are taken from the public sources of rocketmq-dashboard 1.0.0 and rocketmq-exporter, whose jars are not on
Maven Central. golden/calls contains the normalised results with RocketMQ's broker.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from compat.admin_calls import CALLS, GROUP, PRODUCERS, TOPIC, Call
from harness import admin_answers, mqadmin_golden
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError, Driver
from harness.waiting import until

FOLDER = "calls"
QUEUES, MESSAGES = 2, 6


@pytest.fixture(scope="module")
def printed(driver: Driver, new_cluster: Callable[..., Cluster]) -> Iterator[dict[str, list[str]]]:
    """Return the normalised result of each call, on a fresh broker with a producer and an active group."""
    with new_cluster() as cluster:
        addresses: dict[str, Any] = {
            "namesrv_address": cluster.namesrv_address,
            "broker_address": cluster.broker_address,
        }
        with closing(Workbench(driver, **addresses)) as clients:
            scene = _fill(clients)
            yield {call.name: _answer(clients, call, scene) for call in CALLS}


def _fill(clients: Workbench) -> dict[str, str]:
    clients.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES))
    clients.mqadmin("updateTopic", "-b", clients.broker_address, "-t", "Unit", "-u", "true")
    clients.mqadmin("updateTopic", "-b", clients.broker_address, "-t", "UnitSubscribed", "-s", "true")
    clients.wait_for_route(TOPIC, queues=QUEUES)
    for group in (GROUP, "Clone"):
        clients.admin.update_topic(f"%RETRY%{group}", broker=clients.broker_address, queues=1)
        clients.wait_for_route(f"%RETRY%{group}")
    producer = clients.new_producer(group=PRODUCERS)
    sent = [producer.send(TOPIC, f"m{i}", queue_id=i % QUEUES, keys=f"key{i}") for i in range(MESSAGES)]
    member = clients.push(TOPIC, group=GROUP, **{"from": "CONSUME_FROM_FIRST_OFFSET"})
    member.inbox.wait_count(MESSAGES)
    until(lambda: _is_read(clients), "the group's offsets")
    return {
        "broker": clients.broker_address,
        "namesrv": clients.namesrv_address,
        "client": member.client_id,
        "message": sent[1].message_id,
        "offset_message": sent[1].offset_message_id,
    }


def _is_read(clients: Workbench) -> bool:
    consumed = clients.admin.consumed(GROUP)
    return len(consumed) == QUEUES + 1 and all(at == end for at, end in consumed.values())


def _answer(clients: Workbench, call: Call, scene: dict[str, str]) -> list[str]:
    arguments = [_filled(each, scene) for each in call.arguments]
    try:
        return admin_answers.normalised(clients.admin.ask(call.method, *arguments, **call.options))
    except ClientError as error:
        return [f"{error.kind} {error.code}"]


def _filled(value: Any, scene: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(each, scene) for each in value]
    return value.format_map(scene) if isinstance(value, str) else value


@pytest.mark.parametrize("name", [call.name for call in CALLS])
def test_call_of_dashboard_or_exporter_returns_the_same_as_with_rocketmq_broker(
    printed: dict[str, list[str]], name: str, request: pytest.FixtureRequest, against: str
) -> None:
    mqadmin_golden.compare(request, against, FOLDER, name, printed)


def test_every_golden_file_of_calls_belongs_to_a_call() -> None:
    assert mqadmin_golden.files(FOLDER) == {call.name for call in CALLS}
