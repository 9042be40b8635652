"""Groups with replicas: creation, failover, rollouts, and more or fewer replicas, without a gap that is avoidable."""

from typing import Any

import pytest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.replicated import (
    MEMBERS,
    claim_annotation,
    environment,
    group_of,
    reached,
    replicated,
    watch_addresses,
    watch_service,
)
from delaymq_operator_testing.worlds.settled import settled


def started(world: FakeWorld, change: Any) -> list[str]:
    """Return the broker pods that start because of a change, in order."""
    count = len(world.kube.started)
    change()
    world.idle(1)
    world.run()
    return [name for name in world.kube.started[count:] if "namesrv" not in name]


def test_new_group_gets_a_master_and_replicas_in_sync() -> None:
    world = replicated(3)
    group = world.status["groups"][0]
    assert (group["master"], group["pod"], group["epoch"]) == (MEMBERS[0], MEMBERS[0], 1)
    assert [(each["name"], each["inSync"]) for each in group["replicas"]] == [(name, True) for name in MEMBERS]
    assert group["replicas"][1]["behindBytes"] == 0
    assert world.condition("ReplicasInSync")["status"] == "True"
    assert world.condition("FailoverReady")["status"] == "True"
    assert "selector" not in world.existing("Service", "demo-broker-0")["spec"]
    assert reached(world, "demo-broker-0") == {MEMBERS[0]}
    assert [claim_annotation(world, name) for name in MEMBERS] == ["3", "3", "3"]


def test_every_group_has_its_own_register_and_account() -> None:
    world = replicated(2, size=2)
    assert world.names("Lease") == ["demo-broker-0-register", "demo-broker-1-register"]
    role = world.existing("Role", "demo-broker-1-register")
    assert [rule["resourceNames"] for rule in role["rules"]] == [["demo-broker-1-register"], ["demo-broker-1-master"]]
    binding = world.existing("RoleBinding", "demo-broker-1-register")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "demo-broker-1", "namespace": NAMESPACE}]
    pod = world.existing("Pod", "demo-broker-1-1")
    assert pod["spec"]["serviceAccountName"] == "demo-broker-1"
    assert environment(pod)["DELAYMQ_REPLICA_REGISTER"] == f"kubernetes:{NAMESPACE}/demo-broker-1-register"


def test_settled_group_sends_requests_only_for_checks_each_minute() -> None:
    world = replicated(2)
    world.idle(120)
    world.kube.requests.clear()
    world.idle(60)
    kinds = {(verb, kind) for verb, kind, _ in world.kube.requests}
    assert not world.kube.writes() or kinds & {("patch status", "Broker")}
    assert {kind for verb, kind, _ in world.kube.writes()} <= {"Broker", "Role", "RoleBinding"}
    assert len(world.kube.requests) <= 12


def test_replica_is_added_with_one_restart_of_the_only_broker() -> None:
    world = settled()
    before = world.pod_uids()
    watch_addresses(world)
    assert started(world, lambda: world.change(replicasPerGroup=2)) == [MEMBERS[1], MEMBERS[0]]
    told = [message for _, reason, message in world.kube.events if reason == "AddingReplicas"]
    assert told == [f"demo-0 gets replicas: its only broker, pod {MEMBERS[0]}, restarts once when the other pods run"]
    after = world.pod_uids()
    assert after["demo-namesrv-0"] == before["demo-namesrv-0"]
    assert group_of(world).history == [(1, MEMBERS[0])]
    assert reached(world, "demo-broker-0") == {MEMBERS[0]}


def test_only_broker_keeps_running_while_its_replica_cannot_start() -> None:
    world = settled()
    uid = world.pod_uids()[MEMBERS[0]]
    world.kube.missing_classes.add("absent")
    watch_addresses(world)
    world.change(replicasPerGroup=2)
    world.run(lambda: world.get("Pod", MEMBERS[1]) is not None)
    claim = world.existing("PersistentVolumeClaim", f"store-{MEMBERS[1]}")
    claim["status"] = {}
    claim["spec"]["storageClassName"] = "absent"
    world.existing("Pod", MEMBERS[1])["status"] = {"phase": "Pending"}
    world.idle(60)
    assert world.pod_uids()[MEMBERS[0]] == uid
    assert world.status["groups"][0]["ready"]
    world.change(replicasPerGroup=1)
    world.idle(1)
    world.run()
    assert world.get("Pod", MEMBERS[1]) is None
    assert group_of(world).master == MEMBERS[0]
    assert reached(world, "demo-broker-0") == {MEMBERS[0]}


