"""Lost volumes of replicas: detected by their nodes, and replaced on request once the others have every message."""

import json
from collections.abc import Callable, Sequence

import pytest
from delaymq_operator.reconcile.broker.model.memory import BrokerMemory, LostVolume
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.trees import copied
from delaymq_operator_testing.worlds.replicated import MEMBERS, claim_annotation, group_of, reached, replicated
from delaymq_testing.repetitions import DEATHS_SHARE, one_in

AFTER_S = 130
HOSTNAME = "kubernetes.io/hostname"


def put_node(world: FakeWorld, name: str) -> None:
    world.kube.put({"kind": "Node", "metadata": {"name": name, "namespace": "", "labels": {HOSTNAME: name}}})


def bind(world: FakeWorld, member: str, *terms: Manifest) -> None:
    """Give the claim of a member a volume with these node selector terms."""
    claim = copied(world.existing("PersistentVolumeClaim", f"store-{member}"))
    claim["spec"]["volumeName"] = f"pv-{member}"
    world.kube.put(claim)
    affinity = {"required": {"nodeSelectorTerms": list(terms)}}
    metadata = {"name": f"pv-{member}", "namespace": ""}
    world.kube.put({"kind": "PersistentVolume", "metadata": metadata, "spec": {"nodeAffinity": affinity}})


def on_node(name: str, key: str = HOSTNAME) -> Manifest:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [name]}]}


def local(replicas: int = 2, after_s: int | None = AFTER_S) -> FakeWorld:
    """Return brokers whose volumes are bound to one node each: `node-0` and so on."""
    replication = {} if after_s is None else {"replaceLostVolumesAfterSeconds": after_s}
    world = replicated(replicas, replication=replication)
    for ordinal in range(replicas):
        put_node(world, f"node-{ordinal}")
        bind(world, MEMBERS[ordinal], on_node(f"node-{ordinal}"))
    return world


def stop(world: FakeWorld, member: str) -> None:
    """Take the node of a member away: its pod cannot be scheduled while it has the same claim."""
    world.kube.unusable.add(claim_uid(world, member))
    world.kube.remove("Pod", NAMESPACE, member)


def lose(world: FakeWorld, ordinal: int) -> None:
    """Delete a node together with the volume and the pod of its member."""
    stop(world, MEMBERS[ordinal])
    world.kube.remove("Node", "", f"node-{ordinal}")


def claim_uid(world: FakeWorld, member: str) -> str:
    return str(world.existing("PersistentVolumeClaim", f"store-{member}")["metadata"]["uid"])


def wait_replaced(world: FakeWorld, member: str, before: str) -> None:
    """Step until the claim of a member is another one, and all members are in sync."""

    def is_replaced() -> bool:
        claim = world.get("PersistentVolumeClaim", f"store-{member}")
        return claim is not None and claim["metadata"]["uid"] != before

    world.run(is_replaced)
    world.run(lambda: bool(world.condition("ReplicasInSync")["status"] == "True"))


def lost_volumes(world: FakeWorld) -> list[LostVolume]:
    return [found for found in world.memory.of(world.key, BrokerMemory).lost_volumes.values() if found.why]


def lose_until(world: FakeWorld, ordinal: int, *, left_s: int) -> None:
    """Lose a volume, and step until some seconds before it is replaced."""
    lose(world, ordinal)
    world.run(lambda: bool(lost_volumes(world)))
    (found,) = lost_volumes(world)
    world.run(lambda: world.now_ms >= found.since_ms + (AFTER_S - left_s) * 1000)


def told(world: FakeWorld, reason: str) -> list[str]:
    return [message for _, each, message in world.kube.events if each == reason]


