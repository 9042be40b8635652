"""The steps of docs/migration.md from RocketMQ to DelayMQ and back; test_compat_store.py tests moving a store."""

import json
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import ports
from harness.brokers import (
    CLUSTER_NAME,
    HOST,
    SMALL_FILES,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Cluster,
    OurCluster,
    RealCluster,
    write_properties,
)
from harness.clients import Producer, PushConsumer, Workbench
from harness.processes import ServerProcess

# Both brokers run in each test, whatever --against selects.
pytestmark = pytest.mark.ours_only

CONFIG = {"messageDelayLevel": "1s 2s 4s 15s"}
LEVEL_4S = 3
LEVEL_15S = 4
"""Long enough for mqadmin to read the pending messages: it starts a JVM each time."""
QUEUES = 4
COUNT = 10
POLL_NAMESRV_MS = 200
WAIT_LIMIT_S = 60.0

NewWorkbench = Callable[[Cluster], Workbench]


class OurBroker:
    """`broker-b`: DelayMQ's, registered with RocketMQ's NameServer."""

    def __init__(self, namesrv_address: str, folder: Path) -> None:
        self.listen_port = ports.free_broker_port()
        self.http_port = ports.free_port()
        names = {"brokerName": "broker-b", "brokerClusterName": CLUSTER_NAME}
        config = write_properties(folder / "broker-b.conf", {**SMALL_FILES, **CONFIG, **names})
        command = [sys.executable, "-m", "delaymq", "broker", "--host", HOST, "--namesrv", namesrv_address]
        command += ["--listen-port", str(self.listen_port), "--http-port", str(self.http_port)]
        command += ["--store-path", str(folder / "store-b"), "-c", str(config)]
        self.process = ServerProcess("delaymq broker-b", command, folder / "broker-b.log", environment={})

    @property
    def address(self) -> str:
        return f"{HOST}:{self.listen_port}"

    def start(self) -> None:
        self.process.start()
        self.process.wait_until(self._is_ready, timeout_s=START_TIMEOUT_S)

    def ask(self, path: str, *, post: bool = False) -> dict[str, Any]:
        url = f"http://{HOST}:{self.http_port}/api/v1/{path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, headers=headers, method="POST" if post else "GET")
        with urllib.request.urlopen(request, timeout=5) as answer:
            said: dict[str, Any] = json.load(answer)
            return said

    def _is_ready(self) -> bool:
        try:
            return bool(self.ask("broker")["ready"])
        except OSError:
            return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_LIMIT_S:g} s: {what}"
        time.sleep(0.1)


def send(producer: Producer, topic: str, name: str, **fields: Any) -> tuple[list[str], set[str]]:
    """Return the bodies sent, and the brokers that stored them."""
    bodies = [f"{name}{number}" for number in range(COUNT)]
    return bodies, {producer.send(topic, body, **fields).broker_name for body in bodies}


def wait_for_bodies(consumer: PushConsumer, bodies: list[str]) -> None:
    expected = {body.encode() for body in bodies}
    consumer.inbox.wait_for(lambda got: {each.body for each in got} >= expected, timeout_s=WAIT_LIMIT_S)


def bodies_of(*consumers: PushConsumer) -> Counter[str]:
    return Counter(each.body.decode() for consumer in consumers for each in consumer.inbox.messages())


def pending_of(clients: Workbench, real: RealCluster) -> int:
    """Return the messages pending in RocketMQ's broker, as on the page: ends of queues minus positions of levels."""
    ends = clients.mqadmin("topicStatus", "-t", "SCHEDULE_TOPIC_XXXX")
    stored = {
        int(queue) + 1: int(end) for queue, end in re.findall(r"^broker-a +(\d+) +\d+ +(\d+)", ends, re.MULTILINE)
    }
    assert stored, ends
    shown = clients.mqadmin("brokerStatus", "-b", real.broker_address)
    done = {int(level): int(offset) for level, offset in re.findall(r"scheduleMessageOffset_(\d+) *: *(\d+),", shown)}
    return sum(end - done.get(level, 0) for level, end in stored.items())


@pytest.fixture
def both(isolated_network: None, tmp_path: Path) -> Iterator[tuple[RealCluster, OurBroker]]:
    with RealCluster(config=CONFIG) as real:
        ours = OurBroker(real.namesrv_address, tmp_path)
        try:
            yield real, ours
        finally:
            ours.process.kill()