def test_failover_needs_no_operator_and_is_reported_afterwards() -> None:
    world = replicated(2)
    world.change(paused=True)
    world.idle(2)
    world.kube.remove("Pod", NAMESPACE, MEMBERS[0])
    for _ in range(10):
        world.tick()
    assert group_of(world).master == MEMBERS[1]
    assert reached(world, "demo-broker-0") == {MEMBERS[1]}
    world.change(paused=False)
    world.run()
    group = world.status["groups"][0]
    assert (group["master"], group["pod"], group["epoch"]) == (MEMBERS[1], MEMBERS[1], 2)
    told = [message for _, reason, message in world.kube.events if reason == "MasterChanged"]
    assert len(told) == 1
    assert told[0].startswith(f"demo-0: {MEMBERS[1]} is the master (epoch 2, in sync: ")
    assert "log confirmed to 1000 of 1000" in told[0]


@pytest.mark.parametrize("replicas", [2, 3])
def test_rollout_restarts_replicas_first_and_hands_over_before_the_master(replicas: int) -> None:
    world = replicated(replicas)
    watch_service(world)
    order = started(world, lambda: world.change(flush="Sync"))
    assert order == [*MEMBERS[1:replicas], MEMBERS[0]]
    assert group_of(world).history == [(1, MEMBERS[0]), (2, MEMBERS[1])]
    assert [action for action, _ in world.brokers.calls] == [f"switchover to {MEMBERS[1]}"]
    assert [reason for _, reason, _ in world.kube.events if reason == "SwitchingOver"] == ["SwitchingOver"]


def test_rollout_waits_for_a_replica_that_is_not_in_sync() -> None:
    world = replicated(2)
    watch_service(world)
    world.change(flush="Sync")
    world.run(lambda: world.get("Pod", MEMBERS[1]) is None)
    world.brokers.groups.slow.add(MEMBERS[1])
    world.idle(40)
    assert group_of(world).history == [(1, MEMBERS[0])]
    assert world.reason("Progressing") == "WaitingForPod"
    assert world.condition("ReplicasInSync")["status"] == "False"
    assert world.condition("FailoverReady")["reason"] == "NoCandidate"
    assert (world.condition("Ready")["status"], world.reason("Ready")) == ("Unknown", "Rolling")
    world.brokers.groups.slow.clear()
    world.run()
    assert group_of(world).history == [(1, MEMBERS[0]), (2, MEMBERS[1])]


def test_two_groups_with_replicas_roll_without_a_drain() -> None:
    world = replicated(2, size=2)
    order = started(world, lambda: world.change(flush="Sync"))
    assert order == [MEMBERS[1], MEMBERS[0], "demo-broker-1-1", "demo-broker-1-0"]
    assert {action for action, _ in world.brokers.calls} == {
        f"switchover to {MEMBERS[1]}",
        "switchover to demo-broker-1-1",
    }


def test_port_of_all_brokers_changes_with_a_single_interruption() -> None:
    world = replicated(2)
    node_port = {"type": "NodePort", "advertisedAddress": "192.0.2.1"}
    # Members with different ports cannot link, so the master is restarted without a successor.
    assert started(world, lambda: world.change(external=node_port)) == [MEMBERS[1], MEMBERS[0]]
    assert group_of(world).in_sync == set(MEMBERS[:2])
    assert world.existing("Service", "demo-broker-0-external")["spec"].get("selector") is None


def test_third_replica_is_added_and_removed_without_an_outage() -> None:
    world = replicated(2)
    watch_service(world)
    order = started(world, lambda: world.change(replicasPerGroup=3))
    assert order == [MEMBERS[2], MEMBERS[1], MEMBERS[0]]
    assert environment(world.existing("Pod", MEMBERS[0]))["DELAYMQ_HA_MEMBERS"].count("=") == 3
    order = started(world, lambda: world.change(replicasPerGroup=2))
    assert sorted(order) == MEMBERS[:2]
    assert world.get("Pod", MEMBERS[2]) is None
    assert ("detach", MEMBERS[2]) in world.brokers.calls
    assert environment(world.existing("Pod", MEMBERS[0]))["DELAYMQ_HA_MEMBERS"].count("=") == 2
    assert world.get("PersistentVolumeClaim", f"store-{MEMBERS[2]}") is not None
    assert claim_annotation(world, MEMBERS[2]) is None


