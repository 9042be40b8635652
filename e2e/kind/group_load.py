"""Producers and consumers of a group with replicas during faults, ours and RocketMQ's, and their interruptions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

from delaymq.clock import now_ms
from kind.clients import JavaClient, Program
from kind.groups import LEVELS, RATE
from kind.space import Space
from kind.verdict import Sent, longest_gap_s
from kind.waiting import wait_until

JAVA_RATE = 20
"""Messages per second of each of RocketMQ's producers."""
TOPIC, JAVA_TOPIC, JAVA_ASYNC_TOPIC = "orders", "java", "java-async"
TOPICS = (TOPIC, JAVA_TOPIC, JAVA_ASYNC_TOPIC)
WARM_UP_S = 4.0
"""RocketMQ's consumer gets its queues within this time, and the first delays are over."""
MORE_TIMEOUT_S = 90.0
STORED = ("SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")
"""Statuses of messages that the master has stored, while no replica has."""
ARRIVED_AT = 6
"""Position of the time of arrival in a line ``got`` (kind_client/lines.py)."""


class GroupLoad:
    """Our producer and consumer, which run all the time, and RocketMQ's, which run during each fault.

    ``gaps`` has for each fault the longest times in seconds without a response that a message is stored, and without a
    message that arrived at a consumer. RocketMQ's client has its own defaults: a timeout of 3 s, and two retries.
    """

    def __init__(self, space: Space, name_servers: str, java: JavaClient) -> None:
        self._space = space
        self._name_servers = name_servers
        self._java = java
        options = {"topic": TOPIC, "name_servers": name_servers}
        self.producer: Program = space.client.produce(**options, rate=RATE, levels=LEVELS, at_most_s=3_000)
        self.consumer: Program = space.client.consume(**options, group="readers", at_most_s=3_000)
        self.gaps: dict[str, dict[str, Any]] = {}

    def go_on(self, count: int = 2 * RATE) -> None:
        """Wait for further messages that are stored."""
        enough = len(self._stored()) + count
        wait_until(f"{enough} stored messages", lambda: len(self._stored()) >= enough, timeout_s=MORE_TIMEOUT_S)

    def _stored(self) -> list[Sent]:
        """Return the sends of messages that are stored, those without a replica as well."""
        sends = self.producer.sends()
        return [replace(send, failure="") for send in sends if send.failure in ("", *STORED)]

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Measure the interruptions by a fault."""
        self.go_on()
        running = self._start_java()
        time.sleep(WARM_UP_S)
        began_ms, failed = now_ms(), len(self.producer.lines("failed"))
        got = len(self.consumer.lines("got"))
        yield
        self.go_on()
        stored = [send for send in self._stored() if send.ended_ms >= began_ms - 1_000]
        reasons = Counter(str(line[-1])[:60] for line in self.producer.lines("failed")[failed:])
        self._java.stop_sending()
        done = {name: each.result(60) for name, each in running.items()}
        self.gaps[what] = {
            "producer": longest_gap_s(stored),
            "consumer": _longest_arrival_gap_s(self.consumer.lines("got")[max(0, got - 1) :]),
            "failed": dict(reasons),
            **{name: round(each["longest_gap_ms"] / 1000, 3) for name, each in done.items()},
            "java_failed": dict(sum((Counter(each.get("errors", {})) for each in done.values()), Counter())),
        }
        print(f"{what}: {self.gaps[what]}")

    def _start_java(self) -> dict[str, Any]:
        servers = {"namesrv": self._name_servers, "seconds": 600}
        sending = {**servers, "rate": JAVA_RATE, "levels": 1, "retries": 2, "gaps": 1}
        return {
            "java": self._java.send(**sending, topic=JAVA_TOPIC, threads=2),
            "java_async": self._java.send(**sending, topic=JAVA_ASYNC_TOPIC, mode="async", instance="async"),
            "java_consumer": self._java.watch(**servers, topic=JAVA_TOPIC, group="java-readers"),
        }

    def judge(self) -> dict[str, Any]:
        """Stop everything; return the figures of clean verdicts about each topic."""
        self.producer.stop()
        figures = {}
        for topic in TOPICS:
            sends = self.producer.sends() if topic == TOPIC else self._java.attempts(topic)
            verdict = self._space.judge_when_done(topic, sends, timeout_s=120, by_unique_key=topic != TOPIC)
            verdict.assert_clean()
            figures[topic] = verdict.figures()
        return figures


def _longest_arrival_gap_s(got: list[list[Any]]) -> float:
    arrivals = sorted(line[ARRIVED_AT] for line in got)
    return max((later - before for before, later in pairwise(arrivals)), default=0) / 1000
