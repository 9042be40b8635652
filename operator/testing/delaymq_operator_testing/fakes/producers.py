"""Producers of a FakeWorld that behave like RocketMQ's clients.

They fetch the routes every 30 s and after a failed attempt, and try a send three times, each time on a different broker
from the previous one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from delaymq_operator_testing.fakes.brokers import FakeBroker
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld

ROUTES_MS = 30_000
GRACE_MS = 15_000
"""For so long a NameServer keeps the route of a broker whose connection ended."""
ATTEMPTS = 3


@dataclass
class FakeProducer:
    """One client with one topic that is in every group."""

    looks_at_ms: int
    route: list[str] = field(default_factory=list)
    """Pods of brokers that it may send to."""
    last: str = ""
    """The pod that it tried last."""


@dataclass
class FakeProducers:
    """`count` producers that send `rate` messages each, every few ticks, instead of the brokers' own traffic."""

    world: FakeWorld
    count: int = 3
    rate: int = 3
    every: int = 1
    sent: int = 0
    failed: list[str] = field(default_factory=list)
    """What became of sends that failed, an attempt after the other."""

    def __post_init__(self) -> None:
        self.world.brokers.traffic = False
        self.world.others.append(self.tick)
        # They do not look at the routes together.
        start_ms = self.world.now_ms
        self._producers = [FakeProducer(start_ms + ROUTES_MS * number // self.count) for number in range(self.count)]
        self._writable: dict[str, bool] = {}
        self._lost_ms: dict[str, int] = {}
        self._ticks = 0
        for producer in self._producers:
            producer.route = sorted(self.world.brokers.running)

    def tick(self) -> None:
        """Brokers register, producers send."""
        self._register()
        self._ticks += 1
        for number, producer in enumerate(self._producers):
            if self.world.now_ms >= producer.looks_at_ms:
                producer.looks_at_ms = self.world.now_ms + ROUTES_MS
                self._look(producer)
            for _ in range(self.rate if (self._ticks + number) % self.every == 0 else 0):
                self._send(producer)

    def _register(self) -> None:
        """What the NameServer knows: brokers that run say themselves whether they take writes."""
        now_ms = self.world.now_ms
        for pod, broker in self._running().items():
            self._writable[pod] = broker.drain.mode == "none" and not broker.decommissioned
            self._lost_ms.pop(pod, None)
        for pod in [pod for pod in self._writable if pod not in self._running()]:
            if now_ms - self._lost_ms.setdefault(pod, now_ms) >= GRACE_MS:
                del self._writable[pod]

    def _running(self) -> dict[str, FakeBroker]:
        """By pod; a broker stops as soon as its pod is deleted."""
        pods = {body["metadata"]["name"]: body for body in self.world.kube.select("Pod", NAMESPACE, {})}
        return {
            name: broker
            for name, broker in self.world.brokers.running.items()
            if name in pods and "deletionTimestamp" not in pods[name]["metadata"]
        }

    def _look(self, producer: FakeProducer) -> None:
        """While no NameServer serves, or none of the brokers has registered there, the last route stays."""
        name_servers = self.world.kube.select("Pod", NAMESPACE, {"app.kubernetes.io/component": "namesrv"})
        if not any((body.get("status") or {}).get("phase") == "Running" for body in name_servers):
            return
        writable = sorted(pod for pod, is_writable in self._writable.items() if is_writable)
        live = [pod for pod in writable if pod not in self._lost_ms]
        # Of a lost broker writes are withheld as long as another takes them.
        producer.route = live or writable

    def _send(self, producer: FakeProducer) -> None:
        self.sent += 1
        tried: list[str] = []
        running = self._running()
        for _ in range(ATTEMPTS):
            if not producer.route:
                self._look(producer)
                if not producer.route:
                    self.failed.append("no route")
                    return
            others = [pod for pod in producer.route if pod != producer.last or not tried] or producer.route
            producer.last = next((pod for pod in others if pod > producer.last), others[0])
            broker = running.get(producer.last)
            if broker is not None and broker.drain.mode != "refuse" and not broker.decommissioned:
                broker.drain = replace(broker.drain, last_send_ms=self.world.now_ms, sends=broker.drain.sends + 1)
                if tried:
                    self._look(producer)
                return
            if self.world.get("Service", producer.last.removesuffix("-0")) is None:
                # Nobody answers at its address, not even with a refusal: all the time that a send has is gone.
                tried.append(f"{producer.last} is gone")
                break
            tried.append(f"{producer.last} {'is down' if broker is None else 'refuses'}")
        self._look(producer)
        self.failed.append(f"{(self.world.now_ms // 1000) % 100_000}: {', '.join(tried)}")

    def causes(self) -> Counter[str]:
        """How often sends failed for the same reason."""
        return Counter(text.partition(": ")[2] for text in self.failed)
