"""What the pods of a Broker are made like."""

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
    """A function from a spec to the StatefulSet of brokers, and to that of NameServers."""
    which = ("broker", "namesrv").index(request.param)
    return lambda **spec: stateful_sets(broker(**spec))[which]


def pod_of(stateful_set: Manifest) -> Manifest:
    spec: Manifest = stateful_set["spec"]["template"]["spec"]
    return spec


def test_pods_fulfil_the_restricted_pod_security_standard(made: Make) -> None:
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


def test_pods_get_no_credentials_and_no_variables_of_services(made: Make) -> None:
    pod = pod_of(made())
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["serviceAccountName"] == "demo-broker"


def test_volumes_belong_to_the_group_of_the_image_without_a_walk_over_all_files(made: Make) -> None:
    security = pod_of(made())["securityContext"]
    assert security["fsGroup"] == security["runAsGroup"] == 10001
    assert security["fsGroupChangePolicy"] == "OnRootMismatch"


def test_whatever_is_written_to_is_mounted(made: Make) -> None:
    container = pod_of(made())["containers"][0]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/tmp", "/var/lib/delaymq"}


def test_probes_ask_over_http_and_give_a_recovery_an_hour(made: Make) -> None:
    container = pod_of(made())["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[name]["httpGet"] == {"path": path, "port": "http"}
    assert "http" in ports
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600
    assert container["readinessProbe"]["periodSeconds"] <= 2


def test_only_the_operator_restarts_pods(made: Make) -> None:
    assert made()["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_selectors_never_change_whatever_the_spec_says(made: Make) -> None:
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


def test_the_broker_owns_and_controls_what_is_made_but_not_the_claims(made: Make) -> None:
    found = made()
    [owner] = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Broker", "demo", "u-1")
    assert owner["controller"] is True
    assert owner["blockOwnerDeletion"] is True
    assert all("ownerReferences" not in claim["metadata"] for claim in found["spec"].get("volumeClaimTemplates", []))


def test_pods_of_a_kind_prefer_different_nodes_and_a_user_can_say_otherwise(made: Make) -> None:
    softly = pod_of(made())["affinity"]["podAntiAffinity"]
    assert list(softly) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    hard: Manifest = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    assert pod_of(made(podTemplate={"affinity": hard}))["affinity"] == hard
    node: Manifest = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    assert pod_of(made(podTemplate={"affinity": node}))["affinity"].keys() == {"podAntiAffinity", "nodeAffinity"}


def test_pod_template_reaches_the_pods_but_takes_no_label_of_ours(made: Make) -> None:
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


def test_a_broker_is_told_its_name_and_addresses_by_variables() -> None:
    found = environment(broker_stateful_set(broker(nameServers={"replicas": 2}), CONTEXT, GROUP))
    assert found["DELAYMQ_BROKER_NAME"] == "demo-1"
    assert found["DELAYMQ_BROKER_CLUSTER_NAME"] == "demo"
    assert found["DELAYMQ_BROKER_IP1"] == "10.96.0.7"
    assert found["DELAYMQ_NAMESRV_ADDR"] == (
        "demo-namesrv-0.demo-namesrv-pods.ns.svc:9876;demo-namesrv-1.demo-namesrv-pods.ns.svc:9876"
    )
    elsewhere = environment(broker_stateful_set(broker(nameServers={"addresses": ["a:1", "b:2"]}), CONTEXT, GROUP))
    assert elsewhere["DELAYMQ_NAMESRV_ADDR"] == "a:1;b:2"


def test_names_of_name_servers_can_be_whole_ones() -> None:
    context = replace(CONTEXT, cluster_domain="svc.cluster.local")
    found = environment(broker_stateful_set(broker(), context, GROUP))
    assert found["DELAYMQ_NAMESRV_ADDR"] == "demo-namesrv-0.demo-namesrv-pods.ns.svc.cluster.local:9876"


def test_the_token_is_only_in_the_secret() -> None:
    assert "sesame" not in json.dumps(stateful_sets(broker()))


def test_variables_of_a_user_cannot_take_the_place_of_ours() -> None:
    env = [{"name": "TZ", "value": "UTC"}, {"name": "DELAYMQ_BROKER_NAME", "value": "x"}]
    stateful_set = broker_stateful_set(broker(podTemplate={"env": env}), CONTEXT, GROUP)
    names = [entry["name"] for entry in pod_of(stateful_set)["containers"][0]["env"]]
    assert len(names) == len(set(names))
    assert environment(stateful_set)["TZ"] == "UTC"
    assert environment(stateful_set)["DELAYMQ_BROKER_NAME"] == "demo-1"


@pytest.mark.parametrize(("delete_claim", "kept"), [(False, "Retain"), (True, "Delete")])
def test_volumes_outlive_the_broker_unless_the_spec_says_otherwise(delete_claim: bool, kept: str) -> None:
    found = broker_stateful_set(broker(storage={"deleteClaim": delete_claim}), CONTEXT, GROUP)
    policy = found["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": kept, "whenScaled": "Retain"}


def test_the_claim_has_the_size_the_class_and_the_labels_by_which_it_is_found() -> None:
    found = broker_stateful_set(broker(storage={"storageClassName": "fast"}), CONTEXT, GROUP)
    [claim] = found["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "delaymq-operator"
    assert claim["metadata"]["labels"]["delaymq.io/group"] == "1"


def test_manifests_are_the_same_bytes_for_the_same_input() -> None:
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
