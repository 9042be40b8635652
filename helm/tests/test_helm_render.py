"""Rendered objects of the chart: permissions, pod security, settings, and rejected values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from delaymq_helm_testing.helm_chart import CHART, Helm, HelmError, Object, alert_groups, of_kind, only
from delaymq_operator.adapters.permissions import PERMISSIONS
from delaymq_operator.api import names
from delaymq_operator.reconcile.context import ReconcileSettings
from delaymq_operator.settings import read_settings

EVERYTHING = {
    "broker.create": True,
    "metrics.serviceMonitor.enabled": True,
    "metrics.podMonitor.enabled": True,
    "metrics.prometheusRule.enabled": True,
    "metrics.dashboard.enabled": True,
}
CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
"""Cluster-scoped kinds that the chart can create."""


def allowed(rules: Iterable[Object]) -> set[tuple[str, str, str]]:
    """Return (group, resource, verb) for each permission of the rules."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(*scopes: str, analytics: bool = True, replication: bool = True) -> set[tuple[str, str, str]]:
    """Return the same for the operator's own table, with or without permissions that only analytics or replicas
    require.
    """
    table = [
        one
        for one in PERMISSIONS
        if one.scope in scopes and (analytics or not one.analytics) and (replication or not one.replication)
    ]
    return {(one.group, one.resource, verb) for one in table for verb in one.verbs}


def named(objects: list[Object], kind: str, name: str, namespace: str | None = None) -> Object:
    (found,) = [
        one
        for one in of_kind(objects, kind)
        if one["metadata"]["name"] == name and one["metadata"].get("namespace") == namespace
    ]
    return found


def operator_environment(objects: list[Object]) -> dict[str, str]:
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    fields = {"metadata.namespace": "delaymq", "metadata.name": "delaymq-operator-0"}
    return {
        one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container["env"]
    }


def pod_specs(objects: list[Object]) -> list[Object]:
    return [only(objects, "Deployment")["spec"]["template"]["spec"], only(objects, "Pod")["spec"]]


def test_operator_role_has_exactly_the_required_permissions(helm: Helm) -> None:
    objects = helm.render()
    assert allowed(named(objects, "ClusterRole", "delaymq-operator")["rules"]) == needed("watched", "all")
    lease = only(objects, "Role")
    assert lease["metadata"]["namespace"] == "delaymq"
    assert allowed(lease["rules"]) == needed("own")


def test_operator_of_listed_namespaces_may_only_remove_finalizers_cluster_wide(helm: Helm) -> None:
    objects = helm.render({"watchNamespaces": ["shop", "billing"]})
    lasting = only(objects, "ClusterRole")
    assert allowed(lasting["rules"]) == needed("lasting")
    binding = only(objects, "ClusterRoleBinding")
    assert lasting["metadata"]["name"] == binding["roleRef"]["name"] == "delaymq-operator-finalizers-delaymq"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "delaymq-operator", "namespace": "delaymq"}]
    for namespace in ("shop", "billing"):
        assert allowed(named(objects, "Role", "delaymq-operator", namespace)["rules"]) == needed("watched", "listed")
        binding = named(objects, "RoleBinding", "delaymq-operator", namespace)
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "delaymq-operator", "namespace": "delaymq"}]
    assert len(of_kind(objects, "Role")) == 5


@pytest.mark.parametrize("values", [
    {"watchNamespaces": ["shop"], "rbac.finalizers": False},
    # The operator is deleted with its own namespace, so the permission would be useless.
    {"watchNamespaces": ["delaymq"]},
])  # fmt: skip
def test_chart_can_be_rendered_without_cluster_wide_permissions(helm: Helm, values: dict[str, Any]) -> None:
    assert not CLUSTER_KINDS & {one["kind"] for one in helm.render(values)}


def test_operator_can_access_only_its_own_lease(helm: Helm) -> None:
    objects = helm.render()
    (renewing,) = [rule for rule in only(objects, "Role")["rules"] if "update" in rule["verbs"]]
    assert renewing["resourceNames"] == [operator_environment(objects)["DELAYMQ_OPERATOR_LEASE_NAME"]]


