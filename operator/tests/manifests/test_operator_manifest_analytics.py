"""The SparkApplication of a group: fields for the Spark operator, pods, command, user settings."""

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from cluster.paths import artifacts_path
from delaymq_operator.api.analytics_names import spark_key_owner
from delaymq_operator.api.broker import Broker, parse_broker
from delaymq_operator.manifests import (
    AnalyticsRun,
    Context,
    analytics_application,
    analytics_network_policy,
    analytics_result,
    analytics_role_binding,
    analytics_service_account,
    supporting_objects,
)
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.network_policies import selects

RUN = AnalyticsRun(group=1, token="29654400", image="delaymq/spark:1", read="HTTP")
BESIDE = AnalyticsRun(
    group=1,
    token="29654400",
    image="delaymq/spark:1",
    read="Volume",
    settings={"messageDelayLevel": "1s 5s", "fileReservedTime": "9"},
)
EVERYTHING: dict[str, Any] = {
    "schedule": "0 3 * * *",
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "pull"}],
    "driver": {"cores": 2, "coreRequest": "100m", "coreLimit": "2", "memory": "2g", "memoryOverhead": "300m"},
    "executor": {"instances": 4, "cores": 3, "coreRequest": 1, "memory": "3g"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"operator": "Exists"}],
    "sparkConf": {"spark.sql.shuffle.partitions": "7"},
    "keyedTopics": ["orders", "users"],
    "promiseP99Milliseconds": 50,
    "minDeadPercent": 7,
    "resultsClaim": "results",
}
USED = {
    "spec": {
        "arguments", "driver", "executor", "image", "imagePullPolicy", "imagePullSecrets", "mainApplicationFile",
        "mode", "pythonVersion", "restartPolicy", "sparkConf", "sparkVersion", "type",
    },
    "spec.driver": {
        "coreLimit", "coreRequest", "cores", "envSecretKeyRefs", "labels", "memory", "memoryOverhead", "serviceAccount",
        "template",
    },
    "spec.executor": {
        "coreRequest", "cores", "envSecretKeyRefs", "instances", "labels", "memory", "template",
    },
}  # fmt: skip
"""Fields of a SparkApplication (v1beta2) that the operator uses; the Spark operator's CRD must contain them."""


def broker(name: str = "demo", network: bool = False, **analytics: Any) -> Broker:
    spec = {"analytics": analytics, "networkPolicy": {"enabled": network}}
    return parse_broker({"metadata": {"name": name, "namespace": "ns", "uid": "u-1"}, "spec": spec})


def application(run: AnalyticsRun = RUN, name: str = "demo", **analytics: Any) -> Manifest:
    of = broker(name, **analytics)
    assert of.spec.analytics is not None
    return analytics_application(of, of.spec.analytics, run)


def pods(made: Manifest) -> dict[str, Manifest]:
    return {role: made["spec"][role]["template"]["spec"] for role in ("driver", "executor")}


def option(made: Manifest, name: str) -> str | None:
    arguments = made["spec"]["arguments"]
    return arguments[arguments.index(name) + 1] if name in arguments else None


