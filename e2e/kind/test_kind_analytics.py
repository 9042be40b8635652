"""Analytics of a Broker's store with the real Spark operator: the status matches the sent messages; failures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kind import objects
from kind.certificates import TLS, answers_plaintext, distribute_ca
from kind.figures import REPORTS_PATH
from kind.groups import PODS, RATE, lose_master, wait_in_sync
from kind.lab import Lab
from kind.space import STORE_PATH, Space, condition
from kind.spark import (
    APPLICATION,
    SparkOperator,
    analytics_spec,
    left_by_analytics,
    report_of,
    summary_of,
)
from kind.waiting import NotYetError, wait_until

Manifest = dict[str, Any]

BROKER = "broker.delaymq.io"
READY = "AnalyticsReady"
SHOWN_PATH = REPORTS_PATH / "kubectl"
LEVELS = f"0,{objects.LEVEL_OF['1s']},{objects.LEVEL_OF['30m']}"
"""Used in rotation: a third of the messages is delivered immediately, a third after a second, a third stays pending."""
RUN_TIMEOUT_S = 300.0
"""A run takes 30 s on two idle cores and four times as long under load; a scheduled one starts within a minute."""
DEADLINE_S = 120

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def spark_operator(lab: Lab) -> Iterator[SparkOperator]:
    made = SparkOperator(lab)
    made.install()
    yield made
    made.uninstall()


def test_broker_without_spark_operator_runs_and_reports_what_to_install(lab: Lab, spaces: Callable[..., Space]) -> None:
    SparkOperator(lab).remove_definitions()
    space = spaces("nospark")
    space.apply(objects.topic("orders", queues=4))
    name_servers = space.broker_ready(analytics=analytics_spec(lab, schedule="* * * * *"))
    said = space.wait_condition(BROKER, "demo", READY, reason="SparkOperatorMissing")
    assert said["status"] == "False"
    assert "install the Kubeflow Spark operator" in said["message"]
    assert f"spark.jobNamespaces={{{space.name}}}" in said["message"]
    broker = space.wait_broker_ready()
    assert condition(broker, "Degraded")["status"] == "False", broker["status"]["conditions"]
    assert send(space, name_servers, "orders", 9) == 9
    space.wait_broker(lambda broker: broker["status"].get("pending", 0) >= 3, "the status tells of pending messages")
    events = [each["reason"] for each in space.list("events") if each["involvedObject"]["name"] == "demo"]
    assert "SparkOperatorMissing" in events


@pytest.mark.parametrize("runs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_scheduled_run_analyses_sent_messages_and_keeps_the_configured_number_of_runs(
    lab: Lab, spark_operator: SparkOperator, spaces: Callable[..., Space], note: Callable[..., None], runs: int
) -> None:
    space = spaces("analytics")
    space.apply(objects.topic("orders", queues=4), objects.topic("audit", queues=2))
    name_servers = space.broker_ready()
    assert send(space, name_servers, "orders", 90) == 90
    assert send(space, name_servers, "audit", 10, levels="0") == 10
    settled(space, "demo-broker-0-0", copies=30)

    more = {"schedule": "* * * * *", "successfulRunsHistoryLimit": 1}
    space.patch(BROKER, "demo", {"spec": {"analytics": analytics_spec(lab, **more)}})
    # The final state, since intermediate ones may be missed between two observations.
    began = space.wait_broker(
        lambda broker: broker["status"].get("analytics", {}).get("lastScheduleTime"), "a run", timeout_s=RUN_TIMEOUT_S
    )
    assert began["status"]["analytics"]["lastScheduleTime"].endswith(":00Z")
    first = wait_run(space, messages=130)
    assert_equals_the_store(space, first, pending=30, delivered=30)
    application = first["status"]["analytics"]["application"]
    assert_published(space, application, {"orders": 60, "audit": 10, "SCHEDULE_TOPIC_XXXX": 60})
    duration_ms = json.loads(space.get("configmap", application)["data"]["status.json"])["durationMs"]
    keep_what_kubectl_shows(space, application)

    if runs > 1:
        run_again(space, name_servers, first)
    space.kubectl("delete", BROKER, "demo", timeout_s=120)
    wait_until(
        "nothing of the analytics outlives the Broker", lambda: not left_by_analytics(space, "demo"), timeout_s=90
    )
    note(run_s=duration_ms / 1000, runs=runs, lost=0)


def run_again(space: Space, name_servers: str, first: Manifest) -> None:
    """Send more messages: the next run of the schedule finds them, and only that run is kept."""
    assert send(space, name_servers, "orders", 30) == 30
    settled(space, "demo-broker-0-0", copies=40)
    second = wait_run(space, messages=170)
    space.patch(BROKER, "demo", {"spec": {"analytics": {"suspend": True}}})
    newest = space.wait_broker(
        lambda broker: state_of(broker) == "Succeeded", "no run goes on", timeout_s=RUN_TIMEOUT_S
    )
    assert_equals_the_store(space, newest, pending=40, delivered=40)
    assert second["status"]["analytics"]["run"] != first["status"]["analytics"]["run"]
    kept = newest["status"]["analytics"]["application"]

    def only_the_newest() -> bool:
        left = left_by_analytics(space, "demo")
        reports = [name for name in left["configmaps"] if "conf-map" not in name]
        if (left[APPLICATION], left["pods"], reports) == ([kept], [f"{kept}-driver"], [kept]):
            return True
        raise NotYetError(json.dumps(left))

    wait_until("only the newest run is kept", only_the_newest, timeout_s=60)


def test_run_reads_the_new_master_of_a_group_that_requires_tls(
    lab: Lab, spark_operator: SparkOperator, spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("enforcing")
    space.apply(objects.topic("orders", queues=4))
    name_servers = space.broker_ready(
        replicasPerGroup=2, tls={"generate": {}, "mode": "enforcing"}, analytics=analytics_spec(lab)
    )
    wait_in_sync(space)
    space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
    distribute_ca(space, space.client.name)
    levels = f"0,{objects.LEVEL_OF['1s']}"
    producer = space.client.produce(topic="orders", name_servers=name_servers, rate=RATE, levels=levels, **TLS)
    producer.wait_lines("sent", 2 * RATE)
    began = time.monotonic()
    master = lose_master(space)["master"]
    failover_s = time.monotonic() - began
    producer.wait_lines("sent", len(producer.lines("sent")) + 2 * RATE, timeout_s=60)
    wait_in_sync(space)
    producer.stop()
    # The port of clients and members of the group.
    assert not any(answers_plaintext(space, pod) for pod in PODS)
    verdict = space.judge_when_done("orders", producer.sends())
    verdict.assert_clean()

    space.annotate(BROKER, "demo", "delaymq.io/analyze=now")
    broker = wait_run(space, messages=inspect(space, master)["records"])
    status = broker["status"]["analytics"]
    assert (status["lost"], status["complete"]) == (0, True)
    assert status["totalBytes"] == record_bytes(inspect(space, master))
    note(failover_s=failover_s, analysed=status["messages"], **verdict.figures())


@pytest.mark.long
def test_run_on_demand_reads_volumes_of_both_groups_sequentially(
    lab: Lab, spark_operator: SparkOperator, spaces: Callable[..., Space]
) -> None:
    space = spaces("volumes")
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}}
    space.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "results"}, "spec": claim})
    space.apply(objects.topic("orders", queues=4))
    analytics = analytics_spec(lab, read="Volume", resultsClaim="results")
    here = {"kubernetes.io/hostname": lab.spark_node}
    name_servers = space.broker_ready(size=2, podTemplate={"nodeSelector": here}, analytics=analytics)
    waiting = space.wait_condition(BROKER, "demo", READY, reason="NoRunYet")
    assert waiting["status"] == "Unknown"
    assert "delaymq.io/analyze" in waiting["message"]
    assert send(space, name_servers, "orders", 90) == 90
    pods = ["demo-broker-0-0", "demo-broker-1-0"]
    wait_until(
        "every copy is stored", lambda: sum(kinds(space, pod)["delivered copy"] for pod in pods) == 30, timeout_s=30
    )

    space.annotate(BROKER, "demo", "delaymq.io/analyze=first")
    broker = wait_run(space, messages=120)
    status = broker["status"]["analytics"]
    assert status["analyzed"] == "first"
    assert "lastScheduleTime" not in status
    groups = status["groups"]
    assert [(each["name"], each["state"]) for each in groups] == [("demo-0", "Succeeded"), ("demo-1", "Succeeded")]
    for pod, group in zip(pods, groups, strict=True):
        inspected = inspect(space, pod)
        assert (group["messages"], group["totalBytes"]) == (inspected["records"], record_bytes(inspected))
        assert group["messages"] > 0
    assert status["pending"] == sum(each["pending"] for each in groups) == 30
    assert status["totalBytes"] == sum(each["totalBytes"] for each in groups)
    # RFC 3339 in UTC: lexical order is chronological order.
    assert groups[1]["startedAt"] >= groups[0]["completedAt"]
    for group in groups:
        driver = space.pod(f"{group['application']}-driver")
        assert driver["spec"]["nodeName"] == lab.spark_node
        mounts = driver["spec"]["containers"][0]["volumeMounts"]
        assert [each.get("readOnly") for each in mounts if each["name"] == "store"] == [True]
    files = files_of_claim(lab, space, "results")
    for group in groups:
        ours = {path.partition("/")[2] for path in files if path.startswith(f"{group['application']}/")}
        assert {"summary.json", "report.html"} <= ours
        assert any(path.endswith(".parquet") for path in ours), ours


@pytest.mark.long
def test_impossible_runs_fail_with_reason_and_message_and_leave_nothing_running(
    lab: Lab, spark_operator: SparkOperator, spaces: Callable[..., Space]
) -> None:
    space = spaces("failing", client=False)
    failing: dict[str, dict[str, Any]] = {
        "noimage": {"image": "delaymq/spark:none", "deadlineSeconds": DEADLINE_S},
        "noclaim": {"resultsClaim": "nowhere", "deadlineSeconds": DEADLINE_S},
        "noaccount": {"serviceAccountName": "nobody"},
    }
    for name, analytics in failing.items():
        annotations = {"delaymq.io/analyze": "now"}
        space.apply(objects.broker(name, annotations=annotations, analytics=analytics_spec(lab, **analytics)))
    for name in failing:
        space.wait_broker_ready(name)

    says(space, "noimage", "image")
    says(space, "noclaim", "nowhere")
    refused = space.wait_condition(BROKER, "noaccount", READY, reason="RunFailed", timeout_s=RUN_TIMEOUT_S)
    assert "nobody" in refused["message"], refused
    for name, sentence in {"noimage": "image", "noclaim": "nowhere"}.items():
        late = space.wait_condition(BROKER, name, READY, reason="DeadlineExceeded", timeout_s=RUN_TIMEOUT_S)
        assert late["status"] == "False"
        assert f"{DEADLINE_S} s" in late["message"]
        assert sentence in late["message"], late
    for name in failing:
        broker = space.wait_broker_ready(name)
        group = broker["status"]["analytics"]["groups"][0]
        assert (group["state"], "messages" in group) == ("Failed", False)
        assert condition(broker, "Degraded")["status"] == "False"

    def nothing_runs() -> bool:
        phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in space.list("pods", "spark-role=driver")}
        if not {"Pending", "Running"} & set(phases.values()):
            return True
        raise NotYetError(json.dumps(phases))

    wait_until("no driver is pending or running", nothing_runs, timeout_s=60)


# Sent messages, and the content of the store according to another reader.


def send(space: Space, name_servers: str, topic: str, count: int, *, levels: str = LEVELS) -> int:
    """Send messages and return the number of acknowledged ones."""
    sending = space.client.produce(topic=topic, name_servers=name_servers, count=count, rate=200, levels=levels)
    return int(sending.result()["acknowledged"])


def inspect(space: Space, pod: str) -> Any:
    """Return the counts of `delaymq store inspect` in a broker's pod."""
    return json.loads(space.kubectl("exec", pod, "--", "delaymq", "store", "inspect", STORE_PATH, "--json").stdout)