def test_volume_of_a_deleted_node_is_replaced_after_the_stated_time() -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    lose(world, 1)
    world.idle(AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before
    state = world.condition("Degraded")
    assert state["reason"] == "VolumeLost"
    assert f"no node has {HOSTNAME}=node-1. The operator replaces it after " in state["message"]
    wait_replaced(world, MEMBERS[1], before)
    world.run()
    assert world.condition("Degraded")["status"] == "False"
    (message,) = told(world, "ReplacingVolume")
    assert "is replaced (epoch 1, in sync: demo-broker-0-0, log confirmed to 1000 of 1000)" in message
    assert claim_annotation(world, MEMBERS[1]) == "2"
    assert world.failures == []


def test_volume_of_the_former_master_is_replaced_after_the_failover() -> None:
    world = local(3)
    address = world.status["groups"][0]["address"]
    before = claim_uid(world, MEMBERS[0])
    lose(world, 0)
    wait_replaced(world, MEMBERS[0], before)
    assert group_of(world).master == MEMBERS[1]
    assert reached(world, "demo-broker-0") == {MEMBERS[1]}
    assert world.status["groups"][0]["address"] == address
    assert claim_annotation(world, MEMBERS[0]) == "3"


def test_lost_volume_is_only_reported_without_a_request() -> None:
    world = local(after_s=None)
    before = claim_uid(world, MEMBERS[1])
    lose(world, 1)
    world.idle(2 * AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before
    state = world.condition("Degraded")
    assert state["reason"] == "VolumeLost"
    assert f"delete the claim and then pod {MEMBERS[1]}" in state["message"]


def test_volume_of_a_node_that_returns_in_time_is_kept() -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    lose(world, 1)
    world.idle(AFTER_S - 10)
    put_node(world, "node-1")
    world.idle(AFTER_S)
    assert world.reason("Degraded") != "VolumeLost"
    world.kube.remove("Node", "", "node-1")
    # The time begins again.
    world.idle(AFTER_S - 10)
    assert claim_uid(world, MEMBERS[1]) == before
    assert told(world, "ReplacingVolume") == []


def test_volume_of_a_node_that_returns_after_the_last_check_is_kept() -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    lose_until(world, 1, left_s=2)
    put_node(world, "node-1")
    world.idle(AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before
    assert told(world, "ReplacingVolume") == []


def keep_node(world: FakeWorld) -> None:
    """The node exists, and does not respond."""


def bind_to_zone(world: FakeWorld) -> None:
    bind(world, MEMBERS[1], on_node("zone-1", "topology.kubernetes.io/zone"))
    world.kube.remove("Node", "", "node-1")


def bind_to_several_nodes(world: FakeWorld) -> None:
    bind(world, MEMBERS[1], on_node("node-1"), on_node("node-0"))
    world.kube.remove("Node", "", "node-1")


def bind_anywhere(world: FakeWorld) -> None:
    bind(world, MEMBERS[1])
    world.kube.remove("Node", "", "node-1")


def exclude_nodes(world: FakeWorld) -> None:
    expression = {"key": HOSTNAME, "operator": "NotIn", "values": ["node-1"]}
    bind(world, MEMBERS[1], {"matchExpressions": [expression]})


@pytest.mark.parametrize(
    "change", [keep_node, bind_to_zone, bind_to_several_nodes, bind_anywhere, exclude_nodes],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_volume_that_may_return_is_never_replaced(change: Callable[[FakeWorld], None]) -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    stop(world, MEMBERS[1])
    change(world)
    world.idle(3 * AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before
    assert world.reason("Degraded") == "PodFailing"


@pytest.mark.parametrize("key", [HOSTNAME, "topology.topolvm.io/node", "openebs.io/nodename"])
def test_labels_of_single_nodes_are_recognised(key: str) -> None:
    world = local()
    bind(world, MEMBERS[1], on_node("node-1", key))
    lose(world, 1)
    world.run(lambda: world.reason("Degraded") == "VolumeLost")


def test_volume_of_a_named_node_is_recognised() -> None:
    world = local()
    field = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    bind(world, MEMBERS[1], {"matchFields": [field]})
    stop(world, MEMBERS[1])
    world.idle(30)
    assert world.reason("Degraded") == "PodFailing"
    world.kube.remove("Node", "", "node-1")
    world.run(lambda: world.reason("Degraded") == "VolumeLost")


def test_claim_whose_volume_was_deleted_is_replaced() -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    stop(world, MEMBERS[1])
    world.existing("PersistentVolumeClaim", f"store-{MEMBERS[1]}")["status"]["phase"] = "Lost"
    world.kube.remove("PersistentVolume", "", f"pv-{MEMBERS[1]}")
    wait_replaced(world, MEMBERS[1], before)
    assert f"its PersistentVolume pv-{MEMBERS[1]} was deleted" in told(world, "ReplacingVolume")[0]


def test_nothing_is_replaced_without_a_master() -> None:
    world = local(3)
    before = [claim_uid(world, name) for name in MEMBERS]
    world.brokers.groups.slow.update(MEMBERS[1:])
    group_of(world).in_sync = {MEMBERS[0]}
    world.watch = lambda: None
    lose(world, 0)
    world.idle(3 * AFTER_S)
    assert [claim_uid(world, name) for name in MEMBERS] == before
    assert {note for note in ("NoMaster", "VolumeLost") if note in str(world.kube.events)} == {"NoMaster", "VolumeLost"}


def write_record(world: FakeWorld, *, epoch: int = 1, master: str = MEMBERS[0], in_sync: Sequence[str] = ()) -> None:
    lease = copied(world.existing("Lease", "demo-broker-0-register"))
    record = {"epoch": epoch, "master": master, "inSync": list(in_sync or [master])}
    lease["metadata"]["annotations"]["delaymq.io/register"] = json.dumps(record)
    world.kube.put(lease)


def other_epoch(world: FakeWorld) -> str:
    write_record(world, epoch=9)
    return f"the Lease does not state that {MEMBERS[0]} is the master of epoch 1"


def other_master(world: FakeWorld) -> str:
    write_record(world, master=MEMBERS[2])
    return f"the Lease does not state that {MEMBERS[0]} is the master of epoch 1"


def no_record(world: FakeWorld) -> str:
    lease = copied(world.existing("Lease", "demo-broker-0-register"))
    lease["metadata"]["annotations"]["delaymq.io/register"] = "?"
    world.kube.put(lease)
    return f"the Lease does not state that {MEMBERS[0]} is the master of epoch 1"


def still_counted(world: FakeWorld) -> str:
    write_record(world, in_sync=MEMBERS[:2])
    return f"{MEMBERS[0]} counts {MEMBERS[1]} as in sync"


def still_connected(world: FakeWorld) -> str:
    world.brokers.groups.lingering.add(MEMBERS[1])
    return f"{MEMBERS[0]} is connected to {MEMBERS[1]}: the broker still runs"


def lease_unreachable(world: FakeWorld) -> str:
    world.brokers.groups.registers_unreachable = True
    return f"{MEMBERS[0]} cannot reach its Lease"


def other_broker_responds(world: FakeWorld) -> str:
    world.brokers.groups.responds_as = "other-broker-0-0"
    return "demo-0 has no master"


def promoted(world: FakeWorld) -> str:
    world.annotate(promote=f"{MEMBERS[0]}@1")
    return "the annotation delaymq.io/promote is set"


DOUBTS = [
    other_epoch, other_master, no_record, still_counted, still_connected, lease_unreachable, other_broker_responds,
    promoted,
]  # fmt: skip


@pytest.mark.parametrize("doubt", DOUBTS, ids=lambda doubt: doubt.__name__)
def test_nothing_is_replaced_in_doubt_about_the_master_or_the_member(doubt: Callable[[FakeWorld], str]) -> None:
    world = local(3)
    before = claim_uid(world, MEMBERS[1])
    lose(world, 1)
    world.idle(AFTER_S - 10)
    why = doubt(world)
    world.idle(AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before
    assert told(world, "ReplacingVolume") == []
    assert f"is not replaced yet: {why}" in world.condition("Degraded")["message"]


@pytest.mark.parametrize("change", ["paused", "deleted"])
def test_change_of_the_broker_that_the_cache_lacks_prevents_a_replacement(change: str) -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    lose_until(world, 1, left_s=3)
    world.lag_ticks = 10_000
    if change == "paused":
        world.change(paused=True)
    else:
        world.broker["metadata"]["deletionTimestamp"] = "2026-11-28T00:00:00Z"
    world.idle(20)
    assert claim_uid(world, MEMBERS[1]) == before


def test_paused_broker_reports_a_lost_volume_and_keeps_it() -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    world.change(paused=True)
    lose(world, 1)
    world.idle(2 * AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before
    assert "It is not replaced while spec.paused is true." in world.condition("Degraded")["message"]


def test_failed_checks_and_new_pods_do_not_restart_the_time() -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    lose(world, 1)
    world.idle(60)
    world.kube.forbidden.add(("list", "Node"))
    world.kube.remove("Pod", NAMESPACE, MEMBERS[1])
    world.idle(30)
    assert claim_uid(world, MEMBERS[1]) == before
    world.kube.forbidden.clear()
    world.run(lambda: told(world, "ReplacingVolume") != [], ticks=AFTER_S - 60)


def test_nothing_is_replaced_while_checks_fail() -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    lose(world, 1)
    world.idle(60)
    world.kube.forbidden.add(("list", "Node"))
    world.idle(2 * AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before
    assert "is not replaced yet: cannot list resource Node" in world.condition("Degraded")["message"]


def test_volume_of_an_existing_node_that_lacks_the_label_is_kept() -> None:
    world = local()
    bind(world, MEMBERS[1], on_node("node-1", "topology.topolvm.io/node"))
    stop(world, MEMBERS[1])
    world.idle(2 * AFTER_S)
    assert world.reason("Degraded") == "PodFailing"
    world.kube.remove("Node", "", "node-1")
    put_node(world, "machine-1")
    bind(world, MEMBERS[1], on_node("other-1", "topology.topolvm.io/node"))
    # Its pod runs on a node that exists, although nothing responds.
    world.kube.unusable.clear()
    world.kube.unready.add(MEMBERS[1])
    world.brokers.groups.silent.add(MEMBERS[1])
    put_node(world, "node-1")
    before = claim_uid(world, MEMBERS[1])
    world.idle(2 * AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before


def test_claim_whose_volume_refers_to_another_claim_is_kept() -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    stop(world, MEMBERS[1])
    world.existing("PersistentVolumeClaim", f"store-{MEMBERS[1]}")["status"]["phase"] = "Lost"
    world.idle(2 * AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before


@pytest.mark.parametrize("request_", [("get", "PersistentVolume"), ("list", "Node")])
def test_missing_permission_is_reported_and_nothing_is_replaced(request_: tuple[str, str]) -> None:
    world = local()
    before = claim_uid(world, MEMBERS[1])
    world.kube.forbidden.add(request_)
    lose(world, 1)
    world.idle(3 * AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before
    state = world.condition("Degraded")
    assert state["reason"] == "PodFailing"
    assert "Install the chart with rbac.lostVolumes=true." in state["message"]


def test_operator_asks_for_nodes_only_while_a_broker_does_not_run() -> None:
    world = local()
    world.kube.requests.clear()
    world.idle(120)
    assert not {"Node", "PersistentVolume"} & {kind for _, kind, _ in world.kube.requests}
    lose(world, 1)
    world.kube.requests.clear()
    world.idle(60)
    assert 1 <= len([kind for _, kind, _ in world.kube.requests if kind == "Node"]) <= 8


def test_surplus_broker_gets_no_new_volume() -> None:
    world = local(2)
    before = claim_uid(world, MEMBERS[1])
    lose(world, 1)
    world.change(replicasPerGroup=1)
    world.idle(2 * AFTER_S)
    assert claim_uid(world, MEMBERS[1]) == before
    assert told(world, "ReplacingVolume") == []


def history(dies_at: int | None, *, after: bool) -> FakeWorld:
    """Return the world after a replacement during which the operator crashed at its n-th call."""
    world = local(3)
    before = claim_uid(world, MEMBERS[1])
    lose(world, 1)
    world.idle(AFTER_S)
    world.calls, world.dies_at, world.dies_after = [], dies_at, after
    wait_replaced(world, MEMBERS[1], before)
    world.run()
    assert world.failures == []
    assert group_of(world).history == [(1, MEMBERS[0])]
    assert [claim_annotation(world, name) for name in MEMBERS] == ["3", "3", "3"]
    return world


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_replacement_has_same_outcome_wherever_operator_crashes(after: bool) -> None:
    calls = history(None, after=after).calls
    moments = [number for number, label in enumerate(calls, 1) if calls[: number - 1].count(label) < 3]
    for dies_at in one_in(DEATHS_SHARE, moments):
        assert history(dies_at, after=after).deaths == 1
