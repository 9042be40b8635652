"""Pods that cannot be created, hang, or never become ready: Degraded reports them with the last warning."""

from dataclasses import replace
from typing import Any

import pytest
from delaymq_operator.api.resource import timestamp_of_ms
from delaymq_operator.reconcile.broker.observe.late_pods import newest_warning
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.gitops import kstatus
from delaymq_operator_testing.worlds.settled import settled
from delaymq_operator_testing.worlds.stuck import keep_creating, refuse_pod, warn

POD = "demo-broker-0-0"
DEADLINE = 80
"""Progress deadline in seconds; shorter than the operator's ten minutes, to keep the tests fast."""


@pytest.fixture
def world() -> FakeWorld:
    """A settled Broker with one group."""
    return hurried(settled(size=1))


def hurried(world: FakeWorld) -> FakeWorld:
    world.settings = replace(world.settings, progress_deadline_s=DEADLINE)
    return world


def degraded(world: FakeWorld) -> bool:
    return world.condition("Degraded")["status"] == "True"


def delete(world: FakeWorld, name: str) -> None:
    world.kube.remove("Pod", NAMESPACE, name)


def test_rejected_pod_is_reported_promptly_with_message_of_api_server() -> None:
    world = hurried(FakeWorld())
    world.create(size=1)
    accept = refuse_pod(world, POD)
    world.idle(40)
    assert world.reason("Degraded") == "PodFailing"
    message = world.condition("Degraded")["message"]
    assert "Pod demo-broker-0-0 has been missing since 20" in message
    assert "exceeded quota: none" in message
    assert kstatus(world.broker) == "InProgress"
    world.idle(DEADLINE)
    assert world.reason("Stalled") == "PodFailing"
    assert kstatus(world.broker) == "Failed"
    accept()
    world.run()
    assert not degraded(world)
    assert kstatus(world.broker) == "Current"


def test_missing_pod_without_event_is_reported_after_deadline(world: FakeWorld) -> None:
    refuse_pod(world, POD, told=False)
    delete(world, POD)
    since = timestamp_of_ms(world.now_ms + 1_000)
    world.idle(DEADLINE // 2)
    world.restart_operator()
    world.idle(DEADLINE // 2 - 10)
    assert not degraded(world)
    world.idle(20)
    assert world.reason("Degraded") == "ProgressDeadlineExceeded"
    assert world.condition("Degraded")["message"] == (
        f"Pod demo-broker-0-0 has been missing since {since}; see `kubectl describe statefulset demo-broker-0`."
    )
    assert world.reason("Stalled") == "ProgressDeadlineExceeded"


def test_pod_stuck_in_container_creating_is_reported_with_last_warning(
    world: FakeWorld,
) -> None:
    let_go = keep_creating(world, POD)
    delete(world, POD)
    world.idle(3)
    warn(world, "Pod", POD, "FailedMount", 'MountVolume.SetUp failed for volume "conf": not found')
    world.idle(20)
    assert "Last warning: FailedMount: MountVolume.SetUp failed" in world.condition("Progressing")["message"]
    world.restart_operator()
    world.idle(DEADLINE - 40)
    assert not degraded(world)
    world.idle(40)
    assert world.reason("Degraded") == "ProgressDeadlineExceeded"
    message = world.condition("Degraded")["message"]
    assert "(container broker: ContainerCreating)" in message
    assert 'Last warning: FailedMount: MountVolume.SetUp failed for volume "conf": not found.' in message
    let_go()
    world.run()
    assert not degraded(world)


@pytest.mark.parametrize("name", [POD, "demo-namesrv-0"])
def test_running_pod_that_never_becomes_ready_is_reported_after_deadline(world: FakeWorld, name: str) -> None:
    world.kube.unready.add(name)
    world.idle(DEADLINE - 10)
    assert not degraded(world)
    world.idle(20)
    assert world.reason("Degraded") == "ProgressDeadlineExceeded"
    assert f"Pod {name} has not been ready since" in world.condition("Degraded")["message"]
    assert kstatus(world.broker) == "Failed"
    world.kube.unready.clear()
    world.run()


def test_forbidden_events_are_only_omitted_from_message(world: FakeWorld) -> None:
    world.kube.forbidden.add(("list", "Event"))
    keep_creating(world, POD)
    delete(world, POD)
    world.idle(DEADLINE + 20)
    assert world.reason("Degraded") == "ProgressDeadlineExceeded"
    assert "warning" not in world.condition("Degraded")["message"]
    assert world.failures == []


def test_warning_about_earlier_pod_is_not_attributed_to_later_one(world: FakeWorld) -> None:
    warn(world, "StatefulSet", "demo-broker-0", "FailedCreate", "exceeded quota")
    world.idle(60)
    refuse_pod(world, POD, told=False)
    delete(world, POD)
    world.idle(30)
    assert not degraded(world)
    assert "quota" not in world.condition("Progressing")["message"]


def test_successful_rollout_reads_no_events(world: FakeWorld) -> None:
    world.kube.requests.clear()
    world.change(image="delaymq/broker:2")
    world.idle(1)
    world.run()
    assert ("list", "Event", "") not in world.kube.requests
    assert not [event for event in world.kube.events if event[0] == "Warning"]


def test_many_late_pods_cause_few_event_requests() -> None:
    world = settled(size=12)
    world.kube.unready |= {f"demo-broker-{group}-0" for group in range(12)}
    world.idle(20)
    world.kube.requests.clear()
    world.reconcile()
    assert world.kube.requests.count(("list", "Event", "")) <= 4
    world.kube.requests.clear()
    world.idle(30)
    assert 12 <= world.kube.requests.count(("list", "Event", "")) <= 12 * 3


def test_newest_warning_is_found_in_any_timestamp_field() -> None:
    def event(note: str, uid: str = "1", **times: Any) -> Manifest:
        return {"reason": "R", "note": note, "regarding": {"uid": uid}} | times

    events = [
        event("old", deprecatedLastTimestamp="2026-11-21T00:00:01Z", eventTime=None, series=None),
        event("new", eventTime="2026-11-21T00:00:00.000000Z", series={"lastObservedTime": "2026-11-21T00:00:03.5Z"}),
        event("made", metadata={"creationTimestamp": "2026-11-21T00:00:02Z"}),
        event("another's", uid="2", eventTime="2026-11-22T00:00:00Z"),
    ]
    for known, expected in ((events, "new"), (events[::2], "made"), (events[:1], "old")):
        found = newest_warning(known, "1")
        assert found is not None
        assert found.message == expected
    assert newest_warning(events[3:], "1") is None
