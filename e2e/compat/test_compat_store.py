"""A store moves between RocketMQ's broker and DelayMQ: pending messages are delivered by the other, and none twice."""

import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from crash import kill_points
from harness.brokers import HTTP_TIMEOUT_S, Cluster, OurCluster, RealCluster
from harness.clients import Workbench, message
from harness.driver import Received

# Each test writes with one broker and reads with the other, whatever --against selects; run once, with DelayMQ's.
pytestmark = pytest.mark.ours_only

CONFIG = {
    "messageDelayLevel": "1s 2s 1s 1s 3s 4s 10s 1h",
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": str(20 * 100),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
"""Small files, so that segments are filled and closed by blank records."""
TOPIC, QUEUES = "Moved", 4
DELIVERED_LEVEL, OVERDUE_LEVEL, PENDING_LEVEL, FAR_LEVEL = 1, 6, 7, 8
DELAY_MS = {DELIVERED_LEVEL: 1000, OVERDUE_LEVEL: 4000, PENDING_LEVEL: 10_000}

NewWorkbench = Callable[[Cluster], Workbench]


def fill(clients: Workbench) -> list[str]:
    """Send normal, batched, compressed and delayed messages, some already due; return the bodies due soon."""
    clients.admin.update_topic(TOPIC, broker=clients.broker_address, queues=QUEUES)
    clients.wait_for_route(TOPIC, queues=QUEUES)
    producer = clients.producer
    names = [f"normal{i}" for i in range(100)]
    for i, name in enumerate(names):
        producer.send(TOPIC, name, queue_id=i % QUEUES, keys=f"key-{name}", properties={"filler": "x" * 400})
    batch = [f"batch{i}" for i in range(10)]
    producer.send_batch([message(TOPIC, name, keys=f"key-{name}") for name in batch])
    delivered = _send_delayed(clients, DELIVERED_LEVEL, 10)
    _wait_for(clients, set(names + batch + delivered))
    waiting = _send_delayed(clients, OVERDUE_LEVEL, 10) + _send_delayed(clients, PENDING_LEVEL, 10)
    _send_delayed(clients, FAR_LEVEL, 3)
    return names + batch + delivered + waiting


def _send_delayed(clients: Workbench, level: int, count: int) -> list[str]:
    names = [f"level{level}-{i}" for i in range(count)]
    for i, name in enumerate(names):
        clients.producer.send(TOPIC, name, queue_id=i % QUEUES, delayLevel=level, keys=f"key-{name}")
    return names


def read_all(clients: Workbench) -> list[Received]:
    """Return every message of the topic, from the first offset of each queue that still exists."""
    consumer = clients.pull(group=clients.group())
    messages: list[Received] = []
    for queue_id in range(QUEUES):
        offset = consumer.pull(TOPIC, queue_id, 0, max_count=1).min_offset
        while (pulled := consumer.pull(TOPIC, queue_id, offset)).status == "FOUND":
            messages += pulled.messages
            offset = pulled.next_begin_offset
    return messages


def _wait_for(clients: Workbench, expected: set[str], timeout_s: float = 60.0) -> list[Received]:
    deadline = time.monotonic() + timeout_s
    while True:
        messages = read_all(clients)
        missing = expected - {m.body.decode() for m in messages}
        if not missing:
            return messages
        assert time.monotonic() < deadline, f"never delivered: {sorted(missing)}"
        time.sleep(0.2)


def _pending_of(ours: OurCluster) -> int:
    with urllib.request.urlopen(f"http://{ours.http_address}/api/v1/remaining", timeout=HTTP_TIMEOUT_S) as answer:
        return int(json.load(answer)["pendingDelays"])


def check_complete(clients: Workbench, expected: list[str]) -> None:
    """Assert that each message arrived once, none before its level's delay, and that all are found by their keys."""
    _wait_for(clients, set(expected))
    # A duplicate would arrive soon afterwards.
    time.sleep(1.5)
    messages = read_all(clients)
    counts = Counter(m.body.decode() for m in messages)
    assert counts == Counter(expected)
    for m in messages:
        level = int(m.properties.get("DELAY", 0))
        if level:
            assert m.store_timestamp_ms - m.born_timestamp_ms >= DELAY_MS[level], m.body
            assert m.properties["REAL_TOPIC"] == TOPIC
            assert m.queue_id == int(m.body.decode().split("-")[1]) % QUEUES
    for name in ("normal5", "batch7", f"level{DELIVERED_LEVEL}-3", f"level{PENDING_LEVEL}-2"):
        assert [m.body.decode() for m in clients.admin.query(TOPIC, f"key-{name}")] == [name]


def check_usable(clients: Workbench) -> None:
    """Assert that the new broker continues: new sends get the next offsets."""
    consumer = clients.pull(group=clients.group())
    for queue_id in range(QUEUES):
        end = consumer.pull(TOPIC, queue_id, 0, max_count=1).max_offset
        assert clients.producer.send(TOPIC, f"new{queue_id}", queue_id=queue_id).queue_offset == end


@pytest.mark.one_in(2)
@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
def test_delaymq_takes_over_a_store_of_rocketmq(
    tmp_path: Path, new_workbench: NewWorkbench, isolated_network: None, clean: bool
) -> None:
    store_path = tmp_path / "store"
    with RealCluster(config=CONFIG, store_path=store_path) as real:
        clients = new_workbench(real)
        expected = fill(clients)
        clients.close()
        real.end(clean=clean)
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        clients = new_workbench(ours)
        check_complete(clients, expected)
        check_usable(clients)


def test_rocketmq_takes_over_a_store_of_delaymq_after_a_clean_stop(
    tmp_path: Path, new_workbench: NewWorkbench, isolated_network: None
) -> None:
    store_path = tmp_path / "store"
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        clients = new_workbench(ours)
        expected = fill(clients)
        clients.close()
        ours.stop()
    with RealCluster(config=CONFIG, store_path=store_path) as real:
        clients = new_workbench(real)
        check_complete(clients, expected)
        check_usable(clients)


def test_rocketmq_takes_over_a_store_of_delaymq_after_a_kill(
    tmp_path: Path, new_workbench: NewWorkbench, isolated_network: None
) -> None:
    store_path = tmp_path / "store"
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        clients = new_workbench(ours)
        expected = fill(clients)
        clients.close()
        ours.kill()
    with RealCluster(config=CONFIG, store_path=store_path) as real:
        clients = new_workbench(real)
        messages = _wait_for(clients, set(expected))
        # RocketMQ reads only delayOffset.json, so it repeats deliveries since its last save, and no others.
        counts = Counter(m.body.decode() for m in messages)
        undelayed = [name for name in expected if not name.startswith("level")]
        assert {name: counts[name] for name in undelayed} == dict.fromkeys(undelayed, 1)
        check_usable(clients)


def test_rocketmq_delivers_messages_that_were_carried_forward(
    tmp_path: Path, new_workbench: NewWorkbench, isolated_network: None
) -> None:
    """The earlier records are deleted; `delayOffset.json` and the queues lead to the newer ones."""
    store_path = tmp_path / "store"
    launcher = (sys.executable, str(Path(kill_points.__file__).resolve()), "none")
    every_hour = {"fileReservedTime": "1", "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24))}
    with OurCluster(
        config=CONFIG | every_hour, store_path=store_path, launcher=launcher, environment={kill_points.HOUR_MS: "500"}
    ) as ours:
        clients = new_workbench(ours)
        clients.admin.update_topic(TOPIC, broker=clients.broker_address, queues=QUEUES)
        clients.wait_for_route(TOPIC, queues=QUEUES)
        waiting = _send_delayed(clients, PENDING_LEVEL, 10)
        _send_delayed(clients, FAR_LEVEL, 3)
        first_segment = store_path / "commitlog" / f"{0:020d}"
        deadline = time.monotonic() + DELAY_MS[PENDING_LEVEL] / 1000 - 2
        for i in itertools.count():
            clients.producer.send(TOPIC, f"filler{i}", queue_id=i % QUEUES, properties={"filler": "x" * 4000})
            if not first_segment.exists():
                break
            assert time.monotonic() < deadline, "the first segment was not deleted"
        clients.close()
        ours.stop()
    words = [sys.executable, "-m", "delaymq", "store", "verify", str(store_path), "--for-rocketmq", "--json"]
    words += ["--levels", CONFIG["messageDelayLevel"]]
    report = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["for_rocketmq"]
    assert [report[name] for name in ("repeated", "early", "never", "late")] == [[], [], [], []], report
    with RealCluster(config=CONFIG, store_path=store_path) as real:
        clients = new_workbench(real)
        messages = _wait_for(clients, set(waiting))
        # A duplicate would arrive soon afterwards.
        time.sleep(1.5)
        messages = [m for m in read_all(clients) if m.body.decode().startswith("level")]
        assert Counter(m.body.decode() for m in messages) == Counter(waiting)
        assert all(m.store_timestamp_ms - m.born_timestamp_ms >= DELAY_MS[PENDING_LEVEL] for m in messages)
        clients.close()
        real.stop()
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        assert _pending_of(ours) == 3


def test_store_moves_to_rocketmq_and_back(tmp_path: Path, new_workbench: NewWorkbench, isolated_network: None) -> None:
    store_path = tmp_path / "store"
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        clients = new_workbench(ours)
        expected = fill(clients)
        clients.close()
        ours.stop()
    with RealCluster(config=CONFIG, store_path=store_path) as real:
        clients = new_workbench(real)
        expected += [f"guest{i}" for i in range(10)]
        for i in range(10):
            clients.producer.send(TOPIC, f"guest{i}", queue_id=i % QUEUES)
        clients.close()
        real.stop()
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        clients = new_workbench(ours)
        check_complete(clients, expected)
        check_usable(clients)
