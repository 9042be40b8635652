"""A simulated cluster with a Broker that has analytics, and accessors for their state."""

from typing import Any

from delaymq_operator.reconcile.ports import Manifest

from delaymq_operator_testing.fakes.world import FakeWorld


def analysed(size: int = 1, analytics: Manifest | None = None, **spec: Any) -> FakeWorld:
    """Return a cluster with a settled Broker that has analytics, and with the Spark operator."""
    world = FakeWorld()
    world.others.append(world.spark.tick)
    world.create(size=size, analytics={} if analytics is None else analytics, **spec)
    world.run()
    world.idle(3)
    return world


def told(world: FakeWorld) -> Manifest:
    return world.status.get("analytics") or {}


def group(world: FakeWorld, index: int = 0) -> Manifest:
    return next((each for each in told(world).get("groups", []) if each["group"] == index), {})


def ready(world: FakeWorld) -> Manifest:
    return world.condition("AnalyticsReady")


def applications(world: FakeWorld) -> list[str]:
    return world.names("SparkApplication")


def made(world: FakeWorld) -> list[str]:
    return [name for kind, _, name in world.kube.made if kind == "SparkApplication"]


def ended(world: FakeWorld) -> bool:
    return told(world).get("state") in ("Succeeded", "Failed")


def analyse(world: FakeWorld, text: str = "1") -> None:
    """Request a run and wait until it ends."""
    before = told(world).get("run")
    world.annotate(analyze=text)
    world.run(lambda: told(world).get("run") != before and ended(world), ticks=8000)
    world.idle(2)


def events(world: FakeWorld, reason: str) -> list[str]:
    return [message for _, said, message in world.kube.events if said == reason]


def analytics_requests(world: FakeWorld) -> list[tuple[str, str, str]]:
    kinds = ("SparkApplication", "AnalyticsResult", "RoleBinding")
    return [request for request in world.kube.requests if request[1] in kinds]
