"""Analytics launched by the operator process on a real API server, with only the permissions of its table.

Nodes and the Spark operator with its drivers are simulated.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from delaymq_operator.adapters.kinds import KINDS
from delaymq_operator.adapters.permissions import PERMISSIONS
from delaymq_operator_testing.api_server import ApiError, ApiServer
from delaymq_operator_testing.fakes.spark import RESULT
from harness.ports import free_port
from harness.processes import ServerProcess

CRD_FILE = Path(__file__).parent / "spark_application_crd.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RBAC = "rbac.authorization.k8s.io"
ROLE = "delaymq-analytics"
BOUND_S = 90.0
PAUSE_S = 0.1
NEXT_STATE = {"": "SUBMITTED", "SUBMITTED": "RUNNING", "RUNNING": "COMPLETED"}


class Cluster:
    """A namespace with simulated nodes and a simulated Spark operator."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self.has_spark = False
        self.last = "COMPLETED"

    def path(self, kind: str, name: str = "") -> str:
        return KINDS[kind].path(self.namespace, name)

    def all(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.request("GET", self.path(kind))["items"]
        return found

    def names(self, kind: str) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.all(kind))

    def broker(self) -> dict[str, Any]:
        return self.server.request("GET", self.path("Broker", "demo"))

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = (self.broker().get("status") or {}).get("analytics") or {}
        return found

    def reason(self) -> str:
        conditions = (self.broker().get("status") or {}).get("conditions") or []
        return next((each["reason"] for each in conditions if each["type"] == "AnalyticsReady"), "")

    def annotate(self, text: str) -> None:
        self.server.merge(self.path("Broker", "demo"), {"metadata": {"annotations": {"delaymq.io/analyze": text}}})

    def play(self) -> None:
        """Make pods ready, and advance each application by one state."""
        for pod in self.all("Pod"):
            is_driver = pod["metadata"]["name"].endswith("-driver")
            if (pod.get("status") or {}).get("phase") == "Pending" and not is_driver:
                ready = {"type": "Ready", "status": "True"}
                status = {"phase": "Running", "podIP": "127.0.0.77", "conditions": [ready]}
                self.server.merge(self.path("Pod", pod["metadata"]["name"]) + "/status", {"status": status})
        for application in self.all("SparkApplication") if self.has_spark else []:
            self._run(application)

    def _run(self, application: dict[str, Any]) -> None:
        name = application["metadata"]["name"]
        before = ((application.get("status") or {}).get("applicationState") or {}).get("state", "")
        state = NEXT_STATE.get(before)
        if state is None or (before == "RUNNING" and self.last == "RUNNING"):
            return
        if before == "":
            self._start_driver(application)
        if state == "COMPLETED":
            result = {"data": {"status.json": json.dumps(RESULT)}, "binaryData": {"report.html.gz": "eA=="}}
            self.server.merge(self.path("AnalyticsResult", name), result)
        status = {"status": {"applicationState": {"state": state}, "driverInfo": {}}}
        self.server.merge(self.path("SparkApplication", name) + "/status", status)

    def _start_driver(self, application: dict[str, Any]) -> None:
        driver, name = application["spec"]["driver"], application["metadata"]["name"]
        template = driver["template"]
        [container] = template["spec"]["containers"]
        owner = {key: application[key] for key in ("apiVersion", "kind")} | {"controller": True, "name": name}
        owner["uid"] = application["metadata"]["uid"]
        metadata = {
            "name": f"{name}-driver",
            "labels": application["metadata"]["labels"] | driver["labels"],
            "ownerReferences": [owner],
        }
        containers = [container | {"image": application["spec"]["image"]}]
        spec = template["spec"] | {"containers": containers, "serviceAccountName": driver["serviceAccount"]}
        self.server.create(self.path("Pod"), {"metadata": metadata, "spec": spec})


