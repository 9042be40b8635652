"""The certificate Secret in the pods of brokers and NameServers."""

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
    with pytest.raises(SpecError, match=r"spec\.tls\.secretName"):
        broker(config={key: "x"})


def test_tls_secret_without_name_is_rejected() -> None:
    with pytest.raises(SpecError):
        broker(tls={"secretName": ""})
    with pytest.raises(SpecError):
        broker(tls={})
