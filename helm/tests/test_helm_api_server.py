"""The chart against a real API server: created objects, permissions, upgrades and uninstalls."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from delaymq_helm_testing.helm_chart import CHART, Helm, HelmError
from delaymq_operator.adapters.permissions import PERMISSIONS
from delaymq_operator_testing.api_server import ApiServer, Programs
from harness.errors import HarnessError

NAMED = {"bind": "delaymq-analytics"}
"""Verbs that are allowed on one name only."""
WARNING = "the CRDs in the cluster differ from those of this chart"
CRDS_GONE_TIMEOUT_S = 100.0
UPGRADE = ("apply", "--server-side", "--force-conflicts", "-f", "-")


@pytest.fixture(scope="module")
def cluster(kubernetes_programs: Programs) -> Iterator[ApiServer]:
    """A separate API server for this module, which creates and deletes its CRDs."""
    with ApiServer(kubernetes_programs) as server:
        yield server


@pytest.fixture
def bare(cluster: ApiServer) -> ApiServer:
    """The API server without CRDs, like a cluster in which DelayMQ was never installed."""
    if crd_names(cluster):
        # A CRD is deleted after its last object, for which the API server looks every 5 s: delete all objects first.
        cluster.kubectl("delete", "dmqb,dmqt,dmql", "--all", "-A", "--ignore-not-found", "--timeout=30s", check=False)
    cluster.kubectl("delete", "crd", "--all", "--wait=false")
    end_s = time.monotonic() + CRDS_GONE_TIMEOUT_S
    while crd_names(cluster):
        assert time.monotonic() < end_s, cluster.kubectl("get", "crd", "-o", "yaml")[-4000:]
        time.sleep(0.2)
    return cluster


@pytest.fixture
def prepared(cluster: ApiServer) -> ApiServer:
    """The API server with the project's CRDs."""
    cluster.install_crds()
    return cluster


class Release:
    """A release in a separate namespace; its methods return Helm's output, including the notes."""

    def __init__(self, helm: Helm, server: ApiServer, name: str = "delaymq", *, namespace: str = "") -> None:
        self._helm = helm
        self._name = name
        self.namespace = namespace or server.new_namespace("release")
        self._where = ["--kubeconfig", str(server.kubeconfig), "-n", self.namespace]

    def install(self, *arguments: str, chart: Path = CHART) -> str:
        return self._helm.run("install", self._name, str(chart), *self._where, *arguments)

    def upgrade(self, *arguments: str, chart: Path = CHART) -> str:
        return self._helm.run("upgrade", self._name, str(chart), *self._where, *arguments)

    def uninstall(self) -> str:
        return self._helm.run("uninstall", self._name, *self._where)


@pytest.fixture
def release(helm: Helm, cluster: ApiServer) -> Iterator[Release]:
    made = Release(helm, cluster)
    yield made
    made.uninstall()


def crd_names(server: ApiServer) -> set[str]:
    return set(server.kubectl("get", "crd", "-o", "name").split())


def broker_fields(server: ApiServer) -> set[str]:
    """Return the fields of a Broker's spec according to the CRD in the cluster."""
    crd = json.loads(server.kubectl("get", "crd", "brokers.delaymq.io", "-o", "json"))
    return set(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


def may(server: ApiServer, account: str, verb: str, group: str, resource: str, namespace: str, name: str = "") -> bool:
    """Return whether a service account has a permission; an empty namespace stands for all namespaces."""
    resource, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace,
        "name": name,
    }  # fmt: skip
    review = server.create(
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": f"system:serviceaccount:{account}", "resourceAttributes": attributes},
        },
    )
    return bool(review["status"]["allowed"])