class Operator(ServerProcess):
    """The operator's process."""

    def __init__(self, path: Path, kubeconfig: Path, namespace: str) -> None:
        self.port = free_port()
        flags = [f"--http-port={self.port}", "--http-host=127.0.0.1", f"--kubeconfig={kubeconfig}", "--lease=off"]
        flags += [f"--namespace={namespace}", f"--namespaces={namespace}", "--analytics-image=delaymq/spark:7"]
        flags += ["--poll-interval-s=1", "--progress-interval-s=0.2", f"--analytics-role={ROLE}"]
        command = [sys.executable, "-m", "delaymq_operator.main", *flags]
        super().__init__("operator", command, path / "operator.log", environment={})


@pytest.fixture
def cluster(api_server_with_controllers: ApiServer, controlled_namespace: str) -> Iterator[Cluster]:
    # The API server validates the drivers' pods, which are created here as the Spark operator would create them.
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace_path = f"/api/v1/namespaces/{controlled_namespace}"
    api_server_with_controllers.merge(namespace_path, {"metadata": {"labels": labels}})
    yield Cluster(api_server_with_controllers, controlled_namespace)
    with suppress(ApiError):
        api_server_with_controllers.request("DELETE", f"{CRDS}/sparkapplications.sparkoperator.k8s.io")


@pytest.fixture
def operator(tmp_path: Path, cluster: Cluster) -> Iterator[Operator]:
    found = Operator(tmp_path, _kubeconfig(tmp_path, cluster), cluster.namespace)
    found.start()
    yield found
    found.kill()


def until(cluster: Cluster, operator: Operator, condition: Callable[[], bool]) -> None:
    """Simulate the cluster until the condition is met."""
    ends_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < ends_s, f"{cluster.told()} {cluster.reason()} {operator.log_since(0)[-3000:]}"
        assert operator.is_running
        cluster.play()
        time.sleep(PAUSE_S)


def install_spark(cluster: Cluster) -> None:
    crd = yaml.safe_load(CRD_FILE.read_text())
    ends_s = time.monotonic() + BOUND_S
    while not cluster.has_spark:
        assert time.monotonic() < ends_s
        try:
            # The CRD of an earlier test may still be terminating.
            if not cluster.server.apply(f"{CRDS}/{crd['metadata']['name']}", crd)["metadata"].get("deletionTimestamp"):
                cluster.all("SparkApplication")
                cluster.has_spark = True
        except (ApiError, ValueError):
            # The API server's response for a group that is not served yet is not JSON.
            time.sleep(PAUSE_S)


def create(cluster: Cluster, **analytics: Any) -> None:
    spec = {"size": 2, "analytics": analytics, "networkPolicy": {"enabled": True}}
    kind = {"apiVersion": "delaymq.io/v1alpha1", "kind": "Broker"}
    cluster.server.create(cluster.path("Broker"), kind | {"metadata": {"name": "demo"}, "spec": spec})


