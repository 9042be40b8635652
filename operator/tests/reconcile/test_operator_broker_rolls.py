"""Restarts caused by changes of a Broker: affected pods only, one at a time; blocked rollouts."""

import copy
from dataclasses import replace
from typing import NoReturn

import pytest
from delaymq.api_types.broker import DrainMode
from delaymq_operator.reconcile.errors import BrokerRefused
from delaymq_operator.reconcile.ports import Endpoint, Manifest
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.settled import BROKERS, EVERYTHING, is_ready, restarts, settled, watch_rolls


@pytest.fixture
def world() -> FakeWorld:
    """A settled Broker with two groups."""
    return settled(size=2)


def test_new_image_restarts_name_server_and_then_brokers_sequentially(world: FakeWorld) -> None:
    order = restarts(world, lambda: world.change(image="delaymq/broker:2"))
    assert order == ["demo-namesrv-0", "demo-broker-0-0", "demo-broker-1-0"]
    assert world.status["image"] == "delaymq/broker:2"
    drained = [(mode, pod) for mode, pod in world.brokers.calls if mode in ("withdraw", "refuse")]
    assert drained == [
        ("withdraw", "demo-broker-0-0"),
        ("refuse", "demo-broker-0-0"),
        ("withdraw", "demo-broker-1-0"),
        ("refuse", "demo-broker-1-0"),
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"flush": "Sync"}, BROKERS),
        ({"config": {"regionId": "eu"}}, BROKERS),
        ({"config": {"fileReservedTime": "9"}}, []),
        ({"config": {"highSpeedMode": "false"}}, []),
        ({"resources": {"limits": {"memory": "1Gi"}}}, BROKERS),
        ({"nameServers": {"replicas": 1, "resources": {"limits": {"cpu": "1"}}}}, ["demo-namesrv-0"]),
        ({"nameServers": {"replicas": 2}}, ["demo-namesrv-1", *BROKERS]),
        ({"podTemplate": {"labels": {"team": "orders"}}}, EVERYTHING),
        ({"tls": {"secretName": "certificate"}}, EVERYTHING),
        ({"podTemplate": {"env": [{"name": "TZ", "value": "UTC"}]}}, BROKERS),
        ({"external": {"type": "NodePort", "advertisedAddress": "192.0.2.1"}}, BROKERS),
        ({"networkPolicy": {"enabled": True}}, []),
        ({"accessControl": {"secretName": "rules"}}, EVERYTHING),
        ({"storage": {"size": "20Gi"}}, []),
        ({"storage": {"deleteClaim": True}}, []),
        ({"size": 3}, ["demo-broker-2-0"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_change_restarts_only_affected_pods_one_at_a_time(
    world: FakeWorld, change: Manifest, expected: list[str]
) -> None:
    assert restarts(world, lambda: world.change(**change)) == expected


def test_restart_annotation_restarts_everything(world: FakeWorld) -> None:
    assert restarts(world, lambda: world.annotate(restart="1")) == EVERYTHING
    assert restarts(world, lambda: world.annotate(restart="2")) == EVERYTHING


def test_single_group_is_restarted_without_drain() -> None:
    world = settled(size=1)
    assert restarts(world, lambda: world.change(flush="Sync")) == ["demo-broker-0-0"]
    assert world.brokers.calls == []


def test_newer_operator_restarts_nothing_and_reports_outdated_pods(world: FakeWorld) -> None:
    def upgrade() -> None:
        world.settings = replace(world.settings, default_image="delaymq/broker:9")
        world.restart_operator()

    assert restarts(world, upgrade) == []
    assert world.condition("UpToDate")["status"] == "False"
    assert world.reason("UpToDate") == "OperatorNewer"
    assert world.status["image"] == "delaymq/broker:1"
    assert restarts(world, lambda: world.annotate(restart="now")) == EVERYTHING
    assert world.status["image"] == "delaymq/broker:9"
    assert world.condition("UpToDate")["status"] == "True"


def test_failing_image_stops_rollout_until_corrected(world: FakeWorld) -> None:
    watch_rolls(world)
    world.change(image="bad:image")
    world.run(lambda: world.reason("Degraded") == "PodFailing")
    world.idle(60)
    assert world.reason("Degraded") == "PodFailing"
    assert "ImagePullBackOff" in world.condition("Degraded")["message"]
    assert "demo-namesrv-0" in world.condition("Degraded")["message"]
    assert all(is_ready(world.existing("Pod", name)) for name in BROKERS)
    assert any(kind == "Warning" and reason == "PodFailing" for kind, reason, _ in world.kube.events)
    world.change(image="delaymq/broker:3")
    world.idle(1)
    world.run()
    assert world.status["image"] == "delaymq/broker:3"
    assert world.condition("Degraded")["status"] == "False"


def test_status_shows_running_image_instead_of_desired_one(world: FakeWorld) -> None:
    told = []

    world.watch = lambda: told.append(world.status.get("image"))
    world.change(image="delaymq/broker:2")
    world.idle(1)
    world.run()
    assert list(dict.fromkeys(told)) == ["delaymq/broker:1", "delaymq/broker:2, delaymq/broker:1", "delaymq/broker:2"]

    told.clear()
    world.change(image="bad:image")
    world.run(lambda: world.reason("Degraded") == "PodFailing")
    world.idle(60)
    assert set(told) == {"delaymq/broker:2"}


def test_status_shows_no_image_while_no_broker_runs() -> None:
    world = settled(size=1)
    assert world.status["image"] == "delaymq/broker:1"
    world.change(image="bad:image", nameServers={"addresses": ["others:9876"]})
    world.run(lambda: world.reason("Degraded") == "PodFailing")
    world.idle(10)
    assert "demo-broker-0-0" in world.condition("Degraded")["message"]
    assert "image" not in world.status


def test_unready_broker_stops_rollout_while_others_serve(world: FakeWorld) -> None:
    watch_rolls(world)
    world.kube.unready.add("demo-broker-0-0")
    started = len(world.kube.started)
    world.kube.unready.clear()
    world.change(flush="Sync")
    world.run(lambda: "demo-broker-0-0" in world.kube.started[started:])
    world.kube.unready.add("demo-broker-0-0")
    world.idle(120)
    assert world.kube.started[started:] == ["demo-broker-0-0"]
    assert world.reason("Progressing") == "WaitingForPod"
    assert world.reason("Ready") == "GroupsNotReady"
    world.kube.unready.clear()
    world.run()
    assert world.kube.started[started:] == BROKERS


def test_change_during_rollout_restarts_updated_pods_again_and_others_once(world: FakeWorld) -> None:
    watch_rolls(world)
    world.change(flush="Sync")
    started = len(world.kube.started)
    world.run(lambda: "demo-broker-0-0" in world.kube.started[started:])
    world.run(lambda: is_ready(world.existing("Pod", "demo-broker-0-0")))
    world.change(resources={"limits": {"cpu": "2"}})
    world.idle(1)
    world.run()
    assert world.kube.started[started:] == ["demo-broker-0-0", "demo-broker-0-0", "demo-broker-1-0"]


def test_reverted_change_returns_writes_without_restart(world: FakeWorld) -> None:
    world.change(flush="Sync")
    world.run(lambda: ("withdraw", "demo-broker-0-0") in world.brokers.calls)
    started = len(world.kube.started)
    world.change(flush="Async")
    world.idle(1)
    world.run()
    assert world.kube.started[started:] == []
    assert world.brokers.calls[-1] == ("none", "demo-broker-0-0")


def test_own_name_servers_are_kept_until_all_brokers_use_external_ones(world: FakeWorld) -> None:
    seen = []

    def watch() -> None:
        if world.get("StatefulSet", "demo-namesrv") is not None:
            assert world.get("Service", "demo-namesrv") is not None, "clients lost their NameServers too early"
        if world.get("Pod", "demo-namesrv-0") is None:
            seen.append([entry["value"] for pod in BROKERS for entry in environment(world, pod)])

    world.watch = watch
    world.change(nameServers={"addresses": ["ns.default:9876"]})
    world.idle(1)
    world.run()
    world.idle(5)
    assert world.names("StatefulSet") == ["demo-broker-0", "demo-broker-1"]
    assert not [name for kind in ("Service", "PodDisruptionBudget") for name in world.names(kind) if "namesrv" in name]
    assert set(seen[0]) == {"ns.default:9876"}
    assert world.status["nameServers"] == ["ns.default:9876"]


def environment(world: FakeWorld, pod: str) -> list[dict[str, str]]:
    entries = world.existing("Pod", pod)["spec"]["containers"][0]["env"]
    return [entry for entry in entries if entry["name"] == "DELAYMQ_NAMESRV_ADDR"]


def test_hot_settings_reach_running_brokers_and_can_be_reset(world: FakeWorld) -> None:
    assert restarts(world, lambda: world.change(config={"fileReservedTime": "9"})) == []
    assert {broker.settings["fileReservedTime"] for broker in world.brokers.running.values()} == {"9"}
    assert restarts(world, lambda: world.change(config={})) == []
    assert {broker.settings["fileReservedTime"] for broker in world.brokers.running.values()} == {"72"}


def test_delay_levels_reach_running_brokers_without_restart(world: FakeWorld) -> None:
    world.levels("mine", "1s", "1h")
    assert restarts(world, lambda: world.change(delayLevelConfigRef={"name": "mine"})) == []
    assert world.status["levels"] == "1s 1h"
    assert restarts(world, lambda: world.levels("mine", "1s", "2h", overflow="Reject")) == []
    world.run(lambda: world.status["levels"] == "1s 2h")
    assert {broker.settings["delayLevelOverflow"] for broker in world.brokers.running.values()} == {"reject"}
    assert "messageDelayLevel=1s 2h" in world.existing("ConfigMap", "demo-broker-conf")["data"]["broker.conf"]


def test_dry_run_of_delay_levels_leaves_brokers_with_the_last_table(world: FakeWorld) -> None:
    applied = {"applied": {"messageDelayLevel": "1s 1h", "delayLevelOverflow": "reject"}}
    world.levels("mine", "1s", "1h", overflow="Reject", status=applied)
    assert restarts(world, lambda: world.change(delayLevelConfigRef={"name": "mine"})) == []
    dry = {"delaymq.io/dry-run": "true"}
    assert restarts(world, lambda: world.levels("mine", "1s", "9h", annotations=dry)) == []
    assert world.status["levels"] == "1s 1h"
    assert {broker.settings["delayLevelOverflow"] for broker in world.brokers.running.values()} == {"reject"}
    assert "messageDelayLevel=1s 1h" in world.existing("ConfigMap", "demo-broker-conf")["data"]["broker.conf"]
    assert restarts(world, lambda: world.levels("mine", "1s", "9h")) == []
    world.run(lambda: world.status["levels"] == "1s 9h")


def test_dry_run_of_the_first_table_changes_nothing(world: FakeWorld) -> None:
    before = world.status["levels"]
    world.levels("mine", "1s", "9h", annotations={"delaymq.io/dry-run": "true"})
    world.change(delayLevelConfigRef={"name": "mine"})
    world.run(lambda: world.reason("Degraded") == "DelayLevelConfigMissing")
    assert "no table in effect: remove the annotation" in world.condition("Degraded")["message"]
    assert world.status["levels"] == before


def test_unreachable_broker_is_reported_and_does_not_block_others(world: FakeWorld) -> None:
    world.brokers.mute.add("demo-broker-0-0")
    world.run(lambda: world.reason("Degraded") == "BrokerUnreachable")
    assert "demo-0" in world.condition("Degraded")["message"]
    assert restarts_when_mute(world) == BROKERS


def restarts_when_mute(world: FakeWorld) -> list[str]:
    started = len(world.kube.started)
    world.change(flush="Sync")
    world.run(lambda: world.kube.started[started:] == BROKERS)
    world.brokers.mute.clear()
    world.run()
    return world.kube.started[started:]


def test_brokers_that_reject_drain_are_restarted_after_timeout(world: FakeWorld) -> None:
    async def refuse(endpoint: Endpoint, mode: DrainMode, lease_ms: int) -> NoReturn:
        raise BrokerRefused(endpoint.host, "not_found", "there is no /api/v1/drain")

    drain, world.brokers.drain = world.brokers.drain, refuse
    started = len(world.kube.started)
    world.change(flush="Sync")
    world.idle(10)
    assert world.kube.started[started:] == []
    assert "there is no /api/v1/drain" in world.condition("Progressing")["message"]
    world.run()
    assert world.kube.started[started:] == BROKERS
    world.brokers.drain = drain
    assert restarts(world, lambda: world.change(flush="Async")) == BROKERS


def test_clock_set_back_delays_nothing(world: FakeWorld) -> None:
    world.now_ms -= 3_600_000
    world._look_at_ms = 0
    world.brokers.stores["store-demo-broker-0-0"].pending = 7
    world.idle(2)
    assert world.status["pending"] == 7
    world.brokers.mute.add(BROKERS[0])
    world.idle(20)
    world.now_ms -= 3_600_000
    world._look_at_ms = 0
    world.brokers.traffic = False
    assert restarts_when_mute(world) == BROKERS


def test_replaced_token_restarts_brokers(world: FakeWorld) -> None:
    world.kube.objects["Secret", NAMESPACE, "demo-http-token"]["data"]["token"] = "bmV3"
    world.restart_operator()
    assert restarts(world, lambda: None) == BROKERS


@pytest.mark.parametrize("nonsense", ["{}", "[]", "x", '{"metadata": [], "spec": 1}', '{"spec": {"containers": [1]}}'])
def test_invalid_applied_annotation_is_replaced_without_restart(world: FakeWorld, nonsense: str) -> None:
    noted = world.existing("StatefulSet", "demo-broker-0")["metadata"]["annotations"]["delaymq.io/applied"]
    world.kube.objects["StatefulSet", NAMESPACE, "demo-broker-0"]["metadata"]["annotations"]["delaymq.io/applied"] = (
        nonsense
    )
    assert restarts(world, world.restart_operator) == []
    assert world.existing("StatefulSet", "demo-broker-0")["metadata"]["annotations"]["delaymq.io/applied"] == noted


def test_stale_cache_causes_no_repeated_apply_or_restart() -> None:
    world = FakeWorld(lag_ticks=4)
    world.create(size=2)
    world.run(ticks=200)
    world.kube.requests.clear()
    assert restarts(world, lambda: world.change(image="delaymq/broker:2")) == EVERYTHING
    applied = [name for verb, kind, name in world.kube.requests if (verb, kind) == ("apply", "StatefulSet")]
    assert sorted(applied) == ["demo-broker-0", "demo-broker-1", "demo-namesrv", "demo-namesrv-trial"]


def test_pod_replaced_by_another_client_is_not_deleted(
    world: FakeWorld,
) -> None:
    world.change(flush="Sync")
    world.run(lambda: ("refuse", "demo-broker-0-0") in world.brokers.calls)
    world.kube.requests.clear()
    pod = copy.deepcopy(world.existing("Pod", "demo-broker-0-0"))
    pod["metadata"]["uid"] = "another-uid"
    world.kube.objects["Pod", NAMESPACE, "demo-broker-0-0"] = pod
    world.now_ms += 5_000
    world.brokers.running["demo-broker-0-0"].pod_uid = "another-uid"
    world.reconcile()
    assert ("delete", "Pod", "demo-broker-0-0") not in world.kube.requests
