"""Several namespaces with Roles of their own: one is deleted while the others are still served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from delaymq_operator_testing.api_server import ApiServer
from delaymq_operator_testing.operator_processes import (
    REAL,
    Operator,
    a_resource,
    exists,
    grant,
    grant_lasting,
    resources,
    running,
    service_account,
    until,
)

STOP_TIMEOUT_S = 60.0
BINDING = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings/delaymq-operator"


@dataclass(frozen=True)
class Installation:
    """An operator for two namespaces, with the permissions that the chart grants."""

    operator: Operator
    own: str
    a: str
    b: str


def served(operator: Operator, namespace: str) -> float:
    """Return 1 if the namespace is served, 0 if not, and -1 without a metric."""
    line = f'delaymq_operator_namespace_served{{watched_namespace="{namespace}"}}'
    return operator.metric(line) if line in operator.get("/metrics")[1] else -1


def has_finalizer(server: ApiServer, path: str) -> bool:
    return "delaymq.io/operator" in (server.request("GET", path)["metadata"].get("finalizers") or [])


def fill(server: ApiServer, namespace: str) -> list[str]:
    """Create a Broker with a Topic and a DelayLevelConfig, and return the paths of the latter two."""
    levels = resources(namespace, "delaylevelconfigs")
    server.create(levels, a_resource("DelayLevelConfig", "ours", levels=["1s"]))
    server.create(resources(namespace, "brokers"), a_resource("Broker", "demo", delayLevelConfigRef={"name": "ours"}))
    server.create(resources(namespace, "topics"), a_resource("Topic", "orders", brokerRef={"name": "demo"}))
    return [resources(namespace, "topics") + "/orders", f"{levels}/ours"]


def delete(server: ApiServer, namespace: str) -> None:
    """Delete a namespace and wait until the operator's RoleBinding in it is deleted."""
    server.request("DELETE", f"/api/v1/namespaces/{namespace}")
    binding = BINDING.format(namespace)
    server._processes[-1].wait_until(lambda: not exists(server, binding), timeout_s=STOP_TIMEOUT_S)


@pytest.fixture
def installation(tmp_path: Path, api_server_with_controllers: ApiServer) -> Installation:
    server = api_server_with_controllers
    own, a, b = (server.new_namespace(prefix) for prefix in ("ops", "a", "b"))
    kubeconfig = service_account(tmp_path, server, own)
    grant(server, own, scopes=("own",))
    grant_lasting(server, own)
    for tenant in (a, b):
        grant(server, tenant, to=own, scopes=("watched", "listed"))
    # The resync interval bounds the time until a lost permission is detected.
    flags = (f"--namespace={own}", f"--namespaces={a},{b}", "--resync-interval-s=2")
    return Installation(Operator(tmp_path, "operator-0", kubeconfig, *flags, program=REAL), own, a, b)


def test_namespace_deletion_completes_while_others_are_served(
    api_server_with_controllers: ApiServer, installation: Installation
) -> None:
    server, operator = api_server_with_controllers, installation.operator
    own, a, b = installation.own, installation.a, installation.b
    config = "/api/v1/namespaces/{}/configmaps/demo-broker-conf"
    with running(operator):
        until(operator, lambda: operator.is_active and served(operator, b) == 1)
        held = fill(server, b)
        until(operator, lambda: all(has_finalizer(server, path) for path in held))
        assert operator.stop(timeout_s=STOP_TIMEOUT_S) == 0

    # The namespace loses its permissions while no operator is running.
    delete(server, b)
    assert all(has_finalizer(server, path) for path in held)

    with running(operator):
        server.create(resources(a, "brokers"), a_resource("Broker", "demo"))
        until(operator, lambda: exists(server, config.format(a)))
        until(operator, lambda: not exists(server, f"/api/v1/namespaces/{b}"))
        until(operator, lambda: served(operator, a) == 1 and served(operator, b) == 0)
        assert operator.is_active

        # The namespace and its permissions are recreated, without a restart of the operator.
        server.create("/api/v1/namespaces", {"metadata": {"name": b}})
        grant(server, b, to=own, scopes=("watched", "listed"))
        held = fill(server, b)
        until(operator, lambda: exists(server, config.format(b)))
        until(operator, lambda: all(has_finalizer(server, path) for path in held))

        # This time the operator is running during the deletion.
        server.request("DELETE", f"/api/v1/namespaces/{b}")
        until(operator, lambda: not exists(server, f"/api/v1/namespaces/{b}"))
        assert operator.is_active
        server.merge(resources(a, "brokers") + "/demo", {"spec": {"flush": "Sync"}})
        until(operator, lambda: "SYNC_FLUSH" in server.request("GET", config.format(a))["data"]["broker.conf"])
        assert operator.lines("Traceback") == 0


def test_replica_without_served_namespace_does_not_hold_lease(
    api_server_with_controllers: ApiServer, installation: Installation
) -> None:
    server, operator = api_server_with_controllers, installation.operator
    own, tenants = installation.own, (installation.a, installation.b)
    for tenant in tenants:
        server.request("DELETE", BINDING.format(tenant))
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{own}/leases/delaymq-operator"
    with running(operator):
        until(operator, lambda: all(operator.lines(f"namespace {tenant} is not served") for tenant in tenants))
        assert not exists(server, lease)
        assert operator.get("/readyz")[0] == 503
        assert operator.get("/livez")[0] == 200
        grant(server, tenants[1], to=own, scopes=("watched", "listed"))
        until(operator, lambda: operator.is_active and served(operator, tenants[1]) == 1)
        assert server.request("GET", lease)["spec"]["holderIdentity"] == "operator-0"

        server.request("DELETE", BINDING.format(tenants[1]))
        until(operator, lambda: server.request("GET", lease)["spec"]["holderIdentity"] == "")
        until(operator, lambda: operator.get("/readyz")[0] == 503)
        grant(server, tenants[0], to=own, scopes=("watched", "listed"))
        until(operator, lambda: operator.is_active and served(operator, tenants[0]) == 1)
        assert operator.lines("Traceback") == 0


def test_last_served_namespace_can_be_deleted(
    api_server_with_controllers: ApiServer, installation: Installation
) -> None:
    server, operator, a = api_server_with_controllers, installation.operator, installation.a
    server.request("DELETE", BINDING.format(installation.b))
    with running(operator):
        until(operator, lambda: operator.is_active)
        held = fill(server, a)
        until(operator, lambda: all(has_finalizer(server, path) for path in held))
        assert operator.stop(timeout_s=STOP_TIMEOUT_S) == 0
    delete(server, a)
    assert all(has_finalizer(server, path) for path in held)
    with running(operator):
        until(operator, lambda: not exists(server, f"/api/v1/namespaces/{a}"))
        assert operator.lines("Traceback") == 0