@pytest.mark.timeout(400)
def test_run_survives_late_spark_operator_and_operator_restarts(cluster: Cluster, operator: Operator) -> None:
    create(cluster)
    until(cluster, operator, lambda: cluster.reason() == "SparkOperatorMissing")
    install_spark(cluster)
    operator.kill()
    operator.start()
    until(cluster, operator, lambda: cluster.reason() == "NoRunYet")

    # Without this, the run could end before the operator observes the state Running.
    cluster.last = "RUNNING"
    cluster.annotate("first")
    until(cluster, operator, lambda: cluster.told().get("state") == "Running")
    operator.kill()
    cluster.last = "COMPLETED"
    operator.start()
    until(cluster, operator, lambda: cluster.told().get("state") == "Succeeded")
    told = cluster.told()
    assert [group["state"] for group in told["groups"]] == ["Succeeded", "Succeeded"]
    assert told["messages"] == 2 * RESULT["messages"]
    applications = [f"demo-analytics-{index}-{told['run']}" for index in range(2)]
    assert cluster.names("SparkApplication") == applications
    assert cluster.reason() == "RunSucceeded"
    made = cluster.server.request("GET", cluster.path("SparkApplication", applications[0]))
    assert made["spec"]["image"] == "delaymq/spark:7"
    assert made["metadata"]["generation"] == 1
    assert "demo-analytics" in cluster.names("NetworkPolicy")
    binding = cluster.server.request("GET", cluster.path("RoleBinding", "demo-analytics"))
    assert binding["roleRef"]["name"] == ROLE

    cluster.last = "RUNNING"
    cluster.annotate("second")
    until(cluster, operator, lambda: cluster.told().get("state") == "Running")
    cluster.server.request("DELETE", cluster.path("SparkApplication", cluster.told()["application"]))
    cluster.last = "COMPLETED"
    until(cluster, operator, lambda: cluster.told().get("state") == "Failed")
    until(cluster, operator, lambda: cluster.reason() == "RunFailed")
    assert cluster.told()["messages"] == 2 * RESULT["messages"]

    cluster.server.merge(cluster.path("Broker", "demo"), {"spec": {"analytics": None}})
    until(cluster, operator, lambda: cluster.told() == {} and cluster.reason() == "")
    until(cluster, operator, lambda: not [name for name in cluster.names("Pod") if name.endswith("-driver")])
    until(cluster, operator, lambda: not set(applications) & set(cluster.names("ConfigMap")))
    assert cluster.names("SparkApplication") == []
    assert "demo-analytics" not in cluster.names("RoleBinding")
    until(cluster, operator, lambda: cluster.names("NetworkPolicy") == ["demo-broker", "demo-namesrv"])
    for word in ("Traceback", "orbidden", "a bug in the operator"):
        assert word not in operator.log_since(0)


@pytest.mark.timeout(400)
def test_scheduled_run_starts_automatically_and_objects_are_deleted_with_broker(
    cluster: Cluster, operator: Operator
) -> None:
    install_spark(cluster)
    create(cluster, schedule="* * * * *")
    until(cluster, operator, lambda: "lastScheduleTime" in cluster.told())
    # Prevent the run of another minute, which would replace the one under test.
    cluster.server.merge(cluster.path("Broker", "demo"), {"spec": {"analytics": {"schedule": "0 0 1 1 *"}}})
    until(cluster, operator, lambda: cluster.told().get("state") == "Succeeded")
    told = cluster.told()
    # The next minute's run may have been due before the schedule changed.
    assert told["run"] in {name.rpartition("-")[2] for name in cluster.names("SparkApplication")}
    assert told["lastScheduleTime"] < told["nextScheduleTime"]
    cluster.server.request("DELETE", cluster.path("Broker", "demo"))
    gone = ("SparkApplication", "RoleBinding", "NetworkPolicy", "Secret", "StatefulSet")
    ends_s = time.monotonic() + BOUND_S
    while [name for kind in gone for name in cluster.names(kind) if name.startswith("demo-")]:
        assert time.monotonic() < ends_s
        time.sleep(PAUSE_S)


def _kubeconfig(path: Path, cluster: Cluster) -> Path:
    """Return a kubeconfig of a service account with the permissions of the table."""
    server, namespace = cluster.server, cluster.namespace
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    server.create(account, {"metadata": {"name": "delaymq-operator"}})
    rules = [
        {"apiGroups": [one.group], "resources": [one.resource], "verbs": list(one.verbs)}
        | ({"resourceNames": [ROLE]} if "bind" in one.verbs else {})
        for one in PERMISSIONS
    ]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "delaymq-operator"}, "rules": rules}
    server.apply(f"/apis/{RBAC}/v1/namespaces/{namespace}/roles/delaymq-operator", role)
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "delaymq-operator"},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "delaymq-operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "delaymq-operator", "namespace": namespace}],
    }
    server.apply(f"/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings/delaymq-operator", binding)
    token = server.create(f"{account}/delaymq-operator/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    config = json.loads(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file = path / "kubeconfig"
    file.write_text(json.dumps(config))
    return file