def kinds(space: Space, pod: str) -> dict[str, int]:
    return {"delayed": 0, "delivered copy": 0, "normal": 0} | inspect(space, pod)["kinds"]


def record_bytes(inspected: Any) -> int:
    return sum(each["record_bytes"] for each in inspected["segments"])


def settled(space: Space, pod: str, *, copies: int) -> None:
    """Wait until every short delay has expired, so that the store no longer grows."""
    wait_until("every copy is stored", lambda: kinds(space, pod)["delivered copy"] == copies, timeout_s=30)


# Status reported by the operator.


def state_of(broker: Manifest) -> str | None:
    state: str | None = broker["status"].get("analytics", {}).get("state")
    return state


def wait_run(space: Space, *, messages: int) -> Manifest:
    """Return the Broker once a run has found `messages` messages; AssertionError as soon as one failed."""

    def ended(broker: Manifest) -> bool:
        status = broker["status"].get("analytics", {})
        assert status.get("state") != "Failed", json.dumps(status)
        if status.get("messages") == messages and status.get("completedAt"):
            return True
        raise NotYetError(json.dumps(status) + condition(broker, READY).get("message", ""))

    return space.wait_broker(ended, f"a run that finds {messages} messages", timeout_s=RUN_TIMEOUT_S)


def says(space: Space, name: str, sentence: str) -> None:
    """Wait until the condition of a pending run states what the run waits for."""

    def told() -> bool:
        message = space.condition(BROKER, name, READY).get("message", "")
        if "in progress" in message and sentence in message:
            return True
        raise NotYetError(message)

    wait_until(f"the condition of {name} contains {sentence!r}", told, timeout_s=DEADLINE_S)


