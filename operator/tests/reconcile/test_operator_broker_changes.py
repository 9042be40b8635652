"""A Broker is made, and changed while it runs."""

import asyncio
import copy
from dataclasses import replace

import pytest
from delaymq_operator.reconcile.broker import reconcile_broker
from delaymq_operator.reconcile.errors import BrokerRefused
from delaymq_operator.reconcile.world import Outcome
from fakes_world import NAMESPACE, FakeWorld


@pytest.fixture
def world():
    """A settled Broker with two groups."""
    return settled(size=2)


def settled(**spec):
    found = FakeWorld()
    # What a spec may name: without it nothing would be changed.
    data = dict.fromkeys(("plain_acl.yml", "accessKey", "secretKey", "tls.crt", "tls.key"), "c29tZXRoaW5n")
    for name in ("rules", "certificate"):
        found.kube.put({"kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data})
    found.create(**spec)
    found.run()
    found.brokers.calls.clear()
    found.kube.events.clear()
    return found


def restarts(world, change):
    """Pods that were restarted by the change, in their order, and what was asked of brokers meanwhile."""
    before = world.pod_uids()
    started = len(world.kube.started)
    watch_rolls(world)
    change()
    world.idle(1)
    world.run()
    again = world.kube.started[started:]
    assert len(again) == len(set(again)), "a pod was restarted twice"
    assert {name for name, uid in world.pod_uids().items() if before.get(name, uid) != uid} <= set(again)
    return again


def watch_rolls(world):
    """From now on: no two brokers are down, and none is stopped that still takes sends while another could."""

    def watch():
        size = world.broker["spec"].get("size", 1)
        pods = [world.get("Pod", f"demo-broker-{group}-0") for group in range(size)]
        ready = [pod for pod in pods if pod and is_ready(pod)]
        assert len(ready) >= size - 1, "two brokers are down"
        for pod in pods:
            if size > 1 and pod and "deletionTimestamp" in pod["metadata"]:
                broker = world.brokers.running.get(pod["metadata"]["name"])
                assert broker is None or broker.drain.mode == "refuse", "stopped while it takes sends"

    world.watch = watch


def is_ready(pod):
    conditions = (pod.get("status") or {}).get("conditions", [])
    return "deletionTimestamp" not in pod["metadata"] and any(each["status"] == "True" for each in conditions)


def test_a_broker_is_made_and_becomes_ready():
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


def test_a_settled_broker_costs_no_request(world):
    world.kube.requests.clear()
    world.idle(50)
    assert world.kube.requests == []


def test_others_get_a_turn_between_the_objects_of_a_large_broker():
    world = settled(size=32)

    async def turns_during_a_pass():
        turns = 0
        task = asyncio.create_task(reconcile_broker(world.key, world.world()))
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(turns_during_a_pass()) > 64


def test_figures_are_written_once_an_interval(world):
    world.kube.requests.clear()
    for number in range(200):
        world.brokers.stores["store-demo-broker-0-0"].offsets[1] = 100 + number
        world.step()
    assert 2 <= len(world.kube.requests) <= 3
    assert set(world.kube.requests) == {("patch status", "Broker", "demo")}


def test_each_pass_says_when_to_look_again(world):
    world.tick()
    assert world.reconcile() == Outcome(requeue_after_s=world.settings.poll_interval_s)
    world.change(image="delaymq/broker:2")
    world.tick()
    assert world.reconcile() == Outcome(requeue_after_s=world.settings.progress_interval_s)


def test_a_new_image_restarts_the_name_server_and_then_one_broker_after_the_other(world):
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


BROKERS = ["demo-broker-0-0", "demo-broker-1-0"]
EVERYTHING = ["demo-namesrv-0", *BROKERS]


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
        ({"accessControl": {"secretName": "rules"}}, BROKERS),
        ({"storage": {"size": "20Gi"}}, []),
        ({"storage": {"deleteClaim": True}}, []),
        ({"size": 3}, ["demo-broker-2-0"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_a_change_restarts_only_what_must_restart_one_at_a_time(world, change, expected):
    assert restarts(world, lambda: world.change(**change)) == expected


def test_the_restart_annotation_restarts_everything(world):
    assert restarts(world, lambda: world.annotate(restart="1")) == EVERYTHING
    assert restarts(world, lambda: world.annotate(restart="2")) == EVERYTHING


def test_a_single_group_is_restarted_at_once():
    world = settled(size=1)
    assert restarts(world, lambda: world.change(flush="Sync")) == ["demo-broker-0-0"]
    assert world.brokers.calls == []


def test_a_newer_operator_restarts_nothing_and_says_that_it_would_make_pods_otherwise(world):
    def upgrade():
        world.settings = replace(world.settings, default_image="delaymq/broker:9")
        world.restart_operator()

    assert restarts(world, upgrade) == []
    assert world.condition("UpToDate")["status"] == "False"
    assert world.reason("UpToDate") == "OperatorNewer"
    assert world.status["image"] == "delaymq/broker:1"
    assert restarts(world, lambda: world.annotate(restart="now")) == EVERYTHING
    assert world.status["image"] == "delaymq/broker:9"
    assert world.condition("UpToDate")["status"] == "True"


def test_a_failing_new_image_stops_the_roll_and_says_why_and_a_good_one_goes_on(world):
    watch_rolls(world)
    world.change(image="bad:image")
    world.run(lambda: world.reason("Degraded") == "PodFailing")
    world.idle(60)
    assert world.reason("Degraded") == "PodFailing"
    assert "ImagePullBackOff" in world.condition("Degraded")["message"]
    assert "demo-namesrv-0" in world.condition("Degraded")["message"]
    assert all(is_ready(world.get("Pod", name)) for name in BROKERS)
    assert any(kind == "Warning" and reason == "PodFailing" for kind, reason, _ in world.kube.events)
    world.change(image="delaymq/broker:3")
    world.idle(1)
    world.run()
    assert world.status["image"] == "delaymq/broker:3"
    assert world.condition("Degraded")["status"] == "False"


def test_a_failing_broker_stops_the_roll_with_all_others_serving(world):
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


def test_a_change_in_the_midst_of_a_roll_restarts_each_pod_for_the_last_one_only_once_more(world):
    watch_rolls(world)
    world.change(flush="Sync")
    started = len(world.kube.started)
    world.run(lambda: "demo-broker-0-0" in world.kube.started[started:])
    world.run(lambda: is_ready(world.get("Pod", "demo-broker-0-0")))
    world.change(resources={"limits": {"cpu": "2"}})
    world.idle(1)
    world.run()
    assert world.kube.started[started:] == ["demo-broker-0-0", "demo-broker-0-0", "demo-broker-1-0"]


def test_a_change_that_is_taken_back_before_the_restart_gives_the_writes_back(world):
    world.change(flush="Sync")
    world.run(lambda: ("withdraw", "demo-broker-0-0") in world.brokers.calls)
    started = len(world.kube.started)
    world.change(flush="Async")
    world.idle(1)
    world.run()
    assert world.kube.started[started:] == []
    assert world.brokers.calls[-1] == ("none", "demo-broker-0-0")


def test_drift_is_repaired_without_a_restart(world):
    service = copy.deepcopy(world.get("Service", "demo-namesrv"))
    service["spec"]["ports"][0]["port"] = 1
    service["spec"]["sessionAffinity"] = "ClientIP"
    world.kube.put(service)
    world.kube.remove("ConfigMap", NAMESPACE, "demo-broker-conf")
    stateful_set = copy.deepcopy(world.get("StatefulSet", "demo-broker-0"))
    stateful_set["spec"]["template"]["spec"]["containers"][0]["image"] = "somebody:else"
    world.kube.put(stateful_set)
    assert restarts(world, lambda: None) == []
    assert world.get("Service", "demo-namesrv")["spec"]["ports"][0]["port"] == 9876
    assert world.get("Service", "demo-namesrv")["spec"]["sessionAffinity"] == "ClientIP"
    assert world.get("ConfigMap", "demo-broker-conf") is not None
    repaired = world.get("StatefulSet", "demo-broker-0")
    assert repaired["spec"]["template"]["spec"]["containers"][0]["image"] == "delaymq/broker:1"


def test_a_field_that_somebody_else_keeps_changing_is_not_fought_for(world):
    def admission(kind, body, live, original=world.kube._admit):
        original(kind, body, live)
        if kind == "PodDisruptionBudget":
            body["spec"]["maxUnavailable"] = 7

    world.kube._admit = admission
    budget = copy.deepcopy(world.get("PodDisruptionBudget", "demo-broker"))
    budget["spec"]["maxUnavailable"] = 7
    world.kube.put(budget)
    world.kube.requests.clear()
    world.idle(30)
    assert [request for request in world.kube.writes() if request[0] == "apply"] == [
        ("apply", "PodDisruptionBudget", "demo-broker")
    ]


def test_an_object_that_somebody_changes_back_each_time_is_left_to_them_for_a_while(world):
    def change_back():
        budget = copy.deepcopy(world.get("PodDisruptionBudget", "demo-broker"))
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
    assert world.get("PodDisruptionBudget", "demo-broker")["spec"]["maxUnavailable"] == 1
    assert world.condition("Degraded")["status"] == "False"


def test_what_admission_makes_of_an_object_is_accepted():
    world = FakeWorld()
    admit = world.kube._admit

    def admission(kind, body, live):
        admit(kind, body, live)
        if kind == "PodDisruptionBudget":
            body["spec"]["maxUnavailable"] = 7

    world.kube._admit = admission
    world.create()
    world.run()
    world.idle(30)
    assert world.kube.requests.count(("apply", "PodDisruptionBudget", "demo-broker")) == 1


def test_what_is_no_longer_wanted_is_removed(world):
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


def test_own_name_servers_stay_until_every_broker_uses_the_others(world):
    seen = []

    def watch():
        if world.get("StatefulSet", "demo-namesrv") is not None:
            assert world.get("Service", "demo-namesrv") is not None, "clients lost their NameServers too early"
        if world.get("Pod", "demo-namesrv-0") is None:
            seen.append([entry["value"] for pod in BROKERS for entry in environment(world, pod)])

    world.watch = watch
    world.change(nameServers={"addresses": ["ns.other:9876"]})
    world.idle(1)
    world.run()
    world.idle(5)
    assert world.names("StatefulSet") == ["demo-broker-0", "demo-broker-1"]
    assert not [name for kind in ("Service", "PodDisruptionBudget") for name in world.names(kind) if "namesrv" in name]
    assert set(seen[0]) == {"ns.other:9876"}
    assert world.status["nameServers"] == ["ns.other:9876"]


def environment(world, pod):
    entries = world.get("Pod", pod)["spec"]["containers"][0]["env"]
    return [entry for entry in entries if entry["name"] == "DELAYMQ_NAMESRV_ADDR"]


def test_paused_changes_nothing_but_tells_what_is(world):
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


def test_hot_settings_reach_running_brokers_and_go_back_to_their_default(world):
    assert restarts(world, lambda: world.change(config={"fileReservedTime": "9"})) == []
    assert {broker.settings["fileReservedTime"] for broker in world.brokers.running.values()} == {"9"}
    assert restarts(world, lambda: world.change(config={})) == []
    assert {broker.settings["fileReservedTime"] for broker in world.brokers.running.values()} == {"72"}


def test_levels_reach_running_brokers_without_a_restart(world):
    world.levels("mine", "1s", "1h")
    assert restarts(world, lambda: world.change(delayLevelConfigRef={"name": "mine"})) == []
    assert world.status["levels"] == "1s 1h"
    assert restarts(world, lambda: world.levels("mine", "1s", "2h", overflow="Reject")) == []
    world.run(lambda: world.status["levels"] == "1s 2h")
    assert {broker.settings["delayLevelOverflow"] for broker in world.brokers.running.values()} == {"reject"}
    assert "messageDelayLevel=1s 2h" in world.get("ConfigMap", "demo-broker-conf")["data"]["broker.conf"]


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"config": {"fileReservedTyme": "9"}}, "InvalidConfig", "did you mean fileReservedTime"),
        ({"config": {"fileReservedTime": "soon"}}, "InvalidConfig", "is not a whole number"),
        ({"config": {"brokerName": "x"}}, "InvalidSpec", "belongs to the operator"),
        ({"delayLevelConfigRef": {"name": "none"}}, "DelayLevelConfigMissing", "no DelayLevelConfig none"),
        ({"delayLevelConfigRef": {"name": "bad"}}, "DelayLevelConfigInvalid", "is out of range"),
        ({"podTemplate": {"env": [{"name": "DELAYMQ_LISTEN_PORT", "value": "1"}]}}, "InvalidConfig", "spec.config"),
        ({"size": "many"}, "InvalidSpec", "spec.size"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else None,
)
def test_a_bad_spec_changes_nothing_and_waits_for_a_good_one(world, spec, reason, words):
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


def test_a_bad_spec_of_a_new_broker_makes_nothing_and_is_not_looked_at_again():
    world = FakeWorld()
    world.create(config={"nonsense": "1"})
    world.cache.sync()
    assert world.reconcile() == Outcome()
    assert world.reason("Degraded") == "InvalidConfig"
    assert world.names("StatefulSet") == []


def test_a_broker_that_is_gone_is_forgotten(world):
    world.kube.remove("Broker", NAMESPACE, "demo")
    world.cache.sync()
    world.kube.requests.clear()
    assert world.reconcile() == Outcome()
    assert world.kube.requests == []


def test_an_object_of_somebody_else_is_not_taken_over():
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
    assert world.get("ConfigMap", "demo-broker-conf")["data"] == {"a": "b"}


def test_a_broker_that_does_not_answer_is_named_and_stops_nobody_else(world):
    world.brokers.mute.add("demo-broker-0-0")
    world.run(lambda: world.reason("Degraded") == "BrokerUnreachable")
    assert "demo-0" in world.condition("Degraded")["message"]
    assert restarts_when_mute(world) == BROKERS


def restarts_when_mute(world):
    started = len(world.kube.started)
    world.change(flush="Sync")
    world.run(lambda: world.kube.started[started:] == BROKERS)
    world.brokers.mute.clear()
    world.run()
    return world.kube.started[started:]


def test_brokers_that_refuse_to_move_writes_away_are_restarted_after_a_while(world):
    async def refuse(endpoint, mode, lease_ms):
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


def test_a_pod_template_that_cannot_be_noted_is_refused_with_its_size(world):
    env = [{"name": f"V{number}", "value": "x" * 4096} for number in range(60)]
    world.change(podTemplate={"env": env})
    world.idle(2)
    assert world.reason("Degraded") == "InvalidSpec"
    assert "200000 is the most: shorten env" in world.condition("Degraded")["message"]
    assert world.failures == []


def test_a_clock_that_is_set_back_keeps_nothing_waiting(world):
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


def test_a_token_that_was_replaced_restarts_the_brokers(world):
    world.kube.objects["Secret", NAMESPACE, "demo-http-token"]["data"]["token"] = "bmV3"
    world.restart_operator()
    assert restarts(world, lambda: None) == BROKERS


@pytest.mark.parametrize(
    "nonsense", ["", "bm8Kd29yZA==", "4pyT", "%%%"], ids=["empty", "two lines", "no ASCII", "no base64"]
)
def test_a_token_that_cannot_be_sent_is_replaced(world, nonsense):
    world.kube.objects["Secret", NAMESPACE, "demo-http-token"]["data"]["token"] = nonsense
    world.restart_operator()
    world.idle(1)
    world.run()
    assert world.get("Secret", "demo-http-token")["data"]["token"] not in (nonsense, "")
    assert world.failures == []


@pytest.mark.parametrize("nonsense", ["{}", "[]", "x", '{"metadata": [], "spec": 1}', '{"spec": {"containers": [1]}}'])
def test_nonsense_in_the_note_of_what_pods_are_made_from_is_replaced_and_restarts_nothing(world, nonsense):
    noted = world.get("StatefulSet", "demo-broker-0")["metadata"]["annotations"]["delaymq.io/applied"]
    world.kube.objects["StatefulSet", NAMESPACE, "demo-broker-0"]["metadata"]["annotations"]["delaymq.io/applied"] = (
        nonsense
    )
    assert restarts(world, world.restart_operator) == []
    assert world.get("StatefulSet", "demo-broker-0")["metadata"]["annotations"]["delaymq.io/applied"] == noted


def test_a_broker_at_an_address_that_was_anothers_is_not_taken_for_that_one(world):
    first, second = (world.cache.get("Pod", NAMESPACE, name) for name in BROKERS)
    first["status"]["podIP"] = second["status"]["podIP"]
    world.reconcile()
    assert world.reason("Degraded") == "BrokerUnreachable"
    assert "there is demo-1" in world.condition("Degraded")["message"]


def test_a_lost_secret_is_made_again(world):
    world.kube.remove("Secret", NAMESPACE, "demo-http-token")
    world.restart_operator()
    world.idle(1)
    world.run()
    assert world.get("Secret", "demo-http-token") is not None


def test_a_cache_that_is_behind_applies_and_restarts_nothing_twice():
    world = FakeWorld(lag_ticks=4)
    world.create(size=2)
    world.run(ticks=200)
    world.kube.requests.clear()
    assert restarts(world, lambda: world.change(image="delaymq/broker:2")) == EVERYTHING
    applied = [name for verb, kind, name in world.kube.requests if (verb, kind) == ("apply", "StatefulSet")]
    assert sorted(applied) == ["demo-broker-0", "demo-broker-1", "demo-namesrv"]


def test_a_broker_that_was_made_anew_unseen_gets_a_whole_status(world):
    world.kube.remove("Broker", NAMESPACE, "demo")
    world.create(size=2)
    world.idle(10)
    world.run()
    assert set(world.status) >= {"size", "readyGroups", "selector", "nameServers", "conditions", "groups", "levels"}
    assert world.status["groups"][0]["ready"] is True


def test_a_pod_that_somebody_else_replaced_meanwhile_is_not_restarted_in_place_of_the_last_one(world):
    world.change(flush="Sync")
    world.run(lambda: ("refuse", "demo-broker-0-0") in world.brokers.calls)
    world.kube.requests.clear()
    pod = copy.deepcopy(world.get("Pod", "demo-broker-0-0"))
    pod["metadata"]["uid"] = "somebody-made-it"
    world.kube.objects["Pod", NAMESPACE, "demo-broker-0-0"] = pod
    world.now_ms += 5_000
    world.brokers.running["demo-broker-0-0"].pod_uid = "somebody-made-it"
    world.reconcile()
    assert ("delete", "Pod", "demo-broker-0-0") not in world.kube.requests