def older_chart(folder: Path) -> Path:
    """Return an older chart, whose Broker had no `networkPolicy`."""
    chart = folder / "delaymq"
    shutil.copytree(CHART, chart)
    path = chart / "crds/broker.yaml"
    crd = yaml.safe_load(path.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec.pop("networkPolicy")
    path.write_text(yaml.safe_dump(crd))
    return chart


def test_single_command_installs_crds_operator_and_first_broker(release: Release, bare: ApiServer) -> None:
    notes = release.install("--set", "broker.create=true", "--set", "broker.spec.size=2")
    assert crd_names(bare) >= {f"customresourcedefinition.apiextensions.k8s.io/{kind}.delaymq.io" for kind in
                              ("brokers", "topics", "delaylevelconfigs", "users")}  # fmt: skip
    made: dict[str, Any] = json.loads(bare.kubectl("-n", release.namespace, "get", "dmqb", "demo", "-o", "json"))
    assert made["spec"]["size"] == 2
    assert WARNING not in notes
    assert f"demo-namesrv.{release.namespace}:9876" in notes
    assert "analytics` also require the Kubeflow Spark operator" in notes
    assert "Spark" not in release.upgrade("--set", "rbac.analytics=false")


def test_operator_has_its_permissions_in_all_namespaces(release: Release, prepared: ApiServer) -> None:
    release.install("--set", "rbac.lostVolumes=true")
    account = f"{release.namespace}:delaymq-operator"
    for one in PERMISSIONS:
        if one.scope == "listed":
            continue
        namespace = release.namespace if one.scope == "own" else ""
        name = NAMED.get(one.verbs[0], "delaymq-operator" if one.scope == "own" else "")
        for verb in one.verbs:
            assert may(prepared, account, verb, one.group, one.resource, namespace, name), (verb, one)
    assert not may(prepared, account, "list", "", "secrets", "")
    assert not may(prepared, account, "bind", "rbac.authorization.k8s.io", "clusterroles", "", "edit")
    assert not may(prepared, account, "escalate", "rbac.authorization.k8s.io", "roles", "")
    # It grants brokers the change of their Leases, so it may change any.
    assert may(prepared, account, "update", "coordination.k8s.io", "leases", release.namespace, "of-another")
    release.upgrade("--set", "rbac.replication=false")
    assert not may(prepared, account, "update", "coordination.k8s.io", "leases", release.namespace, "of-another")
    assert may(prepared, account, "update", "coordination.k8s.io", "leases", release.namespace, "delaymq-operator")


def test_operator_of_listed_namespaces_may_only_remove_finalizers_elsewhere(
    release: Release, prepared: ApiServer
) -> None:
    shop, other = prepared.new_namespace("shop"), prepared.new_namespace("other")
    release.install("--set", f"watchNamespaces={{{shop}}}")
    account = f"{release.namespace}:delaymq-operator"
    lasting = {(one.resource, verb) for one in PERMISSIONS if one.scope == "lasting" for verb in one.verbs}
    for one in PERMISSIONS:
        for verb in one.verbs:
            name = NAMED.get(verb, "")
            if one.scope in ("watched", "listed"):
                assert may(prepared, account, verb, one.group, one.resource, shop, name), (verb, one)
            allowed = may(prepared, account, verb, one.group, one.resource, other, name)
            assert allowed == ((one.resource, verb) in lasting), (verb, one)


@pytest.mark.parametrize("kind", ["ClusterRole", "Role"])
def test_operator_binds_the_spark_role_without_holding_its_permissions(
    release: Release, prepared: ApiServer, kind: str
) -> None:
    shop = prepared.new_namespace("shop")
    release.install(*(("--set", f"watchNamespaces={{{shop}}}") if kind == "Role" else ()))
    operator = ("--as", f"system:serviceaccount:{release.namespace}:delaymq-operator", "-n", shop)
    bind = ("create", "rolebinding", f"--serviceaccount={shop}:demo-analytics")
    prepared.kubectl(*operator, *bind, "demo-analytics", f"--{kind.lower()}=delaymq-analytics")
    with pytest.raises(HarnessError, match="attempting to grant RBAC permissions not currently held"):
        prepared.kubectl(*operator, *bind, "more", "--clusterrole=cluster-admin")

    driver = f"{shop}:demo-analytics"
    assert may(prepared, driver, "deletecollection", "", "pods", shop)
    assert not may(prepared, driver, "get", "", "secrets", shop)
    assert not may(prepared, driver, "create", "", "pods", release.namespace)
    assert not may(prepared, f"{release.namespace}:delaymq-operator", "create", "", "pods", shop)


def test_admin_of_one_namespace_can_install_for_it(helm: Helm, cluster: ApiServer) -> None:
    """The role `admin` of a namespace suffices, except for analytics and replicas: it does not permit binding their
    roles.

    The CRDs exist already, and no other object is cluster-scoped.
    """
    namespace = cluster.new_namespace("tenant")
    cluster.install_crds()
    # Granting permissions requires holding them; aggregateToUserRoles grants admins those for the three kinds.
    rules = [
        {"apiGroups": [one.group], "resources": [one.resource], "verbs": ["*"]}
        for one in PERMISSIONS
        if not one.analytics and not one.replication
    ]
    # Neither bind nor escalate, as in `admin`.
    usual = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    cluster.create(f"{base}/roles", {"metadata": {"name": "tenant"}, "rules": [
        *rules,
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": usual},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]},
    ]})  # fmt: skip
    cluster.create(f"{base}/rolebindings", {
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
    })  # fmt: skip
    made = Release(helm, cluster, namespace=namespace)
    as_tenant = ("--kube-as-user", "tenant")
    with pytest.raises(HelmError, match="forbidden"):
        made.install("--skip-crds", *as_tenant)
    here = ("--skip-crds", "--set", f"watchNamespaces={{{namespace}}}", "--replace", *as_tenant)
    with pytest.raises(HelmError, match=r"attempting to grant (.|\n)*sparkapplications"):
        made.install(*here)
    with pytest.raises(HelmError, match=r"attempting to grant (.|\n)*endpointslices"):
        made.install(*here, "--set", "rbac.analytics=false")
    notes = made.install(*here, "--set", "rbac.analytics=false,rbac.replication=false")
    assert f"watches these namespaces: {namespace}" in notes
    made.uninstall()


def test_upgrade_warns_of_older_crds_and_the_documented_command_updates_them(
    release: Release, bare: ApiServer, helm: Helm, tmp_path: Path
) -> None:
    release.install(chart=older_chart(tmp_path))
    assert "networkPolicy" not in broker_fields(bare)
    assert WARNING in release.upgrade()

    bare.kubectl(*UPGRADE, stdin=helm.run("show", "crds", str(CHART)))
    assert WARNING not in release.upgrade()
    assert "networkPolicy" in broker_fields(bare)


def test_documented_command_updates_crds_that_kubectl_applied(bare: ApiServer, helm: Helm, tmp_path: Path) -> None:
    crds = helm.run("show", "crds", str(older_chart(tmp_path)))
    bare.kubectl("apply", "-f", "-", stdin=crds)
    bare.kubectl(*UPGRADE, stdin=helm.run("show", "crds", str(CHART)))
    assert "networkPolicy" in broker_fields(bare)


def test_existing_crds_do_not_hinder_an_install(release: Release, prepared: ApiServer) -> None:
    assert WARNING not in release.install()


def test_missing_crds_are_named(release: Release, bare: ApiServer) -> None:
    notes = release.install("--skip-crds")
    assert WARNING in notes
    assert "brokers.delaymq.io" in notes


def test_uninstall_keeps_crds_and_brokers_and_a_new_install_adopts_them(release: Release, prepared: ApiServer) -> None:
    release.install("--set", "broker.create=true")
    before = json.loads(prepared.kubectl("-n", release.namespace, "get", "dmqb", "demo", "-o", "json"))
    release.uninstall()
    assert json.loads(prepared.kubectl("-n", release.namespace, "get", "dmqb", "demo", "-o", "json")) == before
    assert len(crd_names(prepared)) == len(list((CHART / "crds").glob("*.yaml")))
    assert not prepared.kubectl("-n", release.namespace, "get", "deploy,role,rolebinding,svc,sa", "-l",
                            "helm.sh/chart", "-o", "name")  # fmt: skip

    release.install("--set", "broker.create=true")
    assert json.loads(prepared.kubectl("-n", release.namespace, "get", "dmqb", "demo", "-o", "json")) == before


def test_disabling_broker_creation_keeps_the_broker(release: Release, prepared: ApiServer) -> None:
    release.install("--set", "broker.create=true")
    release.upgrade("--set", "broker.create=false")
    assert prepared.kubectl("-n", release.namespace, "get", "dmqb", "-o", "name").strip() == "broker.delaymq.io/demo"


def test_invalid_broker_spec_is_rejected_with_the_field_name(release: Release, prepared: ApiServer) -> None:
    with pytest.raises(HelmError, match="size"):
        release.install("--set", "broker.create=true", "--set", "broker.spec.size=99")


def test_api_server_accepts_every_object_under_strict_validation(helm: Helm, cluster: ApiServer) -> None:
    """Unknown and misplaced fields are errors; the pods meet the restricted pod security standard."""
    cluster.install_crds()
    namespace = cluster.new_namespace("strict")
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "v1.29"}
    cluster.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    values = {"broker.create": True, "replicas": 2, "podAnnotations": {"a": "b"}, "nodeSelector": {"disk": "fast"},
              "tolerations": [{"operator": "Exists"}], "priorityClassName": "", "imagePullSecrets": [{"name": "x"}],
              "env": [{"name": "TZ", "value": "UTC"}], "metrics.dashboard.enabled": True,
              "affinity": {"podAntiAffinity": {}}, "topologySpreadConstraints": [
                  {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]}  # fmt: skip
    for chosen in (values, values | {"watchNamespaces": [namespace]}):
        objects = helm.render(chosen, namespace=namespace)
        text = yaml.safe_dump_all(objects)
        said = cluster.kubectl(
            "-n", namespace, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text
        )
        assert said.count("serverside-applied") == len(objects)
        pod = next(one for one in objects if one["kind"] == "Deployment")["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": pod["spec"]}
        pod["spec"].pop("serviceAccountName")
        cluster.kubectl("-n", namespace, "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