def test_delaymq_broker_takes_over_by_routes_and_hands_back(
    new_workbench: NewWorkbench, both: tuple[RealCluster, OurBroker]
) -> None:
    real, ours = both
    clients = new_workbench(real)
    topic = clients.topic(queues=QUEUES)
    consumer = clients.push(topic, group=clients.group(), pollNamesrvMs=POLL_NAMESRV_MS)
    producer = clients.new_producer(pollNamesrvMs=POLL_NAMESRV_MS)
    early, brokers = send(producer, topic, "early", delayLevel=LEVEL_4S)
    assert brokers == {"broker-a"}
    ours.start()
    clients.admin.update_topic(topic, broker=ours.address, queues=QUEUES)
    wait_until(lambda: len(producer.queue_ids(topic)) == 2 * QUEUES, "a route with both brokers")
    # RocketMQ's broker accepts no more sends; it can be read, and delivers its pending messages.
    clients.mqadmin("updateBrokerConfig", "-b", real.broker_address, "-k", "brokerPermission", "-v", "4")
    wait_until(lambda: len(producer.queue_ids(topic)) == QUEUES, "a route for sends with broker-b only")
    moved: list[str] = []

    def goes_to_ours_only() -> bool:
        bodies, brokers = send(producer, topic, f"moved{len(moved)}-", delayLevel=LEVEL_4S)
        moved.extend(bodies)
        return brokers == {"broker-b"}

    # RocketMQ's broker accepts sends until the producers have the new route.
    wait_until(goes_to_ours_only, "sends to broker-b only")
    wait_for_bodies(consumer, early + moved)
    wait_until(lambda: pending_of(clients, real) == 0, "nothing pending in RocketMQ's broker")
    # And back, in the opposite direction, with DelayMQ's own command.
    clients.mqadmin("updateBrokerConfig", "-b", real.broker_address, "-k", "brokerPermission", "-v", "6")
    wait_until(lambda: len(producer.queue_ids(topic)) == 2 * QUEUES, "a route with both brokers again")
    last: list[str] = []

    def goes_to_both() -> bool:
        bodies, brokers = send(producer, topic, f"last{len(last)}-", delayLevel=LEVEL_4S)
        last.extend(bodies)
        return brokers == {"broker-a", "broker-b"}

    # The administrator receives the new route before the producer; without the other broker in it, rejected sends fail.
    wait_until(goes_to_both, "sends to both brokers again")
    ours.ask("decommission", post=True)
    wait_until(lambda: len(producer.queue_ids(topic)) == QUEUES, "a route for sends with broker-a only")
    back, brokers = send(producer, topic, "back")
    assert brokers == {"broker-a"}
    wait_for_bodies(consumer, last + back)

    def is_empty() -> bool:
        remaining = ours.ask("remaining")
        return bool(remaining["pendingDelays"] == 0 and remaining["unconsumedMessages"] == 0)

    wait_until(is_empty, "nothing left in DelayMQ's broker")
    assert ours.process.stop(timeout_s=STOP_TIMEOUT_S) == 0
    assert bodies_of(consumer) == Counter(early + moved + last + back)


def test_two_clusters_in_parallel_lose_and_repeat_no_message(
    new_workbench: NewWorkbench, isolated_network: None
) -> None:
    with RealCluster(config=CONFIG) as real, OurCluster(config=CONFIG) as ours:
        old, new = new_workbench(real), new_workbench(ours)
        topic, group = old.topic(queues=QUEUES), old.group()
        new.admin.update_topic(topic, broker=new.broker_address, queues=QUEUES)
        new.wait_for_route(topic, queues=QUEUES)
        consumers = [side.push(topic, group=group) for side in (old, new)]
        early, _ = send(old.producer, topic, "early", delayLevel=LEVEL_15S)
        assert pending_of(old, real) == COUNT
        late, _ = send(new.producer, topic, "late", delayLevel=LEVEL_4S)
        wait_for_bodies(consumers[0], early)
        wait_for_bodies(consumers[1], late)
        wait_until(lambda: pending_of(old, real) == 0, "nothing pending in the old cluster")
        wait_until(
            lambda: all(own == end for own, end in old.admin.consumed(group).values()),
            "all consumed in the old cluster",
        )
        real.stop()
        after, _ = send(new.producer, topic, "after")
        wait_for_bodies(consumers[1], after)
        assert bodies_of(*consumers) == Counter(early + late + after)
