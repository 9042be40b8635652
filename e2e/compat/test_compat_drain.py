"""RocketMQ's producers while one of two DelayMQ brokers withdraws, rejects sends, stops and starts: no send fails.

With both NameServers; RocketMQ's keeps what a broker registered under a version that it already has.
"""

import json
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from harness import ports
from harness.brokers import CLUSTER_NAME, HOST, START_TIMEOUT_S, STOP_TIMEOUT_S, Cluster, OurCluster
from harness.clients import Producer, Sent, Workbench
from harness.processes import ServerProcess

pytestmark = pytest.mark.ours_only

LEASE_MS = 60_000
POLL_NAMESRV_MS = 200
"""Interval at which the tested clients request routes; 30 s by default."""
SEND_INTERVAL_S = 0.005
WAIT_LIMIT_S = 60.0
QUIET_S = 1.0
QUEUES = 4

NewWorkbench = Callable[[Cluster], Workbench]


class SecondBroker:
    """`broker-b`, registered with the cluster's NameServer."""

    def __init__(self, cluster: OurCluster) -> None:
        self.listen_port = ports.free_broker_port()
        self.http_port = ports.free_port()
        command = [sys.executable, "-m", "delaymq", "broker", "--host", HOST, "--namesrv", cluster.namesrv_address]
        command += ["--listen-port", str(self.listen_port), "--http-port", str(self.http_port)]
        command += ["--store-path", str(cluster.base_path / "store-b"), "-c", str(cluster.base_path / "broker.conf")]
        environment = {"DELAYMQ_BROKER_NAME": "broker-b", "DELAYMQ_BROKER_CLUSTER_NAME": CLUSTER_NAME}
        log_path = cluster.base_path / "delaymq-b.log"
        self.process = ServerProcess("delaymq broker-b", command, log_path, environment=environment)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.listen_port}"

    def start(self) -> None:
        self.process.start()
        self.process.wait_until(self._is_ready, timeout_s=START_TIMEOUT_S)

    def stop(self) -> None:
        assert self.process.stop(timeout_s=STOP_TIMEOUT_S) == 0, self.process.log_tail()

    def ask(self, path: str, **body: object) -> dict[str, Any]:
        """Send a GET request to /api/v1, or with a body a POST request."""
        data = json.dumps(body).encode() if body else None
        url = f"http://{HOST}:{self.http_port}/api/v1/{path}"
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            said: dict[str, Any] = json.load(answer)
            return said

    def drain(self, mode: str) -> dict[str, Any]:
        return self.ask("drain", mode=mode, leaseMs=LEASE_MS)

    def _is_ready(self) -> bool:
        try:
            return bool(self.ask("broker")["ready"])
        except OSError:
            return False


class SteadySender:
    """Sends a message every few milliseconds until it is stopped."""

    def __init__(self, producer: Producer, topic: str, mode: str) -> None:
        self._producer = producer
        self._topic = topic
        self._mode = mode
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sends: list[Future[Any]] = []
        self._thread.start()

    def stop(self) -> list[Future[Any]]:
        """Return all sends, including pending ones."""
        self._stopped.set()
        self._thread.join()
        return self.sends

    def _run(self) -> None:
        while not self._stopped.wait(SEND_INTERVAL_S):
            body = f"m{len(self.sends)}"
            self.sends.append(self._producer.submit(self._topic, body, mode=self._mode))  # type: ignore[arg-type]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_LIMIT_S:g} s: {what}"
        time.sleep(0.05)


def wait_for_sends(broker: SecondBroker, more: int) -> None:
    before = broker.ask("drain")["sends"]
    wait_until(lambda: broker.ask("drain")["sends"] >= before + more, f"{more} more sends to broker-b")


def wait_for_quiet(broker: SecondBroker) -> None:
    """Wait until no send arrived for a while, as an administrator waits before rejecting sends."""

    def is_quiet() -> bool:
        said = broker.ask("drain")
        return bool(time.time() * 1000 - max(said["lastSendMs"], said["sinceMs"]) >= QUIET_S * 1000)

    wait_until(is_quiet, "no more sends to broker-b")


@pytest.fixture(params=[False, True], ids=["own NameServer", "real NameServer"])
def brokers(request: pytest.FixtureRequest, isolated_network: None) -> Iterator[tuple[OurCluster, SecondBroker]]:
    with OurCluster(config={}, real_namesrv=request.param) as cluster:
        second = SecondBroker(cluster)
        try:
            second.start()
            yield cluster, second
        finally:
            second.process.kill()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_restart_of_a_drained_broker_fails_no_send_and_loses_no_message(
    new_workbench: NewWorkbench, brokers: tuple[OurCluster, SecondBroker], mode: str
) -> None:
    cluster, second = brokers
    clients = new_workbench(cluster)
    topic = clients.name("Topic")
    for address in (cluster.broker_address, second.address):
        clients.admin.update_topic(topic, broker=address, queues=QUEUES)
    clients.wait_for_route(topic, queues=None)
    wait_until(lambda: len(clients.producer.queue_ids(topic)) == 2 * QUEUES, "a route with both brokers")
    consumer = clients.push(topic, group=clients.group(), pollNamesrvMs=POLL_NAMESRV_MS)
    producer = clients.new_producer(pollNamesrvMs=POLL_NAMESRV_MS)
    sender = SteadySender(producer, topic, mode)
    try:
        wait_for_sends(second, 50)
        assert second.drain("withdraw")["mode"] == "withdraw"
        if mode == "async":
            wait_for_quiet(second)
        # A rejected asynchronous send fails; a synchronous one is retried with the other broker.
        taken = second.drain("refuse")["sends"]
        time.sleep(0.5)
        assert second.ask("drain")["sends"] == taken
        second.stop()
        second.start()
        wait_for_sends(second, 50)
    finally:
        sends = sender.stop()
    sent = [Sent.from_json(clients.driver.result(each, "a send")) for each in sends]
    assert {each.status for each in sent} == {"SEND_OK"}
    assert {each.broker_name for each in sent} == {"broker-a", "broker-b"}
    expected = {f"m{number}".encode() for number in range(len(sent))}
    consumer.inbox.wait_for(lambda got: {each.body for each in got} >= expected, timeout_s=WAIT_LIMIT_S)


@pytest.mark.one_in(2)
def test_broker_returns_to_routes_when_its_drain_lease_expires(
    new_workbench: NewWorkbench, brokers: tuple[OurCluster, SecondBroker]
) -> None:
    cluster, second = brokers
    clients = new_workbench(cluster)
    topic = clients.name("Topic")
    for address in (cluster.broker_address, second.address):
        clients.admin.update_topic(topic, broker=address, queues=QUEUES)
    producer = clients.producer
    wait_until(lambda: len(producer.queue_ids(topic)) == 2 * QUEUES, "a route with both brokers")
    second.ask("drain", mode="withdraw", leaseMs=2_000)
    wait_until(lambda: len(producer.queue_ids(topic)) == QUEUES, "a route with broker-a only")
    wait_until(lambda: len(producer.queue_ids(topic)) == 2 * QUEUES, "a route with both brokers again")
