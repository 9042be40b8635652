"""The certificate Secret in the pods of brokers and NameServers."""

import re
from typing import Any

import pytest
from delaymq_operator.api.broker import Broker, parse_broker
from delaymq_operator.api.errors import SpecError
from delaymq_operator.manifests.tls import TLS_PATH, tls_environment, tls_mounts, tls_volumes


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
