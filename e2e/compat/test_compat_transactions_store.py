"""A store moves between RocketMQ's broker and DelayMQ during transactions: each outcome is kept, exactly once."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.brokers import Cluster, OurCluster, RealCluster
from harness.clients import TransactionProducer, Workbench
from harness.driver import Received

# Each test writes with one broker and continues with the other, whatever --against selects; run once, with DelayMQ's.
pytestmark = pytest.mark.ours_only

CONFIG = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "30",
    "flushConsumerOffsetInterval": "1000",
    "mappedFileSizeCommitLog": str(1 << 20),
}
TOPIC, GROUP = "Moved", "payers"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
LIMIT_S = 60.0

NewWorkbench = Callable[[Cluster], Workbench]


def begin(clients: Workbench) -> list[str]:
    """Commit, roll back, or leave transactions open without a producer; return the bodies that must arrive."""
    clients.admin.update_topic(TOPIC, broker=clients.broker_address, queues=1)
    clients.wait_for_route(TOPIC, queues=1)
    producer = clients.transactions(group=GROUP)
    for number in range(3):
        producer.send(TOPIC, f"committed {number}", "C")
        producer.send(TOPIC, f"rolled back {number}", "R")
        producer.prepare(TOPIC, f"open {number}", "UC")
        producer.prepare(TOPIC, f"open and bad {number}", "UR")
    clients.stop(producer)
    expected = [f"{kind} {number}" for kind in ("committed", "open") for number in range(3)]
    wait_for(lambda: len(read_all(clients)) == 3)
    return expected


def open_one(clients: Workbench, body: str) -> None:
    """Leave one more transaction open without a producer."""
    producer = clients.transactions(group=GROUP)
    producer.prepare(TOPIC, body, "UC", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})
    clients.stop(producer)


def read_all(clients: Workbench) -> list[Received]:
    consumer = clients.pull(group=clients.group())
    messages: list[Received] = []
    while (pulled := consumer.pull(TOPIC, 0, len(messages))).messages:
        messages += pulled.messages
    clients.stop(consumer)
    return messages


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def answer_all(clients: Workbench) -> TransactionProducer:
    """Return a producer that knows the outcomes; a commit registers it, since a heartbeat requires a route."""
    producer = clients.transactions(group=GROUP)
    producer.send(TOPIC, "back", "C")
    return producer


def check(clients: Workbench, expected: list[str]) -> None:
    """Assert that the expected messages arrived once, and no others even after some more rounds."""
    wait_for(lambda: {m.body.decode() for m in read_all(clients)} >= set(expected))
    time.sleep(3)
    assert Counter(m.body.decode() for m in read_all(clients)) == Counter(expected)


def wait_until_asked_about(clients: Workbench) -> None:
    """Wait until RocketMQ's broker has stored each open half message again for a check, which requires no producer."""
    before = clients.admin.offsets(HALF_TOPIC, 0)["max"]
    wait_for(lambda: clients.admin.offsets(HALF_TOPIC, 0)["max"] >= before + 12)


@pytest.mark.parametrize(
    "clean", [pytest.param(True, id="clean stop", marks=pytest.mark.long), pytest.param(False, id="kill -9")]
)
def test_delaymq_continues_transactions_of_rocketmq(
    tmp_path: Path, new_workbench: NewWorkbench, isolated_network: None, clean: bool
) -> None:
    store_path = tmp_path / "store"
    with RealCluster(config=CONFIG, store_path=store_path) as real:
        clients = new_workbench(real)
        expected = begin(clients)
        wait_until_asked_about(clients)
        clients.close()
        real.end(clean=clean)
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        clients = new_workbench(ours)
        answer_all(clients)
        check(clients, [*expected, "back"])


@pytest.mark.parametrize(
    "clean", [pytest.param(True, id="clean stop"), pytest.param(False, id="kill -9", marks=pytest.mark.long)]
)
def test_rocketmq_continues_transactions_of_delaymq_and_delaymq_those_of_rocketmq(
    tmp_path: Path, new_workbench: NewWorkbench, isolated_network: None, clean: bool
) -> None:
    store_path = tmp_path / "store"
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        clients = new_workbench(ours)
        expected = begin(clients)
        clients.close()
        ours.end(clean=clean)
    with RealCluster(config=CONFIG, store_path=store_path) as real:
        clients = new_workbench(real)
        answer_all(clients)
        check(clients, [*expected, "back"])
        if clean:
            open_one(clients, "open 3")
        clients.close()
        real.stop()
    if clean:
        with OurCluster(config=CONFIG, store_path=store_path) as ours:
            clients = new_workbench(ours)
            half = answer_all(clients)
            assert half.inbox.messages() == []
            check(clients, [*expected, "back", "back"])
