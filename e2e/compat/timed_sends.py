"""Timed messages that RocketMQ's clients send, changes of pending ones, and checks of their deliveries."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from harness.clients import Producer, PushConsumer, Sent, Workbench
from harness.driver import ClientError

LATE_LIMIT_MS = 1000
HOUR_MS = 3_600_000
SUCCESS, MESSAGE_ILLEGAL, TOPIC_MISSING, NOT_DONE = 0, 13, 17, 604
COMMIT, ROLLBACK = 8, 12
TIMER_TOPIC, MARKS_TOPIC = "rmq_sys_wheel_timer", "rmq_sys_delaymq_marks"

Due = tuple[int, int]
"""Earliest and latest due time in ms: a relative delay counts from the broker's receipt."""


def now_ms() -> int:
    return int(time.time() * 1000)


class Expected:
    """Due times of the messages of a test, by body. It checks their deliveries."""

    def __init__(self, clients: Workbench, topic: str) -> None:
        self.clients = clients
        self.topic = topic
        self.due: dict[str, Due] = {}

    def send(self, body: str, due: int | None = None, *, delay: int = 0, **fields: Any) -> Sent:
        """Send a message that is due at `due`, or `delay` ms after the broker's receipt."""
        begin = now_ms()
        sent = self.clients.producer.send(self.topic, body, **fields)
        self.due[body] = (begin + delay, now_ms() + delay) if due is None else (due, due)
        return sent

    def check(self, consumer: PushConsumer) -> None:
        """Assert that each message was stored in its topic once, within a second after its due time."""
        consumer.inbox.wait_count(len(self.due))
        # A duplicate would arrive soon afterwards.
        time.sleep(0.5)
        messages = consumer.inbox.messages()
        assert Counter(m.body.decode() for m in messages) == Counter(self.due.keys())
        for m in messages:
            earliest, latest = self.due[m.body.decode()]
            due = int(m.properties["TIMER_OUT_MS"])
            assert earliest <= due <= latest, m
            assert due <= m.store_timestamp_ms <= due + LATE_LIMIT_MS, m
            assert m.arrival_timestamp_ms >= due, m
            assert m.properties["REAL_TOPIC"] == m.topic == self.topic
            assert m.reconsume_times == 0


def act(producer: Producer, topic: str, action: str, key: str = "", *, group: str = "", **fields: Any) -> Sent:
    """Send a message that changes the pending one with a key, those of a group, or, without both, those of a topic."""
    names = {"DELAY_KEY": key, "DELAY_GROUP": group}
    properties = {"DELAY_ACTION": action, **{name: value for name, value in names.items() if value}}
    return producer.send(topic, "ignored", properties=properties, **fields)


def refusal(work: Callable[..., object], *arguments: object, **fields: object) -> tuple[int | None, str]:
    """Return code and remark of the response with which the broker rejects a request, which `work` sends."""
    with pytest.raises(ClientError) as caught:
        work(*arguments, **fields)
    assert caught.value.kind == "MQBrokerException", caught.value
    return caught.value.code, caught.value.remark


def stored(clients: Workbench, topic: str, *, queues: int = 1) -> int:
    """Return the number of messages that were stored in the queues of a topic."""
    return sum(clients.admin.offsets(topic, queue_id)["max"] for queue_id in range(queues))


def places(clients: Workbench, *topics: str) -> list[int]:
    """Return the numbers of messages in queue 0 of each topic, of records of timed messages, and of changes."""
    return [stored(clients, topic) for topic in (*topics, TIMER_TOPIC, MARKS_TOPIC)]
