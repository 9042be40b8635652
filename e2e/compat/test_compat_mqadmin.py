"""mqadmin's output with DelayMQ's broker equals that with RocketMQ's broker.

golden/ contains the normalised output with RocketMQ's broker. To write it again:
``pytest e2e/compat/test_compat_mqadmin.py --against real --write-golden``.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import mqadmin_output as output
from harness.brokers import Cluster
from harness.clients import Sent, Workbench
from harness.driver import Driver
from harness.mqadmin_golden import make_topic
from harness.mqadmin_output import Normaliser

GOLDEN_PATH = Path(__file__).resolve().parent / "golden"
TOPIC, GROUP = "GoldenTopic", "GoldenGroup"
QUEUES, MESSAGES = 4, 8


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Subject of the commands: a consumed topic and one of its messages."""

    broker_address: str
    sent: Sent


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command; its golden file has its name."""

    name: str
    arguments: Callable[[Scene], list[str]]
    normaliser: Normaliser = output.plain


BEFORE_DELAYS = [
    Case(name="clusterList", arguments=lambda _: ["clusterList"], normaliser=output.cluster_list),
    Case(name="clusterList-totals", arguments=lambda _: ["clusterList", "-m"]),
    Case(name="topicList", arguments=lambda _: ["topicList"], normaliser=output.topic_list),
    Case(name="topicList-groups", arguments=lambda _: ["topicList", "-c"], normaliser=output.topic_list),
    Case(name="topicRoute", arguments=lambda _: ["topicRoute", "-t", TOPIC]),
    Case(name="topicStatus", arguments=lambda _: ["topicStatus", "-t", TOPIC]),
    Case(name="queryMsgById", arguments=lambda scene: ["queryMsgById", "-i", scene.sent.offset_message_id]),
    Case(name="queryMsgByKey", arguments=lambda _: ["queryMsgByKey", "-t", TOPIC, "-k", "key3"]),
    Case(name="queryMsgByKey-shared", arguments=lambda _: ["queryMsgByKey", "-t", TOPIC, "-k", "shared"]),
    Case(
        name="queryMsgByUniqueKey",
        arguments=lambda scene: ["queryMsgByUniqueKey", "-t", TOPIC, "-i", scene.sent.message_id],
    ),
    Case(
        name="consumerProgress-group",
        arguments=lambda _: ["consumerProgress", "-g", GROUP],
        normaliser=output.consumer_progress,
    ),
    Case(name="consumerProgress", arguments=lambda _: ["consumerProgress"], normaliser=output.all_progress),
    Case(name="consumerConnection", arguments=lambda _: ["consumerConnection", "-g", GROUP]),
    Case(
        name="brokerStatus",
        arguments=lambda scene: ["brokerStatus", "-b", scene.broker_address],
        normaliser=output.broker_status,
    ),
    Case(name="updateTopic-new", arguments=lambda scene: ["updateTopic", "-t", "Other", "-b", scene.broker_address]),
    Case(
        name="updateTopic-changed",
        arguments=lambda _: ["updateTopic", "-t", "Other", "-c", "DefaultCluster", "-r", "3", "-w", "2", "-p", "4"],
    ),
    Case(name="topicRoute-changed", arguments=lambda _: ["topicRoute", "-t", "Other"]),
    Case(name="deleteTopic", arguments=lambda _: ["deleteTopic", "-t", "Other", "-c", "DefaultCluster"]),
    Case(name="topicRoute-deleted", arguments=lambda _: ["topicRoute", "-t", "Other"]),
]
"""Commands in order: later ones may depend on changes by earlier ones."""
AFTER_DELAYS = [
    Case(
        name="brokerStatus-delays",
        arguments=lambda scene: ["brokerStatus", "-b", scene.broker_address],
        normaliser=output.delay_offsets,
    ),
]
"""DelayMQ's own properties make delayed records larger, so the totals above are taken without any."""
CASES = BEFORE_DELAYS + AFTER_DELAYS


@pytest.fixture(scope="module")
def printed(driver: Driver, new_cluster: Callable[..., Cluster]) -> Iterator[dict[str, list[str]]]:
    """Return the normalised output of each command, on a fresh broker with one consumed topic."""
    with new_cluster() as cluster:
        addresses: dict[str, Any] = {
            "namesrv_address": cluster.namesrv_address,
            "broker_address": cluster.broker_address,
        }
        with closing(Workbench(driver, **addresses)) as clients:
            yield _play(clients)


def _play(clients: Workbench) -> dict[str, list[str]]:
    make_topic(clients, TOPIC, QUEUES)
    sent = []
    for i in range(MESSAGES):
        fields = {"keys": f"key{i} shared", "tags": "TagA", "properties": {"colour": "blue"}}
        sent.append(clients.producer.send(TOPIC, f"m{i}", queue_id=i % QUEUES, **fields))
    _consume_all(clients)
    # One connected member suffices.
    consumer = clients.push(TOPIC, group=GROUP)

    scene = Scene(broker_address=clients.broker_address, sent=sent[3])
    printed = {case.name: _run(clients, case, scene) for case in BEFORE_DELAYS}
    for i in range(3):
        clients.producer.send(TOPIC, f"delayed{i}", delayLevel=1)
    consumer.inbox.wait_count(3)
    return printed | {case.name: _run(clients, case, scene) for case in AFTER_DELAYS}


def _consume_all(clients: Workbench) -> None:
    """Consume everything and stop, which stores all offsets, including that of the retry queue (0).

    The first member creates the retry topic, usually too late to be assigned its queue before it stops.
    """
    first = clients.push(TOPIC, group=GROUP)
    first.inbox.wait_count(MESSAGES)
    # A pull in progress while offsets are stored could set an older one.
    time.sleep(0.5)
    clients.stop(first)
    clients.wait_for_route(f"%RETRY%{GROUP}")
    for _ in range(10):
        if len(clients.admin.consumed(GROUP)) == QUEUES + 1:
            return
        member = clients.push(TOPIC, group=GROUP)
        time.sleep(0.2)
        clients.stop(member)
    raise AssertionError(f"offsets were stored only for {clients.admin.consumed(GROUP)}")


def _run(clients: Workbench, case: Case, scene: Scene) -> list[str]:
    answer = clients.driver.call("mqadmin", arguments=[*case.arguments(scene), "-n", clients.namesrv_address])
    # If a command fails, users see the exception's message; the stack trace is the client's own.
    complaints = [line for line in str(answer["errors"]).splitlines() if "CODE:" in line]
    return case.normaliser(output.common(str(answer["output"]))) + output.common("\n".join(complaints))


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_mqadmin_prints_the_same_as_with_rocketmq_broker(
    printed: dict[str, list[str]], name: str, request: pytest.FixtureRequest, against: str
) -> None:
    golden_path = GOLDEN_PATH / f"{name}.txt"
    assert printed[name], f"{name} printed nothing"
    if request.config.getoption("--write-golden"):
        assert against == "real", "golden files are written with RocketMQ's broker: add --against real"
        golden_path.parent.mkdir(exist_ok=True)
        golden_path.write_text("\n".join(printed[name]) + "\n")
    assert printed[name] == golden_path.read_text().splitlines()


def test_every_golden_file_belongs_to_a_command() -> None:
    assert {path.stem for path in GOLDEN_PATH.glob("*.txt")} == {case.name for case in CASES}
