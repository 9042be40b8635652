"""Alerts of the chart: each fires for its own fault only, and a healthy system fires none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from delaymq.api_types.delay import Correction
from delaymq_helm_testing.alert_scenes import BROKER, OPERATOR, OPERATOR_NAMESPACE, POD, Scene, healthy, settled_broker
from delaymq_helm_testing.helm_chart import alert_groups, alert_rules, chart_values
from delaymq_helm_testing.promtool import Promtool, Values, find_promtool
from delaymq_operator_testing.fakes.world import NAMESPACE, FakeWorld
from delaymq_operator_testing.worlds.analysed import analyse, analysed
from harness.errors import HarnessError

LATENESS_S = chart_values()["metrics"]["prometheusRule"]["latenessSeconds"]
AFTER_ITS_TIME_MIN = 5
LONGEST_MIN = 27 * 60
"""Longer than the `for` of any alert."""
DEMO = {"namespace": NAMESPACE, "broker": "demo"}
SEEN = {**DEMO, "broker_namespace": NAMESPACE}
GROWS = Values(0.0, 1.0)
STALE = Correction(level=1, from_offset=90, to_offset=100, reason="stale")


@dataclass(frozen=True)
class Fault:
    """A change to the healthy scene, and the alert that must fire."""

    alert: str
    happens: Callable[[Scene], Scene]
    labels: Mapping[str, str] = field(default_factory=lambda: BROKER)
    """Labels of the alert without its name and severity."""
    case: str = ""

    @property
    def id(self) -> str:
        return f"{self.alert}-{self.case}" if self.case else self.alert


def measured(name: str, values: Values | float, **labels: str) -> Callable[[Scene], Scene]:
    """Return a change of series of the broker or the operator."""
    return lambda scene: scene.with_series(name, values if isinstance(values, Values) else Values(values), **labels)


def late(scene: Scene) -> Scene:
    """Every message is delivered later than the chart's limit."""

    def growth(labels: Mapping[str, str]) -> Values:
        return Values(0.0, 1.0 if float(labels["le"]) > LATENESS_S else 0.0)

    return scene.with_series("delaymq_delay_lateness_seconds_bucket", growth)


def operated(
    change: Callable[[FakeWorld], None], *others: Mapping[str, Any], scraped: bool = True
) -> Callable[[Scene], Scene]:
    """Return a change of a settled Broker that the operator observes; a broker that does not run is not scraped."""

    def happens(scene: Scene) -> Scene:
        world = settled_broker()
        change(world)
        return (scene if scraped else scene.without(BROKER)).with_operator(world, *others)

    return happens


def lose_broker_pod(world: FakeWorld, **status: Any) -> None:
    """The broker's pod is recreated and keeps `status`."""
    place = ("Pod", NAMESPACE, POD["pod"])
    world.kube.objects.pop(place)
    world.kube.unready.add(POD["pod"])
    world.idle(5)
    body = world.kube.objects[place]
    body["status"] = status
    world.kube.tick = lambda: None
    world.kube._touch(body)
    world.idle(5)


def pending(world: FakeWorld) -> None:
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    lose_broker_pod(world, phase="Pending", conditions=[why])


def crashed(world: FakeWorld) -> None:
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 137}}}
    lose_broker_pod(world, phase="Running", containerStatuses=[waiting | {"name": "broker"}])


def missing(world: FakeWorld) -> None:
    """The StatefulSet cannot create the pod, for whatever reason."""
    world.kube.tick = lambda: None
    world.kube.objects.pop(("Pod", NAMESPACE, POD["pod"]))
    world.idle(5)


def never_looked_after(world: FakeWorld) -> None:
    world.broker.pop("status")
    world.kube.objects.pop(("Pod", NAMESPACE, POD["pod"]))


def no_name_server(world: FakeWorld) -> None:
    world.kube.unready.add("demo-namesrv-0")
    world.kube.objects.pop(("Pod", NAMESPACE, "demo-namesrv-0"))
    world.idle(10)


def invalid_config(world: FakeWorld) -> None:
    world.change(config={"fileReservedTime": "soon"})
    world.idle(5)


def one_name_server_of_two(world: FakeWorld) -> None:
    world.change(nameServers={"replicas": 2})
    world.idle(1)
    world.run()
    world.kube.unready.add("demo-namesrv-1")
    world.kube.objects.pop(("Pod", NAMESPACE, "demo-namesrv-1"))
    world.idle(10)


