"""A store with pending timed messages moves to RocketMQ 4.9 or 5.3 and back: each is delivered once and never early."""

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import CLUSTER_NAME, HTTP_TIMEOUT_S, Cluster, OurCluster, RealCluster, RealCluster5
from harness.clients import Workbench
from harness.driver import Received
from harness.errors import HarnessError
from harness.waiting import until

# Each test uses both brokers, whatever --against selects.
pytestmark = pytest.mark.ours_only

CONFIG = {
    "messageDelayLevel": "1s 2s 1s 1s 3s 4s 10s 1h",
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": str(20 * 100),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
"""Small files, so that segments are filled and closed by blank records."""
TOPIC, UNRELATED, QUEUES = "Moved", "Unrelated", 4
TIMER_TOPIC = "rmq_sys_wheel_timer"
HOUR_MS = 3_600_000
DELIVERED, FAR, GUESTS = 8, 3, 8
"""Numbers of timed messages: delivered before the first move; pending until the end; sent to RocketMQ's broker."""

LATE_LIMIT_MS = 2000
"""A timer of RocketMQ 5 with a relative delay states its due time to a second."""
DELIVERY_LIMIT_S = 150.0
"""RocketMQ 5 needs most of a minute to deliver them after its start on a busy machine."""
NewWorkbench = Callable[[Cluster], Workbench]


def now_ms() -> int:
    return int(time.time() * 1000)


class Ledger:
    """The messages of a test by body, with their due times; 0: not timed."""

    def __init__(self) -> None:
        self.due_ms: dict[str, int] = {}

    def create_topics(self, clients: Workbench) -> None:
        for topic in (TOPIC, UNRELATED):
            clients.admin.update_topic(topic, broker=clients.broker_address, queues=QUEUES)
            clients.wait_for_route(topic, queues=QUEUES)

    def send(self, clients: Workbench, name: str, count: int, *, begin_ms: int = 0, step_ms: int = 0) -> list[str]:
        """Send messages to all queues, due from `begin_ms` after now at equal distances; return their bodies."""
        begin = now_ms() + begin_ms
        bodies = [f"{name}-{i}" for i in range(count)]
        for i, body in enumerate(bodies):
            due = begin + i * step_ms if begin_ms else 0
            fields = {"deliverTimeMs": due} if due else {"properties": {"filler": "x" * 400}}
            clients.producer.send(TOPIC, body, queue_id=i % QUEUES, tags=name, keys=f"key-{body}", **fields)
            self.due_ms[body] = due
        return bodies

    def send_far(self, clients: Workbench) -> None:
        """Send messages that remain pending."""
        for i in range(FAR):
            clients.producer.send(TOPIC, f"far-{i}", queue_id=i, deliverTimeMs=now_ms() + HOUR_MS + i)

    def send_relative(self, clients: Workbench, name: str, count: int, *, delay_s: int) -> None:
        """Send messages that are due `delay_s` after the broker's receipt."""
        for i in range(count):
            body = f"{name}-{i}"
            self.due_ms[body] = now_ms() + delay_s * 1000
            clients.producer.send(TOPIC, body, queue_id=i % QUEUES, tags=name, keys=f"key-{body}", delayTimeSec=delay_s)

    def wait_for(self, clients: Workbench, bodies: list[str]) -> None:
        what = f"delivery of {len(bodies)} messages, {bodies[0]} to {bodies[-1]}"
        until(lambda: {m.body.decode() for m in read_all(clients)} >= set(bodies), what, DELIVERY_LIMIT_S)

    def check_complete(self, clients: Workbench, *, started_ms: int) -> list[Received]:
        """Wait for all messages and return them; assert that each was delivered once, to its queue, and never early.

        Messages of brokers that started at `started_ms` must not be late.
        """
        self.wait_for(clients, list(self.due_ms))
        # A duplicate would arrive soon afterwards.
        time.sleep(1.5)
        messages = read_all(clients)
        assert Counter(m.body.decode() for m in messages) == Counter(self.due_ms.keys())
        for m in messages:
            name, number = m.body.decode().split("-")
            due_ms = self.due_ms[m.body.decode()]
            assert m.store_timestamp_ms >= due_ms, m
            if m.store_timestamp_ms > started_ms:
                assert m.store_timestamp_ms <= max(due_ms, started_ms) + LATE_LIMIT_MS, m
            assert (m.queue_id, m.tags, m.keys) == (int(number) % QUEUES, name, f"key-{name}-{number}")
        return messages


def read_all(clients: Workbench) -> list[Received]:
    """Return every message of the topic, from the first offset of each queue."""
    consumer = clients.pull(group=clients.group())
    messages: list[Received] = []
    for queue_id in range(QUEUES):
        offset = 0
        while (pulled := consumer.pull(TOPIC, queue_id, offset)).status == "FOUND":
            messages += pulled.messages
            offset = pulled.next_begin_offset
    clients.stop(consumer)
    return messages


def pending_of(cluster: OurCluster) -> int:
    url = f"http://{cluster.http_address}/api/v1/remaining"
    with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:
        fields: dict[str, Any] = json.load(answer)
        return int(fields["pendingDelays"])


def late_of(messages: list[Received], due_ms: dict[str, int], *, after_ms: int) -> list[int]:
    """Return how late messages were stored in their topic, in ms, in ascending order; only of those due later."""
    found = [(m.store_timestamp_ms, due_ms[m.body.decode()]) for m in messages]
    return sorted(stored_ms - due_ms for stored_ms, due_ms in found if due_ms > after_ms)


def test_rocketmq_4_9_keeps_pending_timed_messages_that_it_cannot_deliver(
    tmp_path: Path, new_workbench: NewWorkbench, isolated_network: None
) -> None:
    store_path = tmp_path / "store"
    ledger = Ledger()
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        clients = new_workbench(ours)
        ledger.create_topics(clients)
        delivered = ledger.send(clients, "normal", 40) + ledger.send(clients, "delivered", DELIVERED, begin_ms=300)
        ledger.wait_for(clients, delivered)
        ledger.send(clients, "soon", 40, begin_ms=3000, step_ms=250)
        ledger.send_far(clients)
        pending = pending_of(ours)
        clients.close()
        ours.stop()
    with RealCluster(config=CONFIG, store_path=store_path) as real:
        clients = new_workbench(real)
        clients.wait_for_route(TOPIC, queues=QUEUES)
        ledger.send(clients, "guest", GUESTS)
        before = clients.mqadmin("topicStatus", "-t", TIMER_TOPIC)
        clients.mqadmin("deleteTopic", "-t", UNRELATED, "-c", CLUSTER_NAME)
        clients.mqadmin("cleanUnusedTopic", "-b", real.broker_address)
        clients.mqadmin("cleanExpiredCQ", "-b", real.broker_address)
        after = clients.mqadmin("topicStatus", "-t", TIMER_TOPIC)
        assert f" {DELIVERED + 40 + FAR} " in before, before
        assert before == after
        assert Counter(m.body.decode() for m in read_all(clients)) == Counter(
            body for body in ledger.due_ms if not body.startswith("soon")
        )
        clients.close()
        real.stop()
    assert pending == 40 + FAR
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        started_ms = now_ms()
        clients = new_workbench(ours)
        ledger.check_complete(clients, started_ms=started_ms)
        assert pending_of(ours) == FAR


def test_rocketmq_5_3_delivers_pending_timed_messages_once_and_never_early(
    tmp_path: Path, new_workbench: NewWorkbench, isolated_network: None
) -> None:
    store_path = tmp_path / "store"
    ledger = Ledger()
    with OurCluster(config=CONFIG, store_path=store_path) as ours:
        clients = new_workbench(ours)
        ledger.create_topics(clients)
        delivered = ledger.send(clients, "normal", 40) + ledger.send(clients, "delivered", DELIVERED, begin_ms=300)
        ledger.wait_for(clients, delivered)
        by_rocketmq = ledger.send(clients, "soon", 80, begin_ms=12_000, step_ms=50)
        # Due while RocketMQ's broker stops, or after it.
        ledger.send(clients, "later", 40, begin_ms=16_000, step_ms=1000)
        ledger.send_far(clients)
        clients.close()
        ours.stop()
    # In windows of five seconds, messages that are due later are stored again in the timer topic (rolled).
    real = RealCluster5(config={**CONFIG, "timerRollWindowSlot": "5"}, store_path=store_path)
    real.start_timers_at(DELIVERED)
    with real:
        started_ms = now_ms()
        clients = new_workbench(real)
        clients.wait_for_route(TOPIC, queues=QUEUES)
        ledger.send(clients, "guest", GUESTS, begin_ms=1000)
        ledger.send_relative(clients, "guest later", GUESTS, delay_s=30)
        ledger.send_far(clients)
        ledger.wait_for(clients, by_rocketmq)
        late = late_of(read_all(clients), ledger.due_ms, after_ms=started_ms)
        print(f"RocketMQ 5.3 delivered {len(late)} messages {late[:1]} to {late[-1:]} ms after their due times")
        clients.close()
        real.stop()
    refusal = f"{GUESTS + FAR} pending timers of RocketMQ 5"
    with pytest.raises(HarnessError, match=refusal), OurCluster(config=CONFIG, store_path=store_path):
        pass
    with OurCluster(config={**CONFIG, "adoptTimers": "true"}, store_path=store_path) as ours:
        started_ms = now_ms()
        clients = new_workbench(ours)
        messages = ledger.check_complete(clients, started_ms=started_ms)
        assert pending_of(ours) == 2 * FAR
    by_delaymq = Counter(m.tags for m in messages if m.store_timestamp_ms > started_ms)
    print(f"DelayMQ delivered {dict(by_delaymq)}")
    assert by_delaymq["guest later"] > 0
