"""Cost of a thousand members of one group for the broker.

    PYTHONPATH=broker_image/testing .venv/bin/python bench/group_members.py [MEMBERS] [QUEUES]

All members join, query the member list whenever they are notified of a change, as clients do, and leave. Time is
virtual and there are no sockets, so that only the broker's own work is measured. Prints times in ms of one thread,
counts, and memory.
"""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from delaymq.protocol.bodies import ConsumerData, HeartbeatData, LockRequest, MessageQueue, SubscriptionData
from delaymq.protocol.codes import RequestCode
from delaymq.server.broker_jobs import MEMBERS_NOTIFIED_PER_SLICE, NOTIFY_INTERVAL_MS
from delaymq_testing.broker.harness import FakeSession, Harness

GROUP, TOPIC = "readers", "Orders"
JOINS_PER_TICK = 40
"""Two hundred per second, as in the rollout of a deployment."""


class FanOut:
    """The members, and the durations of the broker's work for them."""

    def __init__(self, harness: Harness, members: int) -> None:
        self.harness = harness
        self.sessions = [FakeSession(port, "10.0.0.2") for port in range(1, members + 1)]
        self.told = 0
        self.asked = 0
        self.ask_s = 0.0
        self.tell_s: list[float] = []

    def heartbeat(self, number: int) -> float:
        """Send a heartbeat; return its duration in seconds."""
        subscription = SubscriptionData(TOPIC, "*", sub_version=1)
        data = HeartbeatData(
            f"10.0.0.2@{number}", consumer_data_set=[ConsumerData(GROUP, subscription_data_set=[subscription])]
        )
        body = data.encode()
        began = time.perf_counter()
        self.harness.answer(RequestCode.HEART_BEAT, body=body, session=self.sessions[number])
        return time.perf_counter() - began

    def tick(self) -> None:
        """Run the job that notifies members, and the queries that follow."""
        began = time.perf_counter()
        self.harness.broker.clients.notify_members(MEMBERS_NOTIFIED_PER_SLICE)
        self.tell_s.append(time.perf_counter() - began)
        self.harness.clock.advance(NOTIFY_INTERVAL_MS)
        for session in self.sessions:
            if session.notified:
                self.told += len(session.notified)
                session.notified.clear()
                self.asked += 1
                began = time.perf_counter()
                self.harness.answer(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}, session=session)
                self.ask_s += time.perf_counter() - began

    def settle(self) -> None:
        """Run ticks until there are no more notifications."""
        told = -1
        while told != self.told:
            told = self.told
            self.tick()
            self.tick()

    def report(self, what: str, turns_s: list[float]) -> None:
        """Print one line."""
        ask_ms = self.ask_s * 1000 / max(self.asked, 1)
        print(
            f"{what}: {sum(turns_s) * 1000:.0f} ms in total, {max(turns_s) * 1000:.2f} ms at most; {self.told}"
            f" notifications, up to {max(self.tell_s) * 1000:.1f} ms a tick; {self.asked} queries, {ask_ms:.3f} ms each"
        )
        self.told = self.asked = 0
        self.ask_s = 0.0
        self.tell_s = []


def main(members: int, queues: int) -> None:
    """Run the measurements and print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(Path(folder), default_topic_queue_nums=8)
        fan_out = FanOut(harness, members)
        turns = []
        for number in range(members):
            turns.append(fan_out.heartbeat(number))
            if number % JOINS_PER_TICK == JOINS_PER_TICK - 1:
                fan_out.tick()
        fan_out.settle()
        fan_out.report(f"{members} join", turns)
        turns = [fan_out.heartbeat(number) for number in range(members)]
        fan_out.tick()
        fan_out.report(f"{members} repeat their heartbeat", turns)
        wanted = [MessageQueue("broker-a", queue_id, TOPIC) for queue_id in range(queues)]
        body = LockRequest(client_id="10.0.0.2@1", consumer_group=GROUP, mq_set=wanted).encode()
        began = time.perf_counter()
        harness.answer(RequestCode.LOCK_BATCH_MQ, body=body)
        print(f"{queues} queues locked by one request: {(time.perf_counter() - began) * 1000:.1f} ms")
        for queue_id in range(queues):
            harness.broker.offsets.commit(TOPIC, GROUP, queue_id, 1)
        turns = []
        for number, session in enumerate(fan_out.sessions):
            began = time.perf_counter()
            harness.broker.session_closed(session)
            turns.append(time.perf_counter() - began)
            if number % JOINS_PER_TICK == JOINS_PER_TICK - 1:
                fan_out.tick()
        fan_out.settle()
        fan_out.report(f"{members} leave", turns)
        fresh = FanOut(harness, members)
        tracemalloc.start()
        for number in range(members):
            fresh.heartbeat(number)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"memory: {kept / members / 1024:.1f} KiB per member, without its connection")
        harness.broker.close()


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:3] or ("1000", "1000")))
