"""The pods of brokers and NameServers."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from delaymq_operator.api.broker import Broker, parse_broker
from delaymq_operator.manifests import Context, GroupContext, broker_stateful_set, name_server_stateful_set
from delaymq_operator.reconcile.ports import Manifest

CONTEXT = Context(image="delaymq/broker:1", token="sesame")
GROUP = GroupContext(group=1, advertised_address="10.96.0.7", storage_size="10Gi")
Make = Callable[..., Manifest]


def broker(**spec: Any) -> Broker:
    return parse_broker({"metadata": {"name": "demo", "namespace": "ns", "uid": "u-1"}, "spec": spec})


def stateful_sets(of: Broker) -> list[Manifest]:
    return [broker_stateful_set(of, CONTEXT, GROUP), name_server_stateful_set(of, CONTEXT)]


@pytest.fixture(params=["broker", "namesrv"])
def made(request: pytest.FixtureRequest) -> Make:
    """Return a function that renders the StatefulSet of a spec: that of brokers, then that of NameServers."""
    which = ("broker", "namesrv").index(request.param)
    return lambda **spec: stateful_sets(broker(**spec))[which]


def pod_of(stateful_set: Manifest) -> Manifest:
    spec: Manifest = stateful_set["spec"]["template"]["spec"]
    return spec


def test_pods_meet_restricted_pod_security_standard(made: Make) -> None:
    pod = pod_of(made())
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    allowed = {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "projected"}
    assert all((set(volume) - {"name"}) <= allowed for volume in pod["volumes"])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_pods_get_no_api_token_and_no_service_variables(made: Make) -> None:
    pod = pod_of(made())
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["serviceAccountName"] == "demo-broker"


def test_volumes_get_group_of_image_without_recursive_ownership_change(made: Make) -> None:
    security = pod_of(made())["securityContext"]
    assert security["fsGroup"] == security["runAsGroup"] == 10001
    assert security["fsGroupChangePolicy"] == "OnRootMismatch"


def test_writable_directories_are_mounted(made: Make) -> None:
    container = pod_of(made())["containers"][0]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/tmp", "/var/lib/delaymq"}


def test_probes_use_http_and_allow_an_hour_for_recovery(made: Make) -> None:
    container = pod_of(made())["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[name]["httpGet"] == {"path": path, "port": "http"}
    assert "http" in ports
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600
    assert container["readinessProbe"]["periodSeconds"] <= 2


def test_stateful_sets_restart_pods_only_on_delete(made: Make) -> None:
    assert made()["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_selectors_do_not_depend_on_spec(made: Make) -> None:
    plain = made()
    other = made(
        size=5,
        image="other:2",
        podTemplate={"labels": {"team": "orders"}, "annotations": {"a": "b"}},
        resources={"limits": {"memory": "1Gi"}},
        external={"type": "NodePort", "advertisedAddress": "192.0.2.1"},
    )
    assert plain["spec"]["selector"] == other["spec"]["selector"]
    assert plain["spec"]["selector"]["matchLabels"].items() <= other["spec"]["template"]["metadata"]["labels"].items()


def test_broker_owns_stateful_sets_but_not_claims(made: Make) -> None:
    found = made()
    [owner] = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Broker", "demo", "u-1")
    assert owner["controller"] is True
    assert owner["blockOwnerDeletion"] is True
    assert all("ownerReferences" not in claim["metadata"] for claim in found["spec"].get("volumeClaimTemplates", []))


def test_pods_prefer_different_nodes_unless_affinity_is_set(made: Make) -> None:
    softly = pod_of(made())["affinity"]["podAntiAffinity"]
    assert list(softly) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    hard: Manifest = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    assert pod_of(made(podTemplate={"affinity": hard}))["affinity"] == hard
    node: Manifest = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    assert pod_of(made(podTemplate={"affinity": node}))["affinity"].keys() == {"podAntiAffinity", "nodeAffinity"}


def test_pod_template_is_applied_but_cannot_override_reserved_labels(made: Make) -> None:
    stateful_set = made(
        imagePullSecrets=[{"name": "pull"}],
        podTemplate={
            "labels": {"team": "orders", "app.kubernetes.io/instance": "stolen"},
            "annotations": {"note": "x"},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "priorityClassName": "high",
            "serviceAccountName": "mine",
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        },
    )
    metadata, pod = stateful_set["spec"]["template"]["metadata"], pod_of(stateful_set)
    assert metadata["labels"]["team"] == "orders"
    assert metadata["labels"]["app.kubernetes.io/instance"] == "demo"
    assert metadata["annotations"]["note"] == "x"
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    assert pod["priorityClassName"] == "high"
    assert pod["serviceAccountName"] == "mine"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    [constraint] = pod["topologySpreadConstraints"]
    assert constraint["labelSelector"]["matchLabels"] == stateful_set["spec"]["selector"]["matchLabels"] or (
        constraint["labelSelector"]["matchLabels"].items() < stateful_set["spec"]["selector"]["matchLabels"].items()
    )


def environment(stateful_set: Manifest) -> dict[str, str | None]:
    return {entry["name"]: entry.get("value") for entry in pod_of(stateful_set)["containers"][0]["env"]}


def test_broker_gets_name_and_addresses_from_variables() -> None:
    found = environment(broker_stateful_set(broker(nameServers={"replicas": 2}), CONTEXT, GROUP))
    assert found["DELAYMQ_BROKER_NAME"] == "demo-1"
    assert found["DELAYMQ_BROKER_CLUSTER_NAME"] == "demo"
    assert found["DELAYMQ_BROKER_IP1"] == "10.96.0.7"
    assert found["DELAYMQ_NAMESRV_ADDR"] == (
        "demo-namesrv-0.demo-namesrv-pods.ns.svc:9876;demo-namesrv-1.demo-namesrv-pods.ns.svc:9876"
    )
    elsewhere = environment(broker_stateful_set(broker(nameServers={"addresses": ["a:1", "b:2"]}), CONTEXT, GROUP))
    assert elsewhere["DELAYMQ_NAMESRV_ADDR"] == "a:1;b:2"


def test_name_server_addresses_use_configured_cluster_domain() -> None:
    context = replace(CONTEXT, cluster_domain="svc.cluster.local")
    found = environment(broker_stateful_set(broker(), context, GROUP))
    assert found["DELAYMQ_NAMESRV_ADDR"] == "demo-namesrv-0.demo-namesrv-pods.ns.svc.cluster.local:9876"


def test_token_appears_only_in_secret() -> None:
    assert "sesame" not in json.dumps(stateful_sets(broker()))


def test_user_variables_cannot_override_reserved_ones() -> None:
    env = [{"name": "TZ", "value": "UTC"}, {"name": "DELAYMQ_BROKER_NAME", "value": "x"}]
    stateful_set = broker_stateful_set(broker(podTemplate={"env": env}), CONTEXT, GROUP)
    names = [entry["name"] for entry in pod_of(stateful_set)["containers"][0]["env"]]
    assert len(names) == len(set(names))
    assert environment(stateful_set)["TZ"] == "UTC"
    assert environment(stateful_set)["DELAYMQ_BROKER_NAME"] == "demo-1"


@pytest.mark.parametrize(("delete_claim", "kept"), [(False, "Retain"), (True, "Delete")])
def test_claims_outlive_broker_unless_delete_claim_is_set(delete_claim: bool, kept: str) -> None:
    found = broker_stateful_set(broker(storage={"deleteClaim": delete_claim}), CONTEXT, GROUP)
    policy = found["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": kept, "whenScaled": "Retain"}


def test_claim_has_size_class_and_labels() -> None:
    found = broker_stateful_set(broker(storage={"storageClassName": "fast"}), CONTEXT, GROUP)
    [claim] = found["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "delaymq-operator"
    assert claim["metadata"]["labels"]["delaymq.io/group"] == "1"


def test_manifests_are_identical_for_equal_input() -> None:
    spec = {
        "podTemplate": {"labels": {"b": "1", "a": "2"}, "nodeSelector": {"z": "1", "y": "2"}},
        "resources": {"requests": {"memory": "1Gi", "cpu": "1"}},
        "config": {"fileReservedTime": "48", "autoCreateTopicEnable": "false"},
    }
    swapped = json.loads(json.dumps(spec))
    swapped["podTemplate"]["labels"] = {"a": "2", "b": "1"}
    swapped["podTemplate"]["nodeSelector"] = {"y": "2", "z": "1"}
    swapped["resources"]["requests"] = {"cpu": "1", "memory": "1Gi"}
    assert json.dumps(stateful_sets(broker(**spec))) == json.dumps(stateful_sets(broker(**swapped)))
