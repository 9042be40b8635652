"""Rollouts of NameServers: one always serves clients."""

import pytest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.settled import BROKERS, EVERYTHING, TRIAL, is_ready, settled

ONE = "demo-namesrv-0"


@pytest.fixture
def world() -> FakeWorld:
    """A settled Broker with two groups and one NameServer."""
    return settled(size=2)


def serving(world: FakeWorld) -> list[str]:
    """Return the ready NameServers that the Service for clients selects."""
    selector = world.existing("Service", "demo-namesrv")["spec"]["selector"]
    return [pod["metadata"]["name"] for pod in world.kube.select("Pod", NAMESPACE, selector) if is_ready(pod)]


def test_failing_image_leaves_only_name_server_running(world: FakeWorld) -> None:
    before = world.pod_uids()

    def watch() -> None:
        assert serving(world) == [ONE], "no NameServer was left"

    world.watch = watch
    world.change(image="bad:image")
    world.run(lambda: world.reason("Degraded") == "PodFailing")
    world.idle(60)
    assert {name: uid for name, uid in world.pod_uids().items() if name != TRIAL} == before
    assert (world.condition("Ready")["status"], world.reason("Ready")) == ("Unknown", "Rolling")
    assert world.reason("Progressing") == "WaitingForPod"
    message = world.condition("Degraded")["message"]
    assert "ImagePullBackOff" in message
    assert f"a change for NameServer {ONE}; the NameServer and the brokers keep running" in message
    assert f"kubectl logs {TRIAL}" in message


def test_corrected_image_is_tried_and_rolled_out(world: FakeWorld) -> None:
    world.change(image="bad:image")
    world.run(lambda: world.reason("Degraded") == "PodFailing")
    started = len(world.kube.started)
    world.change(image="delaymq/broker:3")
    world.idle(1)
    world.run()
    assert world.kube.started[started:] == [TRIAL, *EVERYTHING]
    assert world.condition("Degraded")["status"] == "False"
    assert world.names("StatefulSet") == ["demo-broker-0", "demo-broker-1", "demo-namesrv"]


def test_reverted_image_leaves_no_trial_objects(world: FakeWorld) -> None:
    before = world.pod_uids()
    world.change(image="bad:image")
    world.run(lambda: world.reason("Degraded") == "PodFailing")
    world.change(image=None)
    world.idle(1)
    world.run()
    world.idle(5)
    assert world.pod_uids() == before
    assert world.names("StatefulSet") == ["demo-broker-0", "demo-broker-1", "demo-namesrv"]


def test_restarted_operator_continues_trial(world: FakeWorld) -> None:
    started = len(world.kube.started)
    world.change(image="delaymq/broker:2")
    world.run(lambda: TRIAL in world.kube.started)
    world.restart_operator()
    world.idle(1)
    world.run()
    assert world.kube.started[started:] == [TRIAL, *EVERYTHING]


def test_unavailable_name_server_is_replaced_without_trial(world: FakeWorld) -> None:
    world.change(image="bad:image")
    world.run(lambda: world.reason("Degraded") == "PodFailing")
    world.kube.objects.pop(("Pod", NAMESPACE, ONE))
    world.idle(5)
    started = len(world.kube.started)
    world.change(image="delaymq/broker:3")
    world.idle(1)
    world.run()
    assert world.kube.started[started:] == EVERYTHING


@pytest.mark.parametrize("image", ["delaymq/broker:2", "bad:image"])
def test_one_of_several_name_servers_always_has_routes(image: str) -> None:
    """A NameServer is restarted only after brokers have had time to register with the previous one."""
    world = settled(size=2, nameServers={"replicas": 2})
    world.idle(20)
    ready_ms = dict.fromkeys(serving(world), world.now_ms - 60_000)

    def watch() -> None:
        now = serving(world)
        for name in list(ready_ms):
            if name not in now:
                del ready_ms[name]
        for name in now:
            ready_ms.setdefault(name, world.now_ms)
        assert any(world.now_ms - since_ms >= 9_000 for since_ms in ready_ms.values()), "no NameServer knows the routes"

    world.watch = watch
    started = len(world.kube.started)
    world.change(image=image)
    world.idle(30)
    if image != "bad:image":
        world.run()
    expected = [] if image == "bad:image" else ["demo-namesrv-0", "demo-namesrv-1", *BROKERS]
    assert world.kube.started[started:] == expected


def test_trial_pod_equals_name_server_but_is_not_selected_by_services(world: FakeWorld) -> None:
    world.change(image="bad:image", podTemplate={"labels": {"team": "orders"}})
    world.run(lambda: world.get("Pod", TRIAL) is not None)
    live, tried = world.existing("StatefulSet", "demo-namesrv"), world.existing("StatefulSet", "demo-namesrv-trial")
    assert tried["spec"]["template"]["spec"] == live["spec"]["template"]["spec"]
    labels = tried["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "orders"
    assert tried["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for kind in ("Service", "PodDisruptionBudget", "StatefulSet"):
        for body in world.kube.select(kind, NAMESPACE, {}):
            selector = body["spec"].get("selector", {})
            if body["metadata"]["name"] != "demo-namesrv-trial":
                assert not selector.get("matchLabels", selector).items() <= labels.items(), body["metadata"]["name"]
