"""Producers of a FakeWorld that behave like RocketMQ's clients.

They refresh their routes every 30 s and after a failed attempt, and attempt each send up to three times, each time on
a different broker from the previous one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from delaymq_operator_testing.fakes.brokers import FakeBroker
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld

ROUTES_MS = 30_000
GRACE_MS = 15_000
"""Time for which a NameServer keeps the route of a disconnected broker."""
ATTEMPTS = 3


@dataclass
class FakeProducer:
    """A client that sends to one topic, which is in every group."""

    looks_at_ms: int
    route: list[str] = field(default_factory=list)
    """Pods of the brokers in its route."""
    last: str = ""
    """Pod of its last attempt."""


@dataclass
class FakeProducers:
    """`count` producers that each send `rate` messages every `every` ticks, in place of the brokers' own traffic."""

    world: FakeWorld
    count: int = 3
    rate: int = 3
    every: int = 1
    sent: int = 0
    failed: list[str] = field(default_factory=list)
    """Failed sends, each with the outcomes of its attempts."""

    def __post_init__(self) -> None:
        self.world.brokers.traffic = False
        self.world.others.append(self.tick)
        # Producers do not refresh their routes at the same time.
        start_ms = self.world.now_ms
        self._producers = [FakeProducer(start_ms + ROUTES_MS * number // self.count) for number in range(self.count)]
        self._writable: dict[str, bool] = {}
        self._lost_ms: dict[str, int] = {}
        self._ticks = 0
        for producer in self._producers:
            producer.route = sorted(self.world.brokers.running)

    def tick(self) -> None:
        """Register brokers, refresh routes that are due, and send messages."""
        self._register()
        self._ticks += 1
        for number, producer in enumerate(self._producers):
            if self.world.now_ms >= producer.looks_at_ms:
                producer.looks_at_ms = self.world.now_ms + ROUTES_MS
                self._look(producer)
            for _ in range(self.rate if (self._ticks + number) % self.every == 0 else 0):
                self._send(producer)

    def _register(self) -> None:
        """Update the NameServer's registrations: running brokers report whether they accept writes."""
        now_ms = self.world.now_ms
        for pod, broker in self._running().items():
            self._writable[pod] = broker.drain.mode == "none" and not broker.decommissioned
            self._lost_ms.pop(pod, None)
        for pod in [pod for pod in self._writable if pod not in self._running()]:
            if now_ms - self._lost_ms.setdefault(pod, now_ms) >= GRACE_MS:
                del self._writable[pod]

    def _running(self) -> dict[str, FakeBroker]:
        """Return the running brokers by pod; a broker stops as soon as its pod is deleted."""
        pods = {body["metadata"]["name"]: body for body in self.world.kube.select("Pod", NAMESPACE, {})}
        return {
            name: broker
            for name, broker in self.world.brokers.running.items()
            if name in pods and "deletionTimestamp" not in pods[name]["metadata"]
        }

    def _look(self, producer: FakeProducer) -> None:
        """Refresh a route; it stays unchanged while no NameServer is running."""
        name_servers = self.world.kube.select("Pod", NAMESPACE, {"app.kubernetes.io/component": "namesrv"})
        if not any((body.get("status") or {}).get("phase") == "Running" for body in name_servers):
            return
        writable = sorted(pod for pod, is_writable in self._writable.items() if is_writable)
        live = [pod for pod in writable if pod not in self._lost_ms]
        # A disconnected broker is omitted from the route if another accepts writes.
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
                # Nothing responds at this address, not even with a rejection: the attempt uses up the send timeout.
                tried.append(f"{producer.last} is gone")
                break
            tried.append(f"{producer.last} {'is down' if broker is None else 'refuses'}")
        self._look(producer)
        self.failed.append(f"{(self.world.now_ms // 1000) % 100_000}: {', '.join(tried)}")

    def causes(self) -> Counter[str]:
        """Return the number of failed sends by cause."""
        return Counter(text.partition(": ")[2] for text in self.failed)
