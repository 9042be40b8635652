"""Flow control for RocketMQ's clients: code 2 with RocketMQ's remarks, and nothing stored."""

import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import Cluster, OurCluster
from harness.clients import Sent, Workbench
from harness.driver import ClientError

SYSTEM_BUSY = 2
LIMIT_S = 60.0
QUEUED = r"broker busy, start flow control for a while, period in queue: (\d+)ms, size of queue: \d+"
STANDSTILL_S = 3.0
"""Much longer than the second from which a stop is detected: a new client sends its heartbeat in between."""
TRIES = 5
KEEPING: dict[str, Any] = {"keepConnections": True}
"""A heartbeat delayed by more than 3 s would close the connection of the requests that wait behind it."""
PATIENT = {"timeoutMs": 30_000, "retries": 0, **KEEPING}

NewWorkbench = Callable[[Cluster], Workbench]


def refusal(sending: "Future[Any]") -> tuple[int | None, str]:
    """Return code and remark of the client's exception."""
    with pytest.raises(ClientError) as refused:
        sending.result(LIMIT_S)
    return refused.value.code, str(refused.value.remark)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def unread_bytes(port: int) -> int:
    """Return the number of bytes in the kernel's buffers for the sockets of a local port."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    ours = [row for row in rows if int(row[1].rpartition(":")[2], 16) == port and row[3] == "01"]
    return sum(int(row[4].partition(":")[2], 16) for row in ours)


def submit_unread(cluster: Cluster, submit: Callable[[], "list[Future[Any]]"]) -> "list[Future[Any]]":
    """Send requests to a broker that does not read, and wait until bytes have arrived."""
    before = unread_bytes(cluster.listen_port)
    sending = submit()
    wait_for(lambda: unread_bytes(cluster.listen_port) > before, "nothing came to the broker's socket")
    return sending


def stand_still(
    cluster: Cluster, submit: Callable[[], "list[Future[Any]]"], seconds: float = STANDSTILL_S
) -> "list[Future[Any]]":
    """Suspend the broker's process, send requests to it, and resume it after they have waited in the kernel."""
    cluster.broker.signal(signal.SIGSTOP)
    try:
        sending = submit_unread(cluster, submit)
        time.sleep(seconds)
    finally:
        cluster.broker.signal(signal.SIGCONT)
    return sending


def max_offset(clients: Workbench, topic: str) -> int:
    return clients.admin.offsets(topic, 0)["max"]