def assert_equals_the_store(space: Space, broker: Manifest, *, pending: int, delivered: int) -> None:
    """Compare the status with the sent messages, `store inspect`, and a reader that shares no code with either."""
    status, inspected = broker["status"]["analytics"], inspect(space, "demo-broker-0-0")
    found = {name: status[name] for name in ("messages", "totalBytes", "pending", "lost", "complete")}
    assert found == {
        "messages": inspected["records"],
        "totalBytes": record_bytes(inspected),
        "pending": pending,
        "lost": 0,
        "complete": True,
    }
    group = status["groups"][0]
    assert (group["delivered"], group["duplicates"], group["early"]) == (delivered, 0, 0)
    assert status["liveBytes"] + status["deadBytes"] == status["totalBytes"]
    delayed = [each for each in space.logged("demo-broker-0-0", "orders") if each.level]
    late_ms = [copy_ms - each.due_ms for each in delayed for copy_ms in each.copies_ms]
    assert len(late_ms) == delivered
    assert status["worstLatenessMs"] == max(late_ms)
    assert condition(broker, READY)["reason"] == "RunSucceeded"


def assert_published(space: Space, application: str, topics: dict[str, int]) -> None:
    """Assert that the report can be read from the ConfigMap."""
    summary = summary_of(space, application)
    assert {each["topic"]: each["messages"] for each in summary["compaction"]["topics"]} == topics
    assert summary["brokerName"] == "demo-0"
    report = report_of(space, application)
    assert report.lower().startswith("<!doctype html")
    assert "orders" in report
    REPORTS_PATH.mkdir(parents=True, exist_ok=True)
    (REPORTS_PATH / "kind-analytics-report.html").write_text(report)