def unknown_fields(schema: Manifest, value: Any, path: str = "") -> Iterator[str]:
    """Yield the violations of a schema by a value: unknown and missing fields, other types, other choices."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    kind = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}.get(schema.get("type", ""))
    if kind is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        yield f"{path} is no {schema['type']}"
    elif isinstance(value, dict):
        yield from (f"{path}.{name} is missing" for name in schema.get("required", []) if name not in value)
        for name, each in value.items():
            child = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if child is None:
                yield f"{path}.{name} is not known"
            else:
                yield from unknown_fields(child, each, f"{path}.{name}")
    elif isinstance(value, list):
        for each in value:
            yield from unknown_fields(schema["items"], each, f"{path}[]")
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{path} is none of {schema['enum']}"


def spark_operator_schema() -> Manifest | None:
    """Return the schema of the Spark operator of the e2e tests, or None if it has not been downloaded."""
    for file in artifacts_path().glob("spark-operator-*/chart/crds/*_sparkapplications.yaml"):
        [version] = yaml.safe_load(file.read_text())["spec"]["versions"]
        return version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return None


def used(made: Manifest) -> dict[str, set[str]]:
    found = {"spec": set(made["spec"])}
    return found | {f"spec.{role}": set(made["spec"][role]) for role in ("driver", "executor")}


def test_used_fields_match_recorded_list() -> None:
    assert used(application(**EVERYTHING)) == USED


@pytest.mark.parametrize("run", [RUN, BESIDE], ids=["http", "volume"])
@pytest.mark.parametrize("analytics", [{}, EVERYTHING], ids=["nothing", "everything"])
def test_application_conforms_to_schema_of_spark_operator(run: AnalyticsRun, analytics: Manifest) -> None:
    made = application(run, **analytics)
    schema = spark_operator_schema()
    if schema is not None:
        assert list(unknown_fields(schema, made["spec"])) == []
        wrong = copy.deepcopy(made["spec"])
        wrong["driver"]["core"] = 1
        assert list(unknown_fields(schema, wrong)) == [".driver.core is not known"]
    assert all(used(made)[path] <= known for path, known in USED.items())


def test_application_is_owned_by_broker_and_named_after_group_and_run() -> None:
    metadata = application()["metadata"]
    assert metadata["name"] == "demo-analytics-1-29654400"
    assert metadata["ownerReferences"][0]["uid"] == "u-1"
    assert metadata["labels"]["app.kubernetes.io/component"] == "analytics"
    assert metadata["labels"]["delaymq.io/group"] == "1"


def test_spark_operator_does_not_restart_failed_application() -> None:
    assert application()["spec"]["restartPolicy"] == {"type": "Never"}


def test_application_reads_store_through_http_service_of_group() -> None:
    assert option(application(), "--store") == "http://demo-broker-1.ns.svc:8080"
    assert option(application(), "--publish") == "configmap/ns/demo-analytics-1-29654400"
    assert "--levels" not in application()["spec"]["arguments"]
    for role in ("driver", "executor"):
        refs = application()["spec"][role]["envSecretKeyRefs"]
        assert refs == {"DELAYMQ_HTTP_TOKEN": {"name": "demo-http-token", "key": "token"}}
        assert "affinity" not in pods(application())[role]


def test_application_mounts_volume_read_only_on_node_of_broker() -> None:
    made = application(BESIDE)
    assert option(made, "--store") == "/mnt/delaymq/store"
    assert option(made, "--levels") == "1s 5s"
    assert option(made, "--retention-hours") == "9"
    for pod in pods(made).values():
        [volume] = [each for each in pod["volumes"] if each["name"] == "store"]
        assert volume["persistentVolumeClaim"]["claimName"] == "store-demo-broker-1-0"
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "store"]
        assert mount == {"name": "store", "mountPath": "/mnt/delaymq", "readOnly": True}
        [term] = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        labels = term["labelSelector"]["matchLabels"]
        assert labels["app.kubernetes.io/component"] == "broker"
        assert labels["delaymq.io/group"] == "1"
        assert term["topologyKey"] == "kubernetes.io/hostname"


def test_spec_is_translated_into_command_options() -> None:
    made = application(**EVERYTHING)
    assert made["spec"]["arguments"][0] == "report"
    assert "--skipped-ok" in made["spec"]["arguments"]
    assert "--keyed-topics=orders,users" in made["spec"]["arguments"]
    assert option(made, "--promise-p99-ms") == "50"
    assert option(made, "--min-dead-ratio") == "0.07"
    assert option(made, "--out") == "/results/demo-analytics-1-29654400"
    assert option(application(), "--out") is None


def test_pods_meet_restricted_pod_security_standard_without_webhook() -> None:
    for role, pod in pods(application(**EVERYTHING)).items():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        [container] = pod["containers"]
        assert container["name"] == f"spark-kubernetes-{role}"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        writable = {each["name"] for each in pod["volumes"] if "emptyDir" in each}
        assert {mounts["/tmp"], mounts["/var/lib/delaymq"]} <= writable
        assert pod["nodeSelector"] == {"disk": "ssd"}
        assert pod["tolerations"] == [{"operator": "Exists"}]
        assert pod["enableServiceLinks"] is False


def test_only_driver_has_service_account_token() -> None:
    made = application()
    assert made["spec"]["driver"]["serviceAccount"] == "demo-analytics"
    assert "automountServiceAccountToken" not in pods(made)["driver"]
    assert pods(made)["executor"]["automountServiceAccountToken"] is False
    assert application(serviceAccountName="mine")["spec"]["driver"]["serviceAccount"] == "mine"


def test_watch_labels_select_drivers_but_not_executors() -> None:
    made = application()
    labels = made["metadata"]["labels"]
    assert (labels | made["spec"]["driver"]["labels"])["app.kubernetes.io/managed-by"] == "delaymq-operator"
    executors = labels | made["spec"]["executor"]["labels"]
    assert executors["app.kubernetes.io/managed-by"] != "delaymq-operator"
    assert executors["app.kubernetes.io/instance"] == "demo"
    assert executors["app.kubernetes.io/component"] == "analytics"


def test_pod_templates_have_no_metadata() -> None:
    for role in ("driver", "executor"):
        assert "metadata" not in application()["spec"][role]["template"]


def test_resource_sizes_are_copied_into_application() -> None:
    made = application(**EVERYTHING)["spec"]
    driver = {key: made["driver"][key] for key in ("cores", "coreRequest", "coreLimit", "memory", "memoryOverhead")}
    assert driver == EVERYTHING["driver"]
    assert made["executor"]["instances"] == 4
    assert made["executor"]["coreRequest"] == "1"
    assert made["imagePullSecrets"] == ["pull"]
    plain = application()["spec"]
    assert (plain["driver"]["memory"], plain["executor"]["instances"]) == ("1g", 1)


def test_user_properties_never_override_those_of_operator() -> None:
    mine = application()["spec"]["sparkConf"]
    assert mine["spark.local.dir"].startswith("/tmp/")
    assert all(spark_key_owner(key) for key in mine)
    users = {"spark.local.dir": "/", "spark.kubernetes.driver.podTemplateFile": "x", "spark.sql.ansi.enabled": "false"}
    users |= {"spark.kubernetes.driver.scheduler.name": "${env:SECRET}", "spark.kubernetes.submission.x": "y"}
    assert application(sparkConf=users)["spec"]["sparkConf"] == mine | {"spark.sql.ansi.enabled": "false"}


def test_network_policy_step_of_spark_is_disabled() -> None:
    excluded = "spark.kubernetes.driver.pod.excludedFeatureSteps"
    step = "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
    assert application(sparkConf={excluded: ""})["spec"]["sparkConf"][excluded] == step


@pytest.mark.parametrize("name", ["b", "b" * 40, "a-" * 19 + "bb"])
@pytest.mark.parametrize("group", [0, 31])
def test_driver_name_fits_label_limit(name: str, group: int) -> None:
    run = AnalyticsRun(group=group, token="d1234567", image="i", read="HTTP")
    assert len(application(run, name)["metadata"]["name"] + "-driver") <= 63


def test_result_is_owned_by_application_and_not_watched() -> None:
    made = application() | {}
    made["metadata"]["uid"] = "u-2"
    result = analytics_result(broker(), made)
    assert result["metadata"]["name"] == made["metadata"]["name"]
    assert [owner["uid"] for owner in result["metadata"]["ownerReferences"]] == ["u-2"]
    assert "app.kubernetes.io/managed-by" not in result["metadata"]["labels"]
    assert "data" not in result


def test_service_account_is_bound_to_role_of_chart() -> None:
    of = broker()
    account, binding = analytics_service_account(of), analytics_role_binding(of, "delaymq-analytics", "ClusterRole")
    assert account["metadata"]["name"] == binding["subjects"][0]["name"] == "demo-analytics"
    assert binding["subjects"][0]["namespace"] == "ns"
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "delaymq-analytics",
    }


def test_policy_admits_spark_pods_to_http_port_only() -> None:
    made = supporting_objects(broker(network=True), Context(image="i", token="t"), [0])
    [policy] = [each for each in made if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "demo-broker"]
    peer = {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": "analytics"}
    rules = [rule for rule in policy["spec"]["ingress"] if {"podSelector": {"matchLabels": peer}} in rule["from"]]
    assert [[port["port"] for port in rule["ports"]] for rule in rules] == [[8080]]


def test_policy_of_spark_pods_is_owned_by_broker_and_covers_ingress_only() -> None:
    policy = analytics_network_policy(broker())
    assert policy["metadata"]["name"] == "demo-analytics"
    assert [owner["uid"] for owner in policy["metadata"]["ownerReferences"]] == ["u-1"]
    assert policy["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "delaymq-operator"
    assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_policy_of_spark_pods_selects_no_foreign_pods() -> None:
    labels = {"app.kubernetes.io/instance": "demo", "app.kubernetes.io/component": "analytics"}
    assert not selects(analytics_network_policy(broker())["spec"]["podSelector"], labels)
    theirs = labels | {"app.kubernetes.io/name": "shop"}
    assert not selects(analytics_network_policy(broker())["spec"]["podSelector"], theirs)


def test_pods_verify_brokers_that_require_tls_by_the_ca_of_their_certificate() -> None:
    spec = {"analytics": {}, "tls": {"generate": {}, "mode": "enforcing"}}
    of = parse_broker({"metadata": {"name": "demo", "namespace": "ns", "uid": "u-1"}, "spec": spec})
    assert of.spec.analytics is not None
    made = analytics_application(of, of.spec.analytics, dataclasses.replace(RUN, https=True))["spec"]
    assert "https://demo-broker-1.ns.svc:8080" in made["arguments"]
    for pod in (made["driver"]["template"]["spec"], made["executor"]["template"]["spec"]):
        [container] = pod["containers"]
        [volume] = [each for each in pod["volumes"] if each["name"] == "ca"]
        assert volume["secret"] == {"secretName": "demo-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        [mount] = [each for each in container["volumeMounts"] if each["name"] == "ca"]
        assert container["env"] == [{"name": "SSL_CERT_FILE", "value": f"{mount['mountPath']}/ca.crt"}]
    beside = analytics_application(of, of.spec.analytics, dataclasses.replace(BESIDE, https=True))
    assert "ca.crt" not in str(beside)