def refused_requests(cluster: Cluster) -> dict[str, float]:
    """Return the metric by reason."""
    assert isinstance(cluster, OurCluster)
    with urllib.request.urlopen(f"http://{cluster.http_address}/metrics", timeout=LIMIT_S) as answer:
        text = answer.read().decode()
    found = re.findall(r'^delaymq_requests_refused_total\{reason="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {reason: float(count) for reason, count in found if float(count)}


@pytest.fixture(scope="module")
def own(new_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    with new_cluster(brokerFastFailureEnable="true") as cluster:
        yield cluster


@pytest.mark.ours_only  # RocketMQ's broker measures from its own read: it stores them, and responds too late
def test_sends_that_waited_too_long_in_a_stopped_broker_are_rejected_and_not_stored(
    own: Cluster, new_workbench: NewWorkbench
) -> None:
    clients = new_workbench(own)
    topic = clients.topic(queues=1)
    producer = clients.new_producer(**PATIENT)
    producer.send(topic, "before", queue_id=0)
    stored = 1
    for _ in range(TRIES):
        sending = stand_still(own, lambda: [producer.submit(topic, "late", queue_id=0) for _ in range(4)])
        told = [each.exception(LIMIT_S) for each in sending]
        if all(told):
            break
        # A heartbeat that arrived last made earlier bytes appear new: those sends were stored late.
        stored += told.count(None)
    for error in told:
        assert isinstance(error, ClientError)
        assert error.code == SYSTEM_BUSY
        waited = re.fullmatch(r"\[TIMEOUT_CLEAN_QUEUE\]" + QUEUED, str(error.remark))
        assert waited is not None, error.remark
        assert int(waited[1]) >= 1_000
    assert producer.send(topic, "after", queue_id=0).queue_offset == stored
    assert refused_requests(own)["timeout_clean_queue"] >= 4


@pytest.mark.ours_only
def test_administrator_can_extend_or_disable_the_limit_of_waiting_time(
    own: Cluster, new_workbench: NewWorkbench
) -> None:
    clients = new_workbench(own)
    topic = clients.topic(queues=1)
    producer = clients.new_producer(**PATIENT)
    producer.send(topic, "before", queue_id=0)
    for key, value, usual in (
        ("waitTimeMillsInSendQueue", "60000", "200"),
        ("brokerFastFailureEnable", "false", "true"),
    ):
        clients.mqadmin("updateBrokerConfig", "-b", own.broker_address, "-k", key, "-v", value)
        (sending,) = stand_still(own, lambda: [producer.submit(topic, "late", queue_id=0)])
        assert Sent.from_json(sending.result(LIMIT_S)).status == "SEND_OK"
        clients.mqadmin("updateBrokerConfig", "-b", own.broker_address, "-k", key, "-v", usual)


@pytest.mark.ours_only
def test_pull_may_wait_longer_than_a_send(own: Cluster, new_workbench: NewWorkbench) -> None:
    clients = new_workbench(own)
    topic = clients.topic(queues=1)
    clients.producer.send(topic, "there", queue_id=0)
    consumer = clients.pull(group=clients.group(), **KEEPING)
    consumer.pull(topic, 0, 0)
    (pulling,) = stand_still(own, lambda: [consumer.submit(topic, 0, 0)], seconds=2.0)
    assert len(pulling.result(LIMIT_S)["messages"]) == 1


def test_sends_above_the_queue_capacity_are_rejected_as_overload(
    new_cluster: Callable[..., Cluster], new_workbench: NewWorkbench
) -> None:
    # With RocketMQ's broker, the sends wait for its only thread, with DelayMQ's, for the disk.
    config = {"sendThreadPoolQueueCapacity": "1", "sendMessageThreadPoolNums": "1", "flushDiskType": "SYNC_FLUSH"}
    with new_cluster(**config) as cluster:
        clients = new_workbench(cluster)
        topic = clients.topic(queues=1)
        producer = clients.new_producer(**PATIENT)
        flood = {"message": {"topic": topic, "bodySize": 1000}, "count": 3000}
        outcomes = clients.driver.call("floods.send", client=producer.name, **flood)
        assert set(outcomes) <= {"SEND_OK", "2 [OVERLOAD]", "2 [TIMEOUT_CLEAN_QUEUE]"}, outcomes
        assert outcomes["2 [OVERLOAD]"] > 0
        assert outcomes["SEND_OK"] > 0
        # Rejected sends were not stored.
        assert max_offset(clients, topic) == outcomes["SEND_OK"]
        assert producer.send(topic, "after", queue_id=0).status == "SEND_OK"


@pytest.fixture
def held_disk(against: str, tmp_path: Path) -> Iterator[tuple[Cluster, Path]]:
    """Provide a broker whose disk blocks while certain files exist (held_disk.py)."""
    folder = tmp_path / "hold"
    folder.mkdir()
    launcher = (sys.executable, str(Path(__file__).with_name("held_disk.py")), str(folder))
    config = {
        "brokerFastFailureEnable": "true",
        "flushDiskType": "SYNC_FLUSH",
        "osPageCacheBusyTimeOutMills": "300",
        "syncFlushTimeout": "60000",
    }
    with OurCluster(config=config, launcher=launcher) as cluster:
        try:
            yield cluster, folder
        finally:
            for path in folder.iterdir():
                path.unlink()


@pytest.mark.ours_only  # the disk of RocketMQ's broker cannot be blocked from outside
def test_sends_are_rejected_while_the_disk_hangs_and_earlier_sends_are_stored(
    held_disk: tuple[Cluster, Path], new_workbench: NewWorkbench
) -> None:
    cluster, folder = held_disk
    clients = new_workbench(cluster)
    topic = clients.topic(queues=1)
    producer = clients.new_producer(**PATIENT)
    producer.send(topic, "before", queue_id=0)
    (folder / "sync").touch()
    first = producer.submit(topic, "kept", queue_id=0)
    wait_for(lambda: (folder / "sync.waiting").exists(), "no sync began")
    later: list[Future[Any]] = []

    def is_one_rejected() -> bool:
        later.append(producer.submit(topic, "kept or rejected", queue_id=0))
        time.sleep(0.1)
        return any(one.done() for one in later)

    wait_for(is_one_rejected, "no send was rejected")
    assert not first.done()
    (folder / "sync").unlink()
    rejected = [one for one in later if one.exception(LIMIT_S) is not None]
    assert rejected
    for one in rejected:
        assert refusal(one) == (SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
    kept = [one.result(LIMIT_S)["status"] for one in [first, *later] if one not in rejected]
    assert set(kept) == {"SEND_OK"}
    assert max_offset(clients, topic) == 1 + len(kept)
    assert producer.send(topic, "after", queue_id=0).queue_offset == 1 + len(kept)
    assert set(refused_requests(cluster)) == {"rejectrequest"}


@pytest.mark.ours_only
def test_sends_that_waited_for_a_commit_log_write_are_rejected_as_page_cache_busy(
    held_disk: tuple[Cluster, Path], new_workbench: NewWorkbench
) -> None:
    cluster, folder = held_disk
    clients = new_workbench(cluster)
    topic = clients.topic(queues=1)
    first, second = clients.new_producer(**PATIENT), clients.new_producer(**PATIENT)
    for producer in (first, second):
        producer.send(topic, "before", queue_id=0)
    stored = 2
    for _ in range(TRIES):
        (folder / "write").touch()
        writing = first.submit(topic, "slow", queue_id=0)
        wait_for(lambda: (folder / "write.waiting").exists(), "no write started")
        (waiting,) = submit_unread(cluster, lambda: [second.submit(topic, "late", queue_id=0)])
        time.sleep(STANDSTILL_S)
        (folder / "write.waiting").unlink()
        (folder / "write").unlink()
        assert writing.result(LIMIT_S)["status"] == "SEND_OK"
        stored += 1
        if waiting.exception(LIMIT_S) is not None:
            break
        # A heartbeat that arrived last made the send appear new: it was stored late.
        stored += 1
    code, remark = refusal(waiting)
    assert code == SYSTEM_BUSY
    assert re.fullmatch(r"\[PCBUSY_CLEAN_QUEUE\]" + QUEUED, remark), remark
    assert max_offset(clients, topic) == stored


def test_consumer_stops_pulling_at_its_own_limits(clients: Workbench) -> None:
    # 1,000 messages are the Java client's default limit; a listener that never returns keeps them.
    topic = clients.topic(queues=1)
    batches = [[{"topic": topic, "bodySize": 10} for _ in range(500)] for _ in range(4)]
    for batch in batches:
        clients.producer.send_batch(batch)
    group = clients.group()
    consumer = clients.push(topic, group=group, suspendMs=60_000, orderly=True, failTimes=99,
                            **{"from": "CONSUME_FROM_FIRST_OFFSET"})  # fmt: skip
    consumer.inbox.wait_count(1)

    def kept() -> int:
        """Return the number of the queue's messages that the consumer reports as cached (mqadmin consumerStatus)."""
        text = clients.mqadmin("consumerStatus", "-g", group, "-i", consumer.client_id)
        lines = [line for line in text.splitlines() if line.startswith(topic) and "cachedMsgCount" in line]
        return int(re.findall(r"cachedMsgCount=(\d+)", lines[0])[0]) if lines else 0

    wait_for(lambda: kept() > 1000, "the consumer does not reach its limit")
    time.sleep(1.0)
    # A pull is sent while at most 1,000 are cached, and returns at most 32.
    assert 1000 < kept() <= 1032