def test_master_moves_to_the_first_broker_before_replicas_are_removed() -> None:
    world = replicated(2)
    world.kube.remove("Pod", NAMESPACE, MEMBERS[0])
    world.idle(5)
    world.run()
    assert group_of(world).master == MEMBERS[1]
    order = started(world, lambda: world.change(replicasPerGroup=1))
    assert group_of(world).history[:3] == [(1, MEMBERS[0]), (2, MEMBERS[1]), (3, MEMBERS[0])]
    assert ("detach", MEMBERS[1]) in world.brokers.calls
    assert order == [MEMBERS[0]]
    assert world.get("Pod", MEMBERS[1]) is None
    only = environment(world.existing("Pod", MEMBERS[0]))
    # Its store remains that of a member; alone, it does not wait for replicas.
    assert only["DELAYMQ_HA_MEMBERS"].startswith(f"{MEMBERS[0]}=")
    assert only["DELAYMQ_BROKER_ROLE"] == "ASYNC_MASTER"
    assert world.condition("ReplicasInSync") == {}
    assert started(world, lambda: world.change(replicasPerGroup=2)) == [MEMBERS[1], MEMBERS[0]]
    assert world.condition("ReplicasInSync")["status"] == "True"


def test_volumes_of_removed_replicas_are_deleted_on_request() -> None:
    world = replicated(2, storage={"deleteClaim": True})
    world.change(replicasPerGroup=1)
    world.idle(1)
    world.run()
    world.idle(12)
    assert world.get("PersistentVolumeClaim", f"store-{MEMBERS[1]}") is None
    assert world.get("PersistentVolumeClaim", f"store-{MEMBERS[0]}") is not None


def test_replicas_are_not_removed_while_no_remaining_one_is_in_sync() -> None:
    world = replicated(3)
    world.brokers.groups.slow.add(MEMBERS[1])
    world.kube.remove("Pod", NAMESPACE, MEMBERS[1])
    world.idle(5)
    world.change(replicasPerGroup=2)
    world.idle(60)
    assert world.get("Pod", MEMBERS[2]) is not None
    assert ("detach", MEMBERS[2]) not in world.brokers.calls
    world.brokers.groups.slow.clear()
    world.run()
    assert world.get("Pod", MEMBERS[2]) is None


def test_deleted_register_is_created_again_without_a_record() -> None:
    world = replicated(2)
    world.kube.remove("Lease", NAMESPACE, "demo-broker-0-register")
    world.run(lambda: world.get("Lease", "demo-broker-0-register") is not None)
    assert "spec" not in world.existing("Lease", "demo-broker-0-register")
    assert [kind for kind, reason, _ in world.kube.events if reason == "RegisterRecreated"] == ["Warning"]
    world.run()
    assert group_of(world).epoch == 2


def test_broker_recreated_with_fewer_replicas_starts_with_all_volumes() -> None:
    world = replicated(2)
    world.kube.remove("Pod", NAMESPACE, MEMBERS[0])
    world.idle(5)
    world.run()
    assert group_of(world).master == MEMBERS[1]
    world.watch = lambda: None
    world.kube.remove("Broker", NAMESPACE, "demo")
    world.idle(5)
    assert not world.names("Pod")
    world.create()
    world.run()
    # The group continued with both volumes before the second broker left it.
    assert {master for _, master in group_of(world).history[2:]} <= set(MEMBERS[:2])
    assert world.get("Pod", MEMBERS[1]) is None
    assert ("detach", MEMBERS[1]) in world.brokers.calls
    assert claim_annotation(world, MEMBERS[0]) == "1"


def test_promotion_needs_an_annotation_with_pod_and_epoch_and_states_the_loss() -> None:
    world = replicated(2)
    state = group_of(world)
    world.brokers.groups.slow.add(MEMBERS[1])
    world.kube.remove("Pod", NAMESPACE, MEMBERS[1])
    world.idle(6)
    assert state.in_sync == {MEMBERS[0]}
    # The master does not return.
    world.kube.unready.add(MEMBERS[0])
    world.brokers.mute.add(MEMBERS[0])
    state.master_uid, state.in_sync = "lost", {"nobody"}
    world.idle(30)
    assert world.reason("Degraded") == "NoMaster"
    [told] = [message for kind, reason, message in world.kube.events if (kind, reason) == ("Warning", "NoMaster")
              and "delaymq.io/promote" in message]  # fmt: skip
    assert f"messages that only {MEMBERS[0]} may have are lost" in told
    assert f"set the annotation delaymq.io/promote={MEMBERS[1]}@{state.epoch}" in told
    for wrong in ("", "yes", f"{MEMBERS[1]}@{state.epoch - 1}", f"demo-broker-7-0@{state.epoch}"):
        world.annotate(promote=wrong)
        world.idle(3)
        assert ("promote", MEMBERS[1]) not in world.brokers.calls
    world.annotate(promote=f"{MEMBERS[1]}@{state.epoch}")
    world.run(lambda: state.master == MEMBERS[1])
    assert [reason for _, reason, _ in world.kube.events if reason == "Promoting"] == ["Promoting"]
    calls = world.brokers.calls.count(("promote", MEMBERS[1]))
    world.idle(30)
    assert world.brokers.calls.count(("promote", MEMBERS[1])) == calls == 1