def restart_broker(world: FakeWorld) -> None:
    world.kube.objects.pop(("Pod", NAMESPACE, POD["pod"]))
    world.idle(10)
    assert world.condition("SchedulerIntact")["status"] == "False"


def went_back(world: FakeWorld) -> None:
    world.brokers.stores["store-demo-broker-0-0"].offsets[1] = 2
    restart_broker(world)


def killed(world: FakeWorld) -> None:
    world.brokers.stores["store-demo-broker-0-0"].corrected = (STALE,)
    restart_broker(world)


def analytics_fail(scene: Scene) -> Scene:
    world = analysed()
    world.spark.last = "FAILED"
    analyse(world)
    assert world.condition("AnalyticsReady")["status"] == "False"
    return scene.with_operator(world)


def carried_too_slowly(scene: Scene) -> Scene:
    """Segments are deleted, but more and more pending messages are in expired ones."""
    scene = scene.with_series("delaymq_timeline_carry_backlog", Values(200.0, 1.0))
    scene = scene.with_series("delaymq_delay_pending", Values(1_000.0, 0.0), level="timed")
    return scene.with_series("delaymq_log_offset_bytes", GROWS, which="min")


def lateness_budget(late_share: float) -> Callable[[Scene], Scene]:
    """Return a change of the scene: topic Orders promises 99 %, and this share of its messages is late."""

    def happens(scene: Scene) -> Scene:
        scene = scene.with_series("delaymq_delay_objective_ratio", Values(0.99), topic="Orders")
        scene = scene.with_series("delaymq_delay_objective_messages_total", Values(0.0, 1_000.0), topic="Orders")
        return scene.with_series(
            "delaymq_delay_objective_late_total", Values(0.0, 1_000.0 * late_share), topic="Orders"
        )

    return happens


ORDERS = BROKER | {"topic": "Orders"}
TOPIC = {
    "kind": "Topic",
    "metadata": {"name": "orders", "namespace": NAMESPACE, "uid": "topic", "resourceVersion": "1"},
    "spec": {"brokerRef": {"name": "demo"}},
    "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "BrokerMissing"}]},
}

