"""Creation and changes of a Broker: objects, invalid specs, Secrets, status."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from delaymq.api_types.delay import Lateness, TimedMessages
from delaymq_operator.api.resource import timestamp_of_ms
from delaymq_operator.reconcile.broker import reconcile_broker
from delaymq_operator.reconcile.context import Outcome
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.settled import BROKERS, restarts, settled


@pytest.fixture
def world() -> FakeWorld:
    """A settled Broker with two groups."""
    return settled(size=2)


def test_created_broker_becomes_ready() -> None:
    world = FakeWorld()
    world.create(size=2)
    world.cache.sync()
    assert world.reconcile() is not None
    assert world.reason("Ready") == "Creating"
    assert world.reason("Progressing") == "Creating"
    world.run()
    assert world.names("Pod") == ["demo-broker-0-0", "demo-broker-1-0", "demo-namesrv-0"]
    assert world.status["nameServers"] == ["demo-namesrv.default:9876"]
    assert world.reason("SchedulerIntact") == "Intact"
    assert world.condition("Degraded")["status"] == "False"
    assert [group["name"] for group in world.status["groups"]] == ["demo-0", "demo-1"]
    assert ("Normal", "Ready", "2 of 2 broker groups are ready.") in world.kube.events


def test_settled_broker_sends_no_requests(world: FakeWorld) -> None:
    world.kube.requests.clear()
    world.idle(50)
    assert world.kube.requests == []


def test_reconciling_large_broker_yields_between_objects() -> None:
    world = settled(size=32)

    async def turns_during_a_pass() -> int:
        turns = 0
        task = asyncio.create_task(reconcile_broker(world.key, world.world()))
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(turns_during_a_pass()) > 64


def edited(world: FakeWorld, **fields: Any) -> None:
    """Modify the status like `kubectl edit --subresource=status`, or like a client with an outdated copy."""
    body = copy.deepcopy(world.broker)
    body["status"] |= fields
    body["status"]["conditions"] = [
        *(each | {"status": "Unknown", "reason": "Theirs", "message": "-"} for each in body["status"]["conditions"]),
        {"type": "Theirs", "status": "True", "reason": "Theirs", "message": "-", "lastTransitionTime": "-"},
    ]
    del body["status"]["nameServers"]
    world.kube.put(body)


def test_modified_status_is_restored_by_next_reconciliation(world: FakeWorld) -> None:
    before = copy.deepcopy(world.status)
    edited(world, pending=99, size=7)
    world.tick()
    world.reconcile()
    assert world.status == before


def test_modified_figure_is_restored_by_next_reconciliation(world: FakeWorld) -> None:
    before = copy.deepcopy(world.status)
    body = copy.deepcopy(world.broker)
    body["status"]["groups"][0]["pending"] = 99
    world.kube.put(body)
    world.tick()
    world.reconcile()
    assert world.status == before


def test_status_counts_timed_messages_with_those_of_the_levels(world: FakeWorld) -> None:
    first, second = world.brokers.stores["store-demo-broker-0-0"], world.brokers.stores["store-demo-broker-1-0"]
    first.pending, second.pending = 2, 3
    due_ms = 1_800_000_000_000
    first.timed = TimedMessages(
        pending=40, next_due_ms=due_ms, delivered=5, lateness=Lateness(p50_ms=4, p99_ms=5, max_ms=6)
    )
    world.idle(61)
    groups = world.status["groups"]
    assert (world.status["pending"], [group["pending"] for group in groups]) == (45, [42, 3])
    assert world.status["nextDue"] == groups[0]["nextDue"] == timestamp_of_ms(due_ms)
    assert groups[0]["lateness"] == {"p50Ms": 4, "p99Ms": 5, "maxMs": 6}
    assert groups[0]["timed"] == {"pending": 40, "nextDue": timestamp_of_ms(due_ms)}
    # The levels' positions are compared after a restart; timed messages have none.
    assert [each["level"] for each in groups[0]["delay"]] == [1, 3]


def test_foreign_conditions_are_removed_after_operator_restart(world: FakeWorld) -> None:
    edited(world)
    world.restart_operator()
    world.reconcile()
    assert "Theirs" not in [each["type"] for each in world.status["conditions"]]
    assert world.reason("Ready") == "AllGroupsReady"


def test_own_status_in_stale_cache_is_not_mistaken_for_foreign_write(world: FakeWorld) -> None:
    world.lag_ticks = 3
    world.change(size=3)
    world.run()
    world.idle(10)
    world.kube.requests.clear()
    world.idle(20)
    assert world.kube.requests == []


def test_each_foreign_status_write_is_reverted_once(world: FakeWorld) -> None:
    world.kube.requests.clear()
    for _ in range(3):
        edited(world, size=7)
        world.tick()
        world.reconcile()
        world.tick()
        world.reconcile()
    assert world.kube.requests == [("patch status", "Broker", "demo")] * 3


def test_changed_figures_are_written_once_per_interval(world: FakeWorld) -> None:
    world.kube.requests.clear()
    for number in range(200):
        world.brokers.stores["store-demo-broker-0-0"].offsets[1] = 100 + number
        world.step()
    assert 2 <= len(world.kube.requests) <= 3
    assert set(world.kube.requests) == {("patch status", "Broker", "demo")}


def test_requeue_delay_depends_on_progress(world: FakeWorld) -> None:
    world.tick()
    assert world.reconcile() == Outcome(requeue_after_s=world.settings.poll_interval_s)
    world.change(image="delaymq/broker:2")
    world.tick()
    assert world.reconcile() == Outcome(requeue_after_s=world.settings.progress_interval_s)


def test_drift_is_repaired_without_restart(world: FakeWorld) -> None:
    service = copy.deepcopy(world.existing("Service", "demo-namesrv"))
    service["spec"]["ports"][0]["port"] = 1
    service["spec"]["sessionAffinity"] = "ClientIP"
    world.kube.put(service)
    world.kube.remove("ConfigMap", NAMESPACE, "demo-broker-conf")
    stateful_set = copy.deepcopy(world.existing("StatefulSet", "demo-broker-0"))
    stateful_set["spec"]["template"]["spec"]["containers"][0]["image"] = "another:image"
    world.kube.put(stateful_set)
    assert restarts(world, lambda: None) == []
    assert world.existing("Service", "demo-namesrv")["spec"]["ports"][0]["port"] == 9876
    assert world.existing("Service", "demo-namesrv")["spec"]["sessionAffinity"] == "ClientIP"
    assert world.get("ConfigMap", "demo-broker-conf") is not None
    repaired = world.existing("StatefulSet", "demo-broker-0")
    assert repaired["spec"]["template"]["spec"]["containers"][0]["image"] == "delaymq/broker:1"


def test_field_rewritten_by_admission_is_not_applied_repeatedly(world: FakeWorld) -> None:
    def admission(
        kind: str,
        body: Manifest,
        live: Manifest | None,
        original: Callable[[str, Manifest, Manifest | None], None] = world.kube._admit,
    ) -> None:
        original(kind, body, live)
        if kind == "PodDisruptionBudget":
            body["spec"]["maxUnavailable"] = 7

    world.kube._admit = admission
    budget = copy.deepcopy(world.existing("PodDisruptionBudget", "demo-broker"))
    budget["spec"]["maxUnavailable"] = 7
    world.kube.put(budget)
    world.kube.requests.clear()
    world.idle(30)
    assert [request for request in world.kube.writes() if request[0] == "apply"] == [
        ("apply", "PodDisruptionBudget", "demo-broker")
    ]


def test_object_that_is_repeatedly_reverted_is_left_alone_temporarily(world: FakeWorld) -> None:
    def change_back() -> None:
        budget = copy.deepcopy(world.existing("PodDisruptionBudget", "demo-broker"))
        budget["spec"]["maxUnavailable"] = 7
        world.kube.put(budget)

    world.watch = change_back
    world.kube.requests.clear()
    world.idle(250)
    assert 5 <= world.kube.requests.count(("apply", "PodDisruptionBudget", "demo-broker")) <= 10
    assert world.reason("Degraded") == "ApplyFailed"
    assert "PodDisruptionBudget demo-broker" in world.condition("Degraded")["message"]
    world.watch = lambda: None
    world.idle(310)
    assert world.existing("PodDisruptionBudget", "demo-broker")["spec"]["maxUnavailable"] == 1
    assert world.condition("Degraded")["status"] == "False"


def test_object_modified_by_admission_is_accepted() -> None:
    world = FakeWorld()
    admit = world.kube._admit

    def admission(kind: str, body: Manifest, live: Manifest | None) -> None:
        admit(kind, body, live)
        if kind == "PodDisruptionBudget":
            body["spec"]["maxUnavailable"] = 7

    world.kube._admit = admission
    world.create()
    world.run()
    world.idle(30)
    assert world.kube.requests.count(("apply", "PodDisruptionBudget", "demo-broker")) == 1


def test_unneeded_objects_are_removed(world: FakeWorld) -> None:
    world.change(networkPolicy={"enabled": True}, external={"type": "NodePort", "advertisedAddress": "192.0.2.1"})
    world.idle(1)
    world.run()
    assert world.names("NetworkPolicy") == ["demo-broker", "demo-namesrv"]
    assert {"demo-broker-0-external", "demo-namesrv-external"} <= set(world.names("Service"))
    assert world.status["externalNameServers"] == ["192.0.2.1:30976"]
    assert world.status["groups"][1]["address"] == "192.0.2.1:30921"
    world.change(networkPolicy={"enabled": False}, external=None)
    world.idle(1)
    world.run()
    assert world.names("NetworkPolicy") == []
    assert not [name for name in world.names("Service") if name.endswith("external")]
    assert world.status["externalNameServers"] == []


def test_paused_broker_is_observed_but_not_changed(world: FakeWorld) -> None:
    world.change(paused=True)
    world.idle(2)
    world.kube.requests.clear()
    world.kube.remove("Service", NAMESPACE, "demo-namesrv")
    world.change(image="delaymq/broker:2")
    world.brokers.running["demo-broker-0-0"].settings["fileReservedTime"] = "1"
    world.idle(30)
    assert {request[:2] for request in world.kube.writes()} <= {("patch status", "Broker"), ("event", "Event")}
    assert world.brokers.calls == []
    assert world.condition("Paused")["status"] == "True"
    assert world.status["readyGroups"] == 2
    world.change(paused=False)
    world.idle(1)
    world.run()
    assert world.condition("Paused") == {}
    assert world.status["image"] == "delaymq/broker:2"


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"config": {"fileReservedTyme": "9"}}, "InvalidConfig", "did you mean fileReservedTime"),
        ({"config": {"fileReservedTime": "soon"}}, "InvalidConfig", "is not an integer"),
        ({"config": {"brokerName": "x"}}, "InvalidSpec", "and the group; remove the key."),
        ({"delayLevelConfigRef": {"name": "none"}}, "DelayLevelConfigMissing", "DelayLevelConfig none does not exist"),
        ({"delayLevelConfigRef": {"name": "bad"}}, "DelayLevelConfigInvalid", "at most 3650d. Until it is corrected"),
        ({"podTemplate": {"env": [{"name": "DELAYMQ_LISTEN_PORT", "value": "1"}]}}, "InvalidConfig", "spec.config"),
        ({"size": "many"}, "InvalidSpec", "spec.size"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)
def test_invalid_spec_changes_nothing_until_corrected(
    world: FakeWorld, spec: Manifest, reason: str, words: str
) -> None:
    world.levels("bad", "1s", "99999999d")
    objects = {name: body for name, body in world.kube.objects.items() if name[0] not in ("Broker", "Pod")}
    before = {place: body["metadata"]["resourceVersion"] for place, body in objects.items()}
    world.change(**spec)
    world.idle(20)
    assert world.reason("Degraded") == reason
    assert words in world.condition("Degraded")["message"]
    assert world.condition("Ready")["status"] == "False"
    assert world.reason("Ready") == "InvalidSpec"
    assert "2 of 2" in world.condition("Ready")["message"]
    assert {place: world.kube.objects[place]["metadata"]["resourceVersion"] for place in before} == before
    assert world.failures == []
    world.change(**dict.fromkeys(spec), image="delaymq/broker:2")
    world.idle(1)
    world.run()
    assert world.condition("Degraded")["status"] == "False"


def test_invalid_spec_of_new_broker_creates_nothing_and_is_not_requeued() -> None:
    world = FakeWorld()
    world.create(config={"nonsense": "1"})
    world.cache.sync()
    assert world.reconcile() == Outcome()
    assert world.reason("Degraded") == "InvalidConfig"
    assert world.names("StatefulSet") == []


def test_deleted_broker_causes_no_requests(world: FakeWorld) -> None:
    world.kube.remove("Broker", NAMESPACE, "demo")
    world.cache.sync()
    world.kube.requests.clear()
    assert world.reconcile() == Outcome()
    assert world.kube.requests == []


def test_foreign_object_is_not_adopted() -> None:
    world = FakeWorld()
    world.create()
    foreign = {
        "kind": "ConfigMap",
        "metadata": {"name": "demo-broker-conf", "namespace": NAMESPACE},
        "data": {"a": "b"},
    }
    world.kube.put(foreign)
    world.idle(5)
    assert world.reason("Degraded") == "NameConflict"
    assert "demo-broker-conf" in world.condition("Degraded")["message"]
    assert world.names("StatefulSet") == []
    assert world.existing("ConfigMap", "demo-broker-conf")["data"] == {"a": "b"}


def test_oversized_pod_template_is_rejected_with_limit(world: FakeWorld) -> None:
    env = [{"name": f"V{number}", "value": "x" * 4096} for number in range(60)]
    world.change(podTemplate={"env": env})
    world.idle(2)
    assert world.reason("Degraded") == "InvalidSpec"
    assert "the maximum is 200000: shorten env" in world.condition("Degraded")["message"]
    assert world.failures == []


@pytest.mark.parametrize(
    "nonsense", ["", "bm8Kd29yZA==", "4pyT", "%%%"], ids=["empty", "two lines", "no ASCII", "no base64"]
)
def test_unusable_token_is_replaced(world: FakeWorld, nonsense: str) -> None:
    world.kube.objects["Secret", NAMESPACE, "demo-http-token"]["data"]["token"] = nonsense
    world.restart_operator()
    world.idle(1)
    world.run()
    assert world.existing("Secret", "demo-http-token")["data"]["token"] not in (nonsense, "")
    assert world.failures == []


def test_broker_at_address_of_another_is_reported_as_unreachable(world: FakeWorld) -> None:
    first, second = (world.cache.get("Pod", NAMESPACE, name) for name in BROKERS)
    assert first is not None
    assert second is not None
    first["status"]["podIP"] = second["status"]["podIP"]
    world.reconcile()
    assert world.reason("Degraded") == "BrokerUnreachable"
    assert "is the address of demo-1" in world.condition("Degraded")["message"]


def test_deleted_token_secret_is_recreated(world: FakeWorld) -> None:
    world.kube.remove("Secret", NAMESPACE, "demo-http-token")
    world.restart_operator()
    world.idle(1)
    world.run()
    assert world.get("Secret", "demo-http-token") is not None


def test_unobserved_recreation_of_broker_yields_complete_status(world: FakeWorld) -> None:
    world.kube.remove("Broker", NAMESPACE, "demo")
    world.create(size=2)
    world.idle(10)
    world.run()
    assert set(world.status) >= {"size", "readyGroups", "selector", "nameServers", "conditions", "groups", "levels"}
    assert world.status["groups"][0]["ready"] is True