def test_user_roles_cover_the_three_kinds_and_can_be_disabled(helm: Helm) -> None:
    programs = ("delaymq-operator", "delaymq-analytics")
    people = [one for one in of_kind(helm.render(), "ClusterRole") if one["metadata"]["name"] not in programs]
    assert len(people) == 2
    assert {rule["apiGroups"][0] for role in people for rule in role["rules"]} == {"delaymq.io"}
    assert len(of_kind(helm.render({"rbac.aggregateToUserRoles": False}), "ClusterRole")) == 2


@pytest.mark.parametrize("watched", [[], ["shop"]])
def test_operator_may_bind_only_the_spark_role(helm: Helm, watched: list[str]) -> None:
    objects = helm.render({"watchNamespaces": watched, "fullnameOverride": "queues"})
    environment = operator_environment(objects)
    kind, name = environment["DELAYMQ_OPERATOR_ANALYTICS_ROLE_KIND"], environment["DELAYMQ_OPERATOR_ANALYTICS_ROLE"]
    assert (kind, name) == ("Role" if watched else "ClusterRole", "queues-analytics")
    given = named(objects, kind, name, *watched)
    assert {rule["apiGroups"][0] for rule in given["rules"]} == {""}
    assert not [verb for _, resource, verb in allowed(given["rules"]) if resource in ("secrets", "serviceaccounts")]
    rules = named(objects, kind, "queues-operator", *watched)["rules"]
    (binding,) = [rule for rule in rules if "bind" in rule["verbs"]]
    assert (binding["resources"], binding["resourceNames"]) == ([f"{kind.lower()}s"], [name])
    bound = [one["roleRef"]["name"] for one in objects if one["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    assert name not in bound, "only a Broker with analytics needs it"


def test_spark_driver_has_the_permissions_for_spark_and_the_report(helm: Helm) -> None:
    """The calls of Spark 4.3's scheduler backend in cluster mode, and those that publish the result."""
    may = allowed(named(helm.render(), "ClusterRole", "delaymq-analytics")["rules"])
    pods = {("", "pods", verb) for verb in ("get", "list", "watch", "create", "patch", "delete", "deletecollection")}
    assert may == pods | {
        ("", "configmaps", "create"), ("", "configmaps", "deletecollection"), ("", "configmaps", "patch"),
        ("", "services", "deletecollection"),
        ("", "persistentvolumeclaims", "list"), ("", "persistentvolumeclaims", "create"),
        ("", "persistentvolumeclaims", "deletecollection"),
    }  # fmt: skip


@pytest.mark.parametrize("watched", [[], ["shop"]])
def test_analytics_can_be_disabled_with_all_their_permissions(helm: Helm, watched: list[str]) -> None:
    objects = helm.render({"watchNamespaces": watched, "rbac.analytics": False})
    kind = "Role" if watched else "ClusterRole"
    rules = named(objects, kind, "delaymq-operator", *watched)["rules"]
    assert allowed(rules) == needed("watched", "all", "listed", analytics=False)
    assert "delaymq-analytics" not in {one["metadata"]["name"] for one in of_kind(objects, kind)}


@pytest.mark.parametrize("watched", [[], ["shop"]])
def test_replicas_can_be_disabled_with_all_their_permissions(helm: Helm, watched: list[str]) -> None:
    objects = helm.render({"watchNamespaces": watched, "rbac.replication": False})
    rules = named(objects, "Role" if watched else "ClusterRole", "delaymq-operator", *watched)["rules"]
    scope = "listed" if watched else "all"
    assert allowed(rules) == needed("watched", scope, replication=False)


@pytest.mark.parametrize("watched", [[], ["shop"]])
def test_operator_reads_nodes_and_volumes_only_on_request(helm: Helm, watched: list[str]) -> None:
    values = {"watchNamespaces": watched, "rbac.finalizers": False}
    rules = [rule for one in helm.render(values) if one["kind"].endswith("Role") for rule in one["rules"]]
    assert not allowed(rules) & needed("cluster")
    objects = helm.render(values | {"rbac.lostVolumes": True})
    name = "delaymq-operator-volumes-delaymq"
    assert allowed(named(objects, "ClusterRole", name)["rules"]) == needed("cluster")
    binding = named(objects, "ClusterRoleBinding", name)
    assert (binding["roleRef"]["name"], binding["subjects"][0]["namespace"]) == (name, "delaymq")


def test_disabling_rbac_creates_no_rbac_objects(helm: Helm) -> None:
    kinds = {one["kind"] for one in helm.render({"rbac.create": False, "rbac.lostVolumes": True})}
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def test_operator_parses_the_settings_that_the_chart_passes(helm: Helm) -> None:
    values = {
        "watchNamespaces": ["shop", "billing"],
        "brokerImage": {"repository": "registry.example/broker", "tag": "7"},
        "analytics": {"image": {"repository": "registry.example/spark", "tag": "8"}},
        "settings": {"pollIntervalS": 2.5, "workers": 3, "logFormat": "json", "clusterDomain": "svc.cluster.local"},
    }
    read = read_settings([], operator_environment(helm.render(values)))
    assert read.namespaces == ("shop", "billing")
    assert read.default_image == "registry.example/broker:7"
    assert read.analytics_image == "registry.example/spark:8"
    assert (read.analytics_role, read.analytics_role_kind) == ("delaymq-analytics", "Role")
    assert (read.poll_interval_s, read.workers, read.log_format) == (2.5, 3, "json")
    assert read.cluster_domain == "svc.cluster.local"
    assert (read.namespace, read.pod_name, read.lease_name) == ("delaymq", "delaymq-operator-0", "delaymq-operator")
    assert read.lease


def test_operator_watches_all_namespaces_by_default(helm: Helm) -> None:
    assert read_settings([], operator_environment(helm.render())).namespaces == ()


def test_digest_takes_precedence_over_tag(helm: Helm) -> None:
    digest = "sha256:" + "a" * 64
    objects = helm.render({"image.digest": digest, "image.tag": "x", "brokerImage.digest": digest})
    assert {spec["containers"][0]["image"] for spec in pod_specs(objects)} == {f"delaymq/operator@{digest}"}
    assert operator_environment(objects)["DELAYMQ_OPERATOR_DEFAULT_IMAGE"] == f"delaymq/broker@{digest}"
    objects = helm.render({"analytics.image.digest": digest})
    assert operator_environment(objects)["DELAYMQ_OPERATOR_ANALYTICS_IMAGE"] == f"delaymq/spark@{digest}"


def test_all_pods_meet_the_restricted_standard(helm: Helm) -> None:
    for spec in pod_specs(helm.render()):
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert {"requests", "limits"} <= set(container["resources"])


def test_service_environment_variables_are_disabled(helm: Helm) -> None:
    """A Service delaymq-operator would set DELAYMQ_OPERATOR_PORT, which the operator rejects as a misspelt setting."""
    assert only(helm.render(), "Deployment")["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_network_policies_of_brokers_admit_the_pods_of_the_chart(helm: Helm) -> None:
    labels = only(helm.render(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert dict(ReconcileSettings(default_image="x").operator_labels).items() <= labels.items()


def test_pod_labels_do_not_override_selector_labels(helm: Helm) -> None:
    deployment = only(helm.render({"podLabels": {"app.kubernetes.io/name": "mine", "team": "shop"}}), "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "shop"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_uninstall_keeps_the_crds_and_the_broker(helm: Helm) -> None:
    objects = helm.render(EVERYTHING)
    assert not of_kind(objects, "CustomResourceDefinition"), "Helm would delete them with the release"
    assert only(objects, "Broker")["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_broker_spec_is_passed_on_unchanged(helm: Helm) -> None:
    spec = {"size": 2, "storage": {"size": "1Gi"}, "config": {"fileReservedTime": "48"}}
    made = only(helm.render({"broker": {"create": True, "name": "orders", "spec": spec}}), "Broker")
    assert made["metadata"]["name"] == "orders"
    assert made["spec"] == spec


def test_lateness_threshold_of_the_alert_comes_from_the_values(helm: Helm) -> None:
    rendered = only(helm.render(EVERYTHING | {"metrics.prometheusRule.latenessSeconds": 0.25}), "PrometheusRule")
    rules = {rule["alert"]: rule["expr"] for group in rendered["spec"]["groups"] for rule in group["rules"]}
    assert rules["DelayMQDeliveryLate"].endswith("> 0.25")


def test_tested_rules_equal_those_that_helm_renders(helm: Helm) -> None:
    rendered = only(helm.render(EVERYTHING, namespace="queues"), "PrometheusRule")
    assert rendered["spec"]["groups"] == alert_groups("queues")


def test_brokers_are_scraped_in_the_watched_namespaces(helm: Helm) -> None:
    everywhere = only(helm.render(EVERYTHING), "PodMonitor")["spec"]["namespaceSelector"]
    here = only(helm.render(EVERYTHING | {"watchNamespaces": ["delaymq"]}), "PodMonitor")["spec"]["namespaceSelector"]
    assert (everywhere, here) == ({"any": True}, {"matchNames": ["delaymq"]})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"replica": 2}, "additional properties 'replica' not allowed"),
        ({"analytics": {"schedule": "@daily"}}, "at '/analytics': additional properties 'schedule' not allowed"),
        ({"replicas": 3}, "at '/replicas': maximum"),
        ({"image": {"repo": "x"}}, "at '/image': additional properties 'repo' not allowed"),
        ({"settings": {"pollInterval": 3}}, "at '/settings': additional properties 'pollInterval' not allowed"),
        ({"settings": {"logFormat": "xml"}}, "at '/settings/logFormat': value must be one of"),
        ({"watchNamespaces": ["Shop"]}, "at '/watchNamespaces/0': 'Shop' does not match pattern"),
        ({"watchNamespaces": "shop"}, "at '/watchNamespaces': got string, want array"),
        ({"broker": {"create": True, "name": "UPPER"}}, "at '/broker/name': 'UPPER' does not match pattern"),
        ({"broker": {"create": True}, "watchNamespaces": ["shop"]}, "not among watchNamespaces: add it there"),
        (
            {"metrics": {"serviceMonitor": {"enabled": True}, "service": {"enabled": False}}},
            "metrics.serviceMonitor.enabled requires metrics.service.enabled",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else str(next(iter(value))),
)
def test_invalid_values_are_rejected_with_a_sentence(helm: Helm, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HelmError) as caught:
        helm.render(values)
    assert sentence in str(caught.value)


def test_older_kubernetes_is_rejected(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"requires kubeVersion: >=1\.31"):
        helm.run("template", "delaymq", str(CHART), "--kube-version", "1.30.9")


def test_helm_lint_reports_no_failures(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


def test_monitor_scrapes_pods_that_require_tls_over_https(helm: Helm) -> None:
    [endpoint] = only(helm.render({"metrics.podMonitor.enabled": True}), "PodMonitor")["spec"]["podMetricsEndpoints"]
    [rule] = endpoint["relabelings"]
    # Prometheus replaces the characters of the annotation that a label cannot contain.
    annotation = re.sub("[^a-zA-Z0-9_]", "_", names.HTTP_SCHEME_ANNOTATION)
    assert rule == {
        "sourceLabels": [f"__meta_kubernetes_pod_annotation_{annotation}"],
        "regex": "https",
        "targetLabel": "__scheme__",
        "replacement": "https",
    }
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}
    values = {"metrics.podMonitor.enabled": True, "metrics.podMonitor.tlsConfig": {"insecureSkipVerify": False}}
    [endpoint] = only(helm.render(values), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": False}