FAULTS = (
    Fault("DelayMQBrokerNotReady", measured("delaymq_ready", 0)),
    Fault("DelayMQReplicaNotInSync", measured("delaymq_replication_ready", 0)),
    Fault("DelayMQRegisterUnreachable", measured("delaymq_replication_register_reachable", 0)),
    Fault("DelayMQDeliveryStalled", measured("delaymq_delay_next_due_timestamp_seconds", -60)),
    Fault("DelayMQDeliveryLate", late, POD),
    Fault("DelayMQDeliveriesHeld", measured("delaymq_delay_held", 1, mode="paused"), BROKER | {"mode": "paused"}),
    Fault("DelayMQHandOversFail", measured("delaymq_delay_failed_total", GROWS)),
    Fault("DelayMQLatenessBudgetBurnsFast", lateness_budget(0.15), ORDERS),
    Fault("DelayMQLatenessBudgetBurnsFast", lateness_budget(0.07), ORDERS, case="slower"),
    Fault("DelayMQLatenessBudgetBurns", lateness_budget(0.02), ORDERS),
    Fault(
        "DelayMQTopicNearLimit",
        measured("delaymq_topic_delay_limit_used_ratio", 0.95, topic="Orders", limit="maxPendingBytes"),
        ORDERS | {"limit": "maxPendingBytes"},
    ),
    Fault(
        "DelayMQAccountNearLimit",
        measured("delaymq_account_delay_limit_used_ratio", 0.95, account="web", limit="maxPendingMessages"),
        BROKER | {"account": "web", "limit": "maxPendingMessages"},
    ),
    Fault(
        "DelayMQTopicGone", measured("delaymq_delay_topic_gone_total", GROWS, treatment="drop"),
        BROKER | {"treatment": "drop"},
    ),
    Fault("DelayMQDeadDelays", measured("delaymq_delay_dead_total", GROWS)),
    Fault(
        "DelayMQDelayOffsetsDamaged", measured("delaymq_delay_corrected_total", 1, reason="corrupt"),
        BROKER | {"reason": "corrupt"},
    ),
    Fault("DelayMQMessagesLost", measured("delaymq_delay_corrupt_total", 1), case="unreadable"),
    Fault("DelayMQMessagesLost", measured("delaymq_delay_gone_total", 1), case="deleted"),
    Fault(
        "DelayMQMessagesLost", measured("delaymq_store_corrected_total", 1, what="log-hole"),
        BROKER | {"what": "log-hole"}, case="hole",
    ),
    Fault("DelayMQSyncFailed", measured("delaymq_flush_failures_total", 1)),
    Fault("DelayMQFlushBehind", measured("delaymq_log_offset_bytes", 1e9, which="end")),
    Fault("DelayMQClockBehind", measured("delaymq_clock_skew_seconds", 2)),
    Fault("DelayMQDelaysShortened", measured("delaymq_delay_clamped_total", GROWS)),
    Fault("DelayMQBrokerOverloaded", measured("delaymq_event_loop_lag_seconds", 0.2)),
    Fault("DelayMQVolumeFillsUp", measured("delaymq_disk_free_bytes", 1e9)),
    Fault("DelayMQConsumersUnserved", measured("delaymq_consumer_offsets_unreadable", 1)),
    Fault("DelayMQCarryingBehind", measured("delaymq_timeline_carry_backlog", 3), case="blocked"),
    Fault("DelayMQCarryingBehind", carried_too_slowly, case="slow"),
    Fault("DelayMQVolumeFull", measured("delaymq_disk_writes_refused", 1)),
    Fault(
        "DelayMQSendsRefused", measured("delaymq_sends_refused_total", GROWS, reason="no_permission"),
        POD | {"reason": "no_permission"},
    ),
    Fault(
        "DelayMQConsumersBehind", measured("delaymq_group_lag_messages", Values(20_000, 10), group="workers"),
        BROKER | {"group": "workers"},
    ),
    Fault(
        "DelayMQDeadLetters", measured("delaymq_group_dead_letters", GROWS, group="workers"),
        BROKER | {"group": "workers"},
    ),
    Fault(
        "DelayMQRequestsRefused", measured("delaymq_requests_refused_total", GROWS, reason="overload"),
        POD | {"reason": "overload"},
    ),
    Fault("DelayMQTransactionsOpen", measured("delaymq_transactions_pending", Values(2_000, 10))),
    Fault("DelayMQTransactionsGivenUp", measured("delaymq_transactions_given_up_total", GROWS)),
    Fault("DelayMQAccessRulesBroken", measured("delaymq_access_files_broken", 1)),
    Fault(
        "DelayMQAccessRefused", measured("delaymq_access_refused_total", GROWS, reason="signature"),
        POD | {"reason": "signature"},
    ),
    Fault("DelayMQAuditLinesLost", measured("delaymq_audit_dropped_total", GROWS)),
    Fault("DelayMQCertificateExpires", measured("delaymq_tls_certificate_expiry_timestamp_seconds", 86_400)),
    Fault(
        "DelayMQCertificateNotRead", measured("delaymq_tls_certificate_reloads_total", GROWS, result="failed"),
        BROKER | {"result": "failed"},
    ),
    Fault("DelayMQBrokerDown", operated(pending, scraped=False), DEMO | {"pod": POD["pod"]}, case="pending"),
    Fault("DelayMQBrokerDown", operated(crashed, scraped=False), DEMO | {"pod": POD["pod"]}, case="crashed"),
    Fault("DelayMQBrokerDown", operated(missing, scraped=False), DEMO | {"pod": POD["pod"]}, case="missing"),
    Fault("DelayMQBrokerDown", operated(never_looked_after, scraped=False), DEMO | {"pod": POD["pod"]}, case="ignored"),
    Fault("DelayMQNameServersDown", operated(no_name_server), DEMO),
    Fault("DelayMQBrokerDegraded", operated(invalid_config), SEEN, case="spec"),
    Fault("DelayMQBrokerDegraded", operated(one_name_server_of_two), SEEN, case="NameServer"),
    Fault("DelayMQSchedulerWentBack", operated(went_back), SEEN),
    Fault("DelayMQAnalyticsFail", analytics_fail, SEEN),
    Fault("DelayMQOperatorDown", lambda scene: scene.without(OPERATOR), {"namespace": OPERATOR_NAMESPACE}),
    Fault("DelayMQNoActiveOperator", measured("delaymq_operator_leader", 0), {"namespace": OPERATOR_NAMESPACE}),
    Fault(
        "DelayMQResourceNotReady", operated(lambda world: None, TOPIC),
        {"namespace": OPERATOR_NAMESPACE, "kind": "Topic"},
    ),
    Fault(
        "DelayMQOperatorFails",
        measured("delaymq_operator_reconcile_errors_total", GROWS, kind="Broker", result="error"),
        {"namespace": OPERATOR_NAMESPACE, "kind": "Broker"},
    ),
    Fault(
        "DelayMQNamespaceNotServed", measured("delaymq_operator_namespace_served", 0, watched_namespace="*"),
        OPERATOR | {"watched_namespace": "*"},
    ),
    Fault("DelayMQOperatorHeldUp", measured("delaymq_operator_event_loop_lag_seconds", 2), OPERATOR),
)  # fmt: skip


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """The command promtool. If it is unavailable, the tests are skipped, and fail in CI."""
    try:
        return Promtool(find_promtool())
    except HarnessError as error:
        sentence = f"promtool is not available: install Prometheus ({error})"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(sentence, pytrace=False)
        pytest.skip(sentence)


