"""The certificate Secret in the pods of brokers and NameServers."""

import re
from typing import Any

import pytest
from delaymq.cli.target.contexts import target
from delaymq.config import BrokerConfig, NamesrvConfig, build, from_environment
from delaymq_operator.api.broker import Broker, parse_broker
from delaymq_operator.api.errors import SpecError
from delaymq_operator.manifests import Context, GroupContext, broker_stateful_set, name_server_stateful_set
from delaymq_operator.manifests.tls import TLS_PATH, enforces, tls_environment, tls_mounts, tls_volumes
from delaymq_operator.reconcile.ports import Manifest


def broker(**spec: Any) -> Broker:
    return parse_broker({"metadata": {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1}, "spec": spec})


def test_nothing_is_added_without_tls_secret() -> None:
    found = broker()
    assert (tls_environment(found), tls_mounts(found), tls_volumes(found)) == ({}, [], [])


def test_variables_name_mounted_certificate_files() -> None:
    found = broker(tls={"secretName": "orders-tls"})
    [volume], [mount] = tls_volumes(found), tls_mounts(found)
    items = [{"key": name, "path": name} for name in ("tls.crt", "tls.key")]
    assert volume["secret"] == {"secretName": "orders-tls", "items": items, "defaultMode": 0o440}
    assert (mount["name"], mount["mountPath"], mount["readOnly"]) == (volume["name"], TLS_PATH, True)
    assert sorted(tls_environment(found).values()) == [f"{TLS_PATH}/tls.crt", f"{TLS_PATH}/tls.key"]


@pytest.mark.parametrize("key", ["useTLS", "tls.enable", "tls.server.mode", "tls.server.certPath"])
def test_tls_keys_are_rejected_in_config(key: str) -> None:
    with pytest.raises(SpecError, match=r"spec\.tls"):
        broker(config={key: "x"})


@pytest.mark.parametrize(
    ("tls", "sentence"),
    [
        ({"secretName": ""}, "spec.tls.secretName"),
        ({}, "spec.tls: set either secretName or generate"),
        ({"secretName": "a", "generate": {}}, "spec.tls: set either secretName or generate"),
        ({"generate": {"validityDays": 0}}, "spec.tls.generate.validityDays"),
        ({"generate": {"caValidityDays": 539}}, "caValidityDays must be at least 6 times validityDays"),
    ],
)
def test_tls_without_single_valid_source_is_rejected(tls: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=re.escape(sentence)):
        broker(tls=tls)


def test_generated_certificate_is_mounted_without_the_ca() -> None:
    found = broker(tls={"generate": {}})
    [volume] = tls_volumes(found)
    assert volume["secret"]["secretName"] == "demo-tls"
    assert {"demo-ca", "ca.key"}.isdisjoint(str(volume["secret"]).split("'"))


def pods(**spec: Any) -> tuple[Manifest, Manifest]:
    """Return the pod templates of a broker and of NameServers."""
    of, context = broker(**spec), Context(image="i", token="t")
    members = spec.get("replicasPerGroup", 0)
    group = GroupContext(group=0, advertised_address="10.96.0.7", storage_size="1Gi", members=members)
    sets = broker_stateful_set(of, context, group), name_server_stateful_set(of, context)
    return sets[0]["spec"]["template"], sets[1]["spec"]["template"]


def variables(template: Manifest) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in template["spec"]["containers"][0].get("env", [])}


@pytest.mark.parametrize("replicas", [{}, {"replicasPerGroup": 2}])
def test_enforcing_pods_require_tls_everywhere_and_verify_each_other(replicas: dict[str, int]) -> None:
    of_broker, of_name_server = pods(tls={"generate": {}, "mode": "enforcing"}, **replicas)
    of_pod = {"DELAYMQ_HA_MEMBER_NAME": "demo-broker-0-0", "DELAYMQ_REPLICA_ENDPOINT_ADDRESS": "10.1.0.1"}
    given = variables(of_broker) | (of_pod if replicas else {})
    config, _ = build(BrokerConfig, from_environment(BrokerConfig, given))
    assert (config.tls_server_mode, config.http_tls, config.dials_tls) == ("enforcing", True, True)
    assert (config.tls_client_auth_server, config.tls_client_trust_cert_path) == (True, f"{TLS_PATH}/ca.crt")
    names, _ = build(NamesrvConfig, from_environment(NamesrvConfig, variables(of_name_server)))
    assert (names.tls_server_mode, names.http_tls) == ("enforcing", True)
    for template in (of_broker, of_name_server):
        assert enforces(template)
        assert template["metadata"]["annotations"]["delaymq.io/http-scheme"] == "https"
        container, [volume] = (
            template["spec"]["containers"][0],
            [each for each in template["spec"]["volumes"] if each["name"] == "tls"],
        )
        assert {item["key"] for item in volume["secret"]["items"]} == {"tls.crt", "tls.key", "ca.crt"}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["scheme"] == "HTTPS"


def test_permissive_pods_are_unchanged_by_the_mode() -> None:
    stated = pods(tls={"secretName": "s", "mode": "permissive"})
    for before, after in zip(pods(tls={"secretName": "s"}), stated, strict=True):
        assert before == after
        assert not enforces(after)
        assert "scheme" not in str(after["spec"]["containers"][0]["readinessProbe"])


def test_commands_in_enforcing_pod_use_https_and_the_ca() -> None:
    found = variables(pods(tls={"generate": {}, "mode": "enforcing"})[0])
    aimed = target(environment=found)
    assert (aimed.http, aimed.https["tls-ca"]) == ("https://127.0.0.1:8080", f"{TLS_PATH}/ca.crt")