def keep_what_kubectl_shows(space: Space, application: str) -> None:
    SHOWN_PATH.mkdir(parents=True, exist_ok=True)
    for file, arguments in {
        "get-brokers-analytics.txt": ["get", "brokers", "-o", "wide"],
        "get-broker-analytics.json": ["get", "broker", "demo", "-o", "jsonpath={.status.analytics}"],
        "get-sparkapplications.txt": ["get", "sparkapplications", "-o", "wide"],
        "get-sparkapplication.yaml": ["get", "sparkapplication", application, "-o", "yaml"],
        "logs-driver.txt": ["logs", f"{application}-driver"],
    }.items():
        text = space.kubectl(*arguments).stdout
        assert text.strip(), f"kubectl {' '.join(arguments)} shows nothing"
        (SHOWN_PATH / file).write_text(text)


def files_of_claim(lab: Lab, space: Space, claim: str) -> list[str]:
    """Return the files in a volume, read from a pod other than the drivers."""
    pod = objects.client_pod("reader", lab.images["broker"])
    pod["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": lab.spark_node}, "restartPolicy": "Never"}
    container = pod["spec"]["containers"][0]
    program = "import pathlib; [print(p.relative_to('/results')) for p in pathlib.Path('/results').rglob('*')]"
    container |= {"command": ["python3.11", "-c", program]}
    container["volumeMounts"].append({"name": "results", "mountPath": "/results", "readOnly": True})
    pod["spec"]["volumes"].append({"name": "results", "persistentVolumeClaim": {"claimName": claim}})
    space.apply(pod)
    wait_until("the volume is listed", lambda: space.pod("reader")["status"]["phase"] == "Succeeded", timeout_s=60)
    return str(space.kubectl("logs", "reader").stdout).splitlines()