@cache
def healthy_scene() -> Scene:
    return healthy()


@pytest.fixture
def scene() -> Scene:
    """A healthy broker and a healthy operator."""
    return healthy_scene()


def rule_of(alert: str) -> dict[str, Any]:
    (found,) = [rule for rule in alert_rules() if rule["alert"] == alert]
    return found


def minutes_of(rule: Mapping[str, Any]) -> int:
    """Return the `for` of an alert in minutes."""
    found = re.fullmatch(r"(\d+)(m|h)", rule.get("for", "0m"))
    assert found is not None
    return int(found[1]) * {"m": 1, "h": 60}[found[2]]


def test_healthy_system_fires_no_alert(promtool: Promtool, scene: Scene, tmp_path: Path) -> None:
    assert promtool.complaint(tmp_path, alert_groups(), scene.series, minutes=LONGEST_MIN, firing=[]) == ""


def test_kill_followed_by_recovery_fires_no_alert(promtool: Promtool, scene: Scene, tmp_path: Path) -> None:
    after = operated(killed)(scene).with_series("delaymq_delay_corrected_total", Values(1), reason="stale")
    assert promtool.complaint(tmp_path, alert_groups(), after.series, minutes=LONGEST_MIN, firing=[]) == ""


def test_messages_that_are_due_soon_in_expired_segments_fire_no_alert(
    promtool: Promtool, scene: Scene, tmp_path: Path
) -> None:
    after = carried_too_slowly(scene).with_series("delaymq_timeline_carry_backlog", Values(50))
    assert promtool.complaint(tmp_path, alert_groups(), after.series, minutes=LONGEST_MIN, firing=[]) == ""


@pytest.mark.parametrize("late_share", [0.0, 0.009])
def test_lateness_within_the_objective_fires_no_alert(
    promtool: Promtool, scene: Scene, tmp_path: Path, late_share: float
) -> None:
    after = lateness_budget(late_share)(scene)
    assert promtool.complaint(tmp_path, alert_groups(), after.series, minutes=LONGEST_MIN, firing=[]) == ""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault_fires_only_its_own_alert(promtool: Promtool, scene: Scene, tmp_path: Path, fault: Fault) -> None:
    rule = rule_of(fault.alert)
    firing = {**fault.labels, "alertname": fault.alert, **rule["labels"]}
    minutes = minutes_of(rule) + AFTER_ITS_TIME_MIN
    series = fault.happens(scene).series
    assert promtool.complaint(tmp_path, alert_groups(), series, minutes=minutes, firing=[firing]) == ""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_summary_of_an_alert_names_the_affected_object(fault: Fault) -> None:
    def told(text: str) -> str:
        return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: fault.labels[found[1]], text)

    annotations = rule_of(fault.alert)["annotations"]
    told(annotations["description"])
    concerned = {f"{NAMESPACE}/demo", f"{NAMESPACE}/{POD['pod']}"}
    if fault.labels["namespace"] == OPERATOR_NAMESPACE:
        concerned = {OPERATOR_NAMESPACE, fault.labels.get("kind", OPERATOR_NAMESPACE)}
    assert concerned & set(re.findall(r"[\w/-]+", told(annotations["summary"])))


def test_every_alert_is_tested_with_a_fault() -> None:
    assert {fault.alert for fault in FAULTS} == {rule["alert"] for rule in alert_rules()}
