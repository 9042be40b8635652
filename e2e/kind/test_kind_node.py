"""Loss and return of a node: stateless pods move, brokers wait for their volume's node."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from kind import objects
from kind.lab import Lab, Operator
from kind.lost_nodes import LostNodes
from kind.space import Space
from kind.waiting import NotYetError, wait_until

pytestmark = pytest.mark.timeout(420)


def test_broker_of_a_lost_node_returns_with_the_node_and_all_pending_messages(
    lab: Lab, operator: Operator, spaces: Callable[..., Space], nodes: LostNodes,
    note: Callable[..., None],
) -> None:  # fmt: skip
    space = spaces("node")
    space.apply(objects.topic("orders", queues=2))
    spread = {
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "broker"}},
    }  # fmt: skip
    name_servers = space.broker_ready(
        size=2, nameServers={"replicas": 2}, podTemplate={"topologySpreadConstraints": [spread]}
    )
    space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
    home = space.pod("demo-broker-1-0")["spec"]["nodeName"]
    assert space.pod("demo-broker-0-0")["spec"]["nodeName"] != home
    operator_home = operator.pods()[0]["spec"]["nodeName"]
    pending = space.client.produce(
        topic="orders", name_servers=name_servers, run="before", count=600, rate=600,
        levels=f"{objects.LEVEL_OF['10s']},{objects.LEVEL_OF['1m']}",
    )  # fmt: skip
    pending.result()
    # Sends during the loss go to the other broker, through the client's own retries.
    during = space.client.produce(
        topic="orders", name_servers=name_servers, run="during", rate=20, levels=objects.LEVEL_OF["1s"], at_most_s=240,
        route_interval_ms=5_000, timeout_ms=6_000,
    )  # fmt: skip
    began = time.monotonic()
    nodes.lose(home)
    wait_until("the node is reported as lost", lambda: not _node_ready(lab, home), timeout_s=90, every_s=1)
    noticed_s = time.monotonic() - began
    nodes.write_off(home)

    def name_servers_run() -> bool:
        pods = space.list("pods", "app.kubernetes.io/component=namesrv")
        places = [(pod["spec"].get("nodeName"), _ready(pod)) for pod in pods]
        if len(places) == 2 and all(ready and node != home for node, ready in places):
            return True
        raise NotYetError(str(places))

    wait_until("both NameServers run elsewhere", name_servers_run, timeout_s=90, every_s=1)
    operator.wait_ready()
    assert operator.pods()[0]["spec"]["nodeName"] != home
    moved_s = time.monotonic() - began
    state = space.wait_condition("broker.delaymq.io", "demo", "Ready", status="False")
    assert "demo-1" in state["message"] or "demo-broker-1" in state["message"], state["message"]

    began = time.monotonic()
    nodes.give_back(home)
    space.wait_broker_ready(timeout_s=150)
    back_s = time.monotonic() - began
    assert space.pod("demo-broker-1-0")["spec"]["nodeName"] == home
    during.wait_lines("sent", len(during.lines("sent")) + 20)
    during.stop()
    sends = pending.sends() + during.sends()
    verdict = space.judge_when_done("orders", sends, groups=2, timeout_s=60)
    verdict.assert_clean()
    group = next(each for each in space.broker()["status"]["groups"] if each["group"] == 1)
    assert group["resumed"]["verdict"] == "Intact", group["resumed"]
    note(
        noticed_s=noticed_s, moved_s=moved_s, broker_back_s=back_s, operator_was_there=operator_home == home,
        stored_again=verdict.stored_again, **verdict.figures(),
    )  # fmt: skip


def _node_ready(lab: Lab, node: str) -> bool:
    conditions = lab.cluster.get("node", node)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _ready(pod: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))
