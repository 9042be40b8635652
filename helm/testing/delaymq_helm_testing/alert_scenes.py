"""Series in Prometheus of a healthy Broker `default/demo` and its operator, and changes of them by faults.

The series are those of a real broker that stores and delivers messages, and the operator's metrics for the Broker
`demo` of the reconciler's tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from delaymq.client import Client, ConsumeFrom, Message, Producer, PushConsumer, PushConsumerOptions, ReceivedMessage
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.metrics import OperatorMetrics, StateCollector
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_testing.running_server import HOST, run, standalone

from delaymq_helm_testing.promtool import Labels, Series, Values, families_of, scraped

POD = {"namespace": NAMESPACE, "pod": "demo-broker-0-0"}
BROKER = {
    **POD, "job": "delaymq/delaymq-brokers", "instance": "10.1.0.7:8080", "container": "broker", "endpoint": "http",
    "app_kubernetes_io_instance": "demo",
}  # fmt: skip
"""Labels that the chart's PodMonitor gives to a broker's series."""
OPERATOR_NAMESPACE = "delaymq"
OPERATOR = {
    "namespace": OPERATOR_NAMESPACE, "pod": "delaymq-operator-0", "job": "delaymq-operator",
    "service": "delaymq-operator", "instance": "10.1.0.8:8080", "container": "operator", "endpoint": "http",
}  # fmt: skip
"""Labels that the chart's ServiceMonitor gives to the operator's series."""
LATENESS = ("delaymq_delay_lateness_seconds_bucket", "delaymq_topic_delay_lateness_seconds_bucket")
MACHINES: Mapping[str, Values] = {
    "delaymq_event_loop_lag_seconds": Values(0.002),
    "delaymq_disk_size_bytes": Values(10e9),
    "delaymq_disk_free_bytes": Values(6e9),
}
"""Values that replace those of the machine that runs the tests, which may be loaded or have a full disk."""

REPLICATION: Mapping[str, Values] = {
    "delaymq_replication_master": Values(1.0),
    "delaymq_replication_ready": Values(1.0),
    "delaymq_replication_register_reachable": Values(1.0),
}
"""Series of a master with replicas; the broker of the scene has none."""

Seen = dict[Series, Values]


@dataclass(frozen=True)
class Scene:
    """All existing series, and the names of all possible ones."""

    series: Seen
    families: frozenset[str]

    def with_series(self, name: str, values: Values | Callable[[Labels], Values], **labels: str) -> Scene:
        """Return a scene in which all series with this name and these labels have these values.

        If there is none, one is created; its name must be known.
        """
        assert name in self.families, f"nothing exposes {name}"
        chosen = [each for each in self.series if each[0] == name and labels.items() <= dict(each[1]).items()]
        if not chosen:
            target = OPERATOR if name.startswith("delaymq_operator_") else BROKER
            chosen = [(name, frozenset((target | labels).items()))]
        changed = {each: values(dict(each[1])) if callable(values) else values for each in chosen}
        return replace(self, series=self.series | changed)

    def without(self, target: Labels) -> Scene:
        """Return a scene in which a target is not scraped."""
        return replace(
            self, series={each: values for each, values in self.series.items() if not target.items() <= set(each[1])}
        )

    def with_operator(self, world: FakeWorld, *others: Mapping[str, object]) -> Scene:
        """Return a scene in which the operator manages this world."""
        text = operator_metrics(world, *others)
        brokers = self.without(OPERATOR)
        return Scene(brokers.series | scraped(text, OPERATOR, at_s=0.0), brokers.families | families_of(text))


def healthy() -> Scene:
    """Return the scene of a broker under load, and an operator that observes no problem."""
    before, after = broker_metrics()
    now_s = time.time()
    seen = scraped(before, BROKER, at_s=now_s)
    grown = scraped(after, BROKER, at_s=now_s)
    counters = {name for name in families_of(after) if name.endswith(("_total", "_bucket", "_sum", "_count"))}
    series: Seen = {}
    for each, values in grown.items():
        growth = values.first - seen.get(each, Values(0.0)).first if each[0] in counters else 0.0
        series[each] = MACHINES.get(each[0], replace(values, growth=growth))
    for each in series:
        if each[0] in LATENESS:
            # Each delivery is on time, even if this machine was slow.
            whole = dict(each[1]) | {"le": "+Inf"}
            series[each] = series[each[0], frozenset(whole.items())]
    families = frozenset(families_of(after)) | REPLICATION.keys()
    scene = Scene(series, families).with_operator(settled_broker())
    for name, values in REPLICATION.items():
        scene = scene.with_series(name, values)
    # A message is always due in an hour.
    return scene.with_series("delaymq_delay_next_due_timestamp_seconds", Values(3_600.0, 60.0))


def broker_metrics() -> tuple[str, str]:
    """Return /metrics of a broker after some work, and after the same work again."""
    texts: list[str] = []

    async def scenario() -> None:
        with TemporaryDirectory() as path:
            async with standalone(Path(path), http=True, message_delay_level="1s 1h") as server:
                await work(f"{HOST}:{server.namesrv.port}", lambda: scrape(server.broker.http_port), texts)

    run(scenario)
    return texts[0], texts[1]


async def work(name_server: str, read: Callable[[], Coroutine[Any, Any, str]], texts: list[str]) -> None:
    """Send messages with and without a delay, and read the metrics when all due ones have been consumed; twice."""
    consumed: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: ReceivedMessage) -> None:
        consumed.put_nowait(message.body)

    async with Client(name_server) as client, Producer(client, "shop") as producer:
        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST)
        await producer.send(Message(topic="Orders", body=b"later"), delay="1h")
        consumer = PushConsumer(client, "workers", handle, options)
        consumer.subscribe("Orders")
        async with consumer:
            for _ in range(2):
                await producer.send(Message(topic="Orders", body=b"now"))
                await producer.send(Message(topic="Orders", body=b"soon"), delay="1s")
                for _ in range(2):
                    await consumed.get()
                text = await read()
                texts.append(text)


async def scrape(port: int | None) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}/metrics") as answer:
        return await answer.text()


def settled_broker(**spec: object) -> FakeWorld:
    """Return a Broker whose spec is in force."""
    world = FakeWorld()
    world.create(**spec)
    world.run()
    return world


class Active:
    """An idle operator."""

    active = True
    served: Mapping[str, bool] = {"*": True}
    queue_depth = 0
    loop_lag_s = 0.002
    events_dropped = 0


def operator_metrics(world: FakeWorld, *others: Mapping[str, object]) -> str:
    """Return /metrics of an operator that observes a world and the additional objects `others`."""
    cache = WatchCache(lambda kind, before, after: None)
    for (kind, _, _), body in world.kube.objects.items():
        cache.put(kind, body)
    for other in others:
        cache.put(str(other["kind"]), dict(other))
    metrics = OperatorMetrics()
    metrics.registry.register(StateCollector(Active(), cache))
    return metrics.text().decode()
