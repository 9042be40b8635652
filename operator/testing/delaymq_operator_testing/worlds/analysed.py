"""A small world with a Broker that allows analytics, and short words for what is seen of them there."""

from delaymq_operator_testing.fakes.spark import FakeSpark
from delaymq_operator_testing.fakes.world import FakeWorld


def analysed(size=1, analytics=None, **spec):
    """A settled Broker that allows analytics, and the Spark operator."""
    world = FakeWorld()
    world.spark = FakeSpark(world.kube)
    world.others.append(world.spark.tick)
    world.create(size=size, analytics={} if analytics is None else analytics, **spec)
    world.run()
    world.idle(3)
    return world


def told(world):
    return world.status.get("analytics") or {}


def group(world, index=0):
    return next((each for each in told(world).get("groups", []) if each["group"] == index), {})


def ready(world):
    return world.condition("AnalyticsReady")


def applications(world):
    return world.names("SparkApplication")


def made(world):
    return [name for kind, _, name in world.kube.made if kind == "SparkApplication"]


def ended(world):
    return told(world).get("state") in ("Succeeded", "Failed")


def analyse(world, text="1"):
    """Asks for a run and waits for its end."""
    before = told(world).get("run")
    world.annotate(analyze=text)
    world.run(lambda: told(world).get("run") != before and ended(world), ticks=8000)
    world.idle(2)


def events(world, reason):
    return [message for _, said, message in world.kube.events if said == reason]


def analytics_requests(world):
    kinds = ("SparkApplication", "AnalyticsResult", "RoleBinding")
    return [request for request in world.kube.requests if request[1] in kinds]
