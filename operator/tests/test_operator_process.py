"""The operator as a process against a real API server: start, stop, crash, standby, permissions."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from delaymq_operator_testing.api_server import ApiServer, Programs
from delaymq_operator_testing.operator_processes import (
    SEEN_TIMEOUT_S,
    Operator,
    a_resource,
    exists,
    grant,
    resources,
    running,
    service_account,
    until,
)

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
SHORT_LEASE_S = 5
"""Duration of leases whose expiry a test waits for."""
AFTER_OUTAGE_S = 60.0
"""kopf retries after at most 30 s."""


@pytest.fixture
def config_map(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/demo-broker-conf"


@pytest.fixture
def operator(tmp_path: Path, api_server: ApiServer, namespace: str) -> Operator:
    return Operator(
        tmp_path, "operator-0", api_server.kubeconfig, f"--namespaces={namespace}", f"--lease-namespace={namespace}"
    )


def test_broker_is_reconciled_after_change_of_itself_or_owned_object(
    api_server: ApiServer, namespace: str, operator: Operator, config_map: str
) -> None:
    with running(operator):
        until(operator, lambda: operator.is_active)
        api_server.create(resources(namespace, "brokers"), a_resource("Broker", "demo"))
        until(operator, lambda: exists(api_server, config_map))
        api_server.merge(resources(namespace, "brokers") + "/demo", {"spec": {"size": 2}})
        until(operator, lambda: api_server.request("GET", config_map)["data"] == {"generation": "2"})
        api_server.merge(config_map, {"data": {"generation": "drifted"}})
        until(operator, lambda: api_server.request("GET", config_map)["data"] == {"generation": "2"})
        api_server.request("DELETE", config_map)
        until(operator, lambda: exists(api_server, config_map))


def test_own_writes_and_other_namespaces_cause_no_reconciliation(
    api_server: ApiServer, namespace: str, operator: Operator, config_map: str
) -> None:
    other = api_server.new_namespace()
    with running(operator):
        until(operator, lambda: operator.is_active)
        api_server.create(resources(other, "brokers"), a_resource("Broker", "elsewhere"))
        api_server.create(resources(namespace, "brokers"), a_resource("Broker", "demo"))
        until(operator, lambda: exists(api_server, config_map))
        time.sleep(3)  # time in which an unwanted reconciliation would be visible
        assert operator.lines("elsewhere") == 0
        assert operator.lines(f"RECONCILE Broker {namespace}/demo") <= 4


def test_topic_is_released_when_its_broker_permits(api_server: ApiServer, namespace: str, operator: Operator) -> None:
    topic = resources(namespace, "topics") + "/orders"
    with running(operator):
        until(operator, lambda: operator.is_active)
        broker = a_resource("Broker", "demo")
        broker["metadata"]["annotations"] = {"test/hold": "yes"}
        api_server.create(resources(namespace, "brokers"), broker)
        api_server.create(resources(namespace, "topics"), a_resource("Topic", "orders", brokerRef={"name": "demo"}))
        until(operator, lambda: "finalizers" in api_server.request("GET", topic)["metadata"])
        assert api_server.request("GET", topic)["metadata"]["finalizers"] == ["delaymq.io/operator"]
        api_server.request("DELETE", topic)
        until(operator, lambda: operator.lines("RELEASE") >= 2)
        assert exists(api_server, topic)
        api_server.merge(resources(namespace, "brokers") + "/demo", {"metadata": {"annotations": {"test/hold": None}}})
        until(operator, lambda: not exists(api_server, topic))
        assert operator.lines("ERROR") == 0


def test_occupied_port_is_reported_without_stack_trace(
    tmp_path: Path, api_server: ApiServer, namespace: str, operator: Operator
) -> None:
    with running(operator):
        until(operator, lambda: operator.is_active)
        second = Operator(tmp_path, "operator-1", api_server.kubeconfig, f"--http-port={operator.port}")
        with running(second):
            deadline_s = time.monotonic() + SEEN_TIMEOUT_S
            while second.is_running and time.monotonic() < deadline_s:
                time.sleep(0.05)
            assert not second.is_running
        assert f"cannot listen on --http-port {operator.port}" in second.log_since(0)
        assert "Traceback" not in second.log_since(0)


def test_standby_becomes_active_after_sigterm_of_active_replica(
    tmp_path: Path, api_server: ApiServer, namespace: str, operator: Operator
) -> None:
    flags = (f"--namespaces={namespace}", f"--lease-namespace={namespace}")
    second = Operator(tmp_path, "operator-1", api_server.kubeconfig, *flags)
    with running(operator):
        until(operator, lambda: operator.is_active)
        with running(second):
            until(second, lambda: second.lines("standby") == 1)
            assert second.get("/readyz")[0] == second.get("/livez")[0] == 200
            assert not second.is_active
            assert operator.stop(timeout_s=STOP_TIMEOUT_S) == 0
            until(second, lambda: second.is_active)
    assert "Traceback" not in operator.log_since(0)


def test_another_replica_continues_after_crash(
    tmp_path: Path, api_server: ApiServer, namespace: str, config_map: str
) -> None:
    flags = (f"--namespaces={namespace}", f"--lease-namespace={namespace}")
    operator = Operator(tmp_path, "operator-0", api_server.kubeconfig, *flags, lease_s=SHORT_LEASE_S)
    second = Operator(tmp_path, "operator-1", api_server.kubeconfig, *flags)
    with running(operator):
        until(operator, lambda: operator.is_active)
    api_server.create(resources(namespace, "brokers"), a_resource("Broker", "demo"))
    with running(second):
        until(second, lambda: exists(api_server, config_map))


def test_suspended_replica_exits_after_losing_lease(tmp_path: Path, api_server: ApiServer, namespace: str) -> None:
    flags = (f"--namespaces={namespace}", f"--lease-namespace={namespace}")
    operator = Operator(tmp_path, "operator-0", api_server.kubeconfig, *flags, lease_s=SHORT_LEASE_S)
    second = Operator(tmp_path, "operator-1", api_server.kubeconfig, *flags)
    with running(operator):
        until(operator, lambda: operator.is_active)
        operator.signal(signal.SIGSTOP)
        with running(second):
            until(second, lambda: second.is_active)
            operator.signal(signal.SIGCONT)
            deadline_s = time.monotonic() + STOP_TIMEOUT_S
            while operator.is_running and time.monotonic() < deadline_s:
                time.sleep(0.05)
            assert not operator.is_running
            assert second.is_active
    assert operator.lines("was lost: another replica is taking over") == 1
    assert "Traceback" not in operator.log_since(0)


def test_changes_during_api_server_outage_are_reconciled_afterwards(
    tmp_path: Path, kubernetes_programs: Programs
) -> None:
    with ApiServer(kubernetes_programs) as server:
        operator = Operator(tmp_path, "operator-0", server.kubeconfig, "--lease=off")
        config_map = "/api/v1/namespaces/default/configmaps/demo-broker-conf"
        with running(operator):
            server.create(resources("default", "brokers"), a_resource("Broker", "demo"))
            until(operator, lambda: exists(server, config_map))
            server.restart(down_s=5)
            server.create(resources("default", "brokers"), a_resource("Broker", "later"))
            server.request("DELETE", config_map)
            later = "/api/v1/namespaces/default/configmaps/later-broker-conf"
            until(operator, lambda: exists(server, config_map) and exists(server, later), timeout_s=AFTER_OUTAGE_S)
            assert operator.get("/livez")[0] == 200
            assert "Traceback" not in operator.log_since(0)
            assert len(operator.log_since(0)) < 20_000


def test_missing_crds_are_reported_and_awaited(tmp_path: Path, kubernetes_programs: Programs) -> None:
    with ApiServer(kubernetes_programs) as server:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        server.request("DELETE", f"{crds}/topics.delaymq.io")
        operator = Operator(tmp_path, "operator-0", server.kubeconfig, "--lease=off")
        with running(operator):
            until(operator, lambda: operator.lines("install the CRDs") == 1)
            assert operator.get("/readyz")[0] == 503
            assert operator.get("/livez")[0] == 200
            server.install_crds()
            until(operator, lambda: operator.is_active, timeout_s=START_TIMEOUT_S)
            assert "Traceback" not in operator.log_since(0)


def test_permission_table_suffices(tmp_path: Path, api_server: ApiServer, namespace: str) -> None:
    kubeconfig = service_account(tmp_path, api_server, namespace)
    grant(api_server, namespace)
    operator = Operator(tmp_path, "operator-0", kubeconfig, f"--namespace={namespace}", f"--namespaces={namespace}")
    levels = resources(namespace, "delaylevelconfigs")
    with running(operator):
        until(operator, lambda: operator.is_active)
        api_server.create(resources(namespace, "brokers"), a_resource("Broker", "demo"))
        api_server.create(resources(namespace, "topics"), a_resource("Topic", "orders", brokerRef={"name": "demo"}))
        api_server.create(levels, a_resource("DelayLevelConfig", "short", levels=["1s"]))
        for path in (resources(namespace, "topics") + "/orders", f"{levels}/short"):
            until(operator, lambda path=path: "finalizers" in api_server.request("GET", path)["metadata"])
            api_server.request("DELETE", path)
            until(operator, lambda path=path: not exists(api_server, path))
        until(
            operator,
            lambda: (
                operator.metric('delaymq_operator_kube_requests_total{kind="Event",status="201",verb="create"}') >= 1
            ),
        )
        status = api_server.request("GET", resources(namespace, "brokers") + "/demo")["status"]
        assert status["observedGeneration"] == 1
        assert 'status="403"' not in operator.get("/metrics")[1]
        assert operator.lines("orbidden") == 0


def test_missing_permission_is_reported_and_awaited(tmp_path: Path, api_server: ApiServer, namespace: str) -> None:
    kubeconfig = service_account(tmp_path, api_server, namespace)
    grant(api_server, namespace, without="pods")
    operator = Operator(tmp_path, "operator-0", kubeconfig, f"--namespace={namespace}", f"--namespaces={namespace}")
    with running(operator):
        until(operator, lambda: operator.lines('cannot list resource "pods"') == 1)
        assert operator.lines("the operator's role lacks this") == 1
        assert operator.get("/readyz")[0] == 503
        grant(api_server, namespace)
        until(operator, lambda: operator.is_active, timeout_s=START_TIMEOUT_S)
        assert "Traceback" not in operator.log_since(0)