def test_external_service_follows_the_master_too() -> None:
    world = replicated(2, external={"type": "NodePort", "advertisedAddress": "192.0.2.1"})
    assert reached(world, "demo-broker-0-external") == {MEMBERS[0]}
    found = world.existing("EndpointSlice", "demo-broker-0-external-master")
    assert {each["name"]: each["port"] for each in found["ports"]} == {"broker": 30911, "fast": 30909}
    world.kube.remove("Pod", NAMESPACE, MEMBERS[0])
    world.run(lambda: group_of(world).master == MEMBERS[1])
    assert reached(world, "demo-broker-0-external") == {MEMBERS[1]}


def test_removed_group_is_taken_out_of_the_routes_by_all_its_brokers() -> None:
    world = replicated(2, size=2)
    world.change(size=1)
    world.idle(1)
    world.run()
    gone = [pod for action, pod in world.brokers.calls if action == "decommission"]
    assert gone == ["demo-broker-1-1", "demo-broker-1-0"]
    assert [name for name in world.names("Pod") if "broker" in name] == MEMBERS[:2]
    assert world.names("StatefulSet") == ["demo-broker-0", "demo-namesrv"]


def test_refused_switchover_is_reported_and_repeated_without_events() -> None:
    world = replicated(2)
    world.brokers.groups.refuses = "a switchover is in progress"
    world.change(flush="Sync")
    world.run(lambda: "has not handed over" in world.condition("Progressing").get("message", ""))
    assert "a switchover is in progress" in world.condition("Progressing")["message"]
    world.idle(10)
    assert [reason for _, reason, _ in world.kube.events if reason == "SwitchingOver"] == []
    world.brokers.groups.refuses = ""
    world.run()
    assert group_of(world).history == [(1, MEMBERS[0]), (2, MEMBERS[1])]


def test_lost_volume_of_a_replica_is_replaced_by_an_empty_one() -> None:
    world = replicated(2)
    watch_service(world)
    world.kube.remove("PersistentVolumeClaim", NAMESPACE, f"store-{MEMBERS[1]}")
    world.kube.remove("Pod", NAMESPACE, MEMBERS[1])
    world.idle(3)
    world.run()
    assert claim_annotation(world, MEMBERS[1]) == "2"
    assert group_of(world).history == [(1, MEMBERS[0])]
    assert group_of(world).in_sync == set(MEMBERS[:2])


def test_manual_failover_is_reported() -> None:
    world = replicated(2, replication={"failover": "Manual"})
    condition = world.condition("FailoverReady")
    assert (condition["status"], condition["reason"]) == ("False", "ManualFailover")
    assert world.condition("ReplicasInSync")["status"] == "True"


def test_denied_permissions_are_reported_and_leave_the_only_broker_unchanged() -> None:
    world = settled()
    uid = world.pod_uids()[MEMBERS[0]]
    world.kube.forbidden |= {("get", "Role"), ("get", "Lease"), ("create", "EndpointSlice")}
    world.change(replicasPerGroup=2)
    world.run(lambda: world.reason("Degraded") == "ApplyFailed")
    world.idle(20)
    assert "Grant the operator this permission" in world.condition("Degraded")["message"]
    assert world.pod_uids()[MEMBERS[0]] == uid
    assert world.get("Pod", MEMBERS[1]) is None
    assert reached(world, "demo-broker-0") == {MEMBERS[0]}
    world.kube.forbidden.clear()
    world.run()
    assert world.condition("ReplicasInSync")["status"] == "True"


def test_member_that_cannot_follow_is_reported() -> None:
    world = replicated(2)
    world.brokers.groups.failed[MEMBERS[1]] = "its log belongs to another group"
    world.run(lambda: world.reason("Degraded") == "ReplicaFailed")
    assert f"{MEMBERS[1]} cannot follow its group: its log belongs" in world.condition("Degraded")["message"]
