"""Keys of the register: valid values, and errors that name the key."""

from dataclasses import dataclass

import pytest
from delaymq.config.build import build
from delaymq.config.errors import ConfigError
from delaymq.config.layers import keys_of
from delaymq.config.register_keys import (
    EtcdAddress,
    LeaseAddress,
    RegisterKeys,
    SliceAddress,
    check_register,
    parse_register,
    parse_slices,
)


@dataclass(frozen=True, kw_only=True)
class Keys(RegisterKeys):
    """The keys as a configuration of their own."""

    def __post_init__(self) -> None:
        for item in keys_of(Keys).values():  # type: ignore[type-var]
            check = item.metadata.get("check")
            if check is not None:
                check(getattr(self, item.name))
        check_register(self)


def keys(**values: str) -> Keys:
    return build(Keys, values)[0]  # type: ignore[type-var]


def test_registers_are_parsed() -> None:
    assert parse_register("") is None
    assert parse_register("etcd:http://10.0.0.1:2379") == EtcdAddress(("http://10.0.0.1:2379",))
    assert parse_register("etcd:https://a:2379/, https://[fd00::1]:2379") == EtcdAddress(
        ("https://a:2379", "https://[fd00::1]:2379")
    )
    assert parse_register("kubernetes:orders/broker-a-register") == LeaseAddress("orders", "broker-a-register")


@pytest.mark.parametrize(
    "value",
    [
        "etcd",
        "etcd:",
        "etcd:,",
        "etcd:10.0.0.1:2379",
        "etcd:ftp://a:2379",
        "etcd:http://",
        "etcd:http://a:99999",
        "etcd:http://a:port",
        "etcd:http://a:0",
        "etcd:http://user@a:2379",
        "etcd:http://user:word@a:2379",
        "etcd:http://a:2379/v3",
        "etcd:http://a:2379?x",
        "etcd:http://a:2379#x",
        "etcd:http://a:2379 http://b:2379",
        "etcd:http://[fd00::1",
        "etcd:http://a:2379,http://a:2379",
        "etcd:http://a:2379,https://b:2379",
        "etcd:" + ",".join(f"http://a{n}:2379" for n in range(17)),
        "kubernetes",
        "kubernetes:",
        "kubernetes:orders",
        "kubernetes:orders/",
        "kubernetes:/lease",
        "kubernetes:Orders/lease",
        "kubernetes:orders/lease/more",
        "kubernetes:orders/../x",
        "kubernetes:orders/lease?x",
        "zookeeper:a:2181",
        "http://a:2379",
    ],
)
def test_other_values_are_errors_with_an_example(value: str) -> None:
    with pytest.raises(ConfigError, match=r"use |different URLs"):
        parse_register(value)


def test_endpoint_slices_are_parsed() -> None:
    assert parse_slices("") is None
    assert parse_slices("kubernetes:orders/b-0-master") == SliceAddress("orders", ("b-0-master",))
    assert parse_slices("kubernetes:orders/a, b") == SliceAddress("orders", ("a", "b"))


@pytest.mark.parametrize(
    "value", ["etcd:a/b", "kubernetes", "kubernetes:a", "kubernetes:a/", "kubernetes:a/b,", "kubernetes:a/b,b", "a/b"]
)
def test_other_endpoint_slices_are_errors(value: str) -> None:
    with pytest.raises(ConfigError, match=r"use kubernetes:|different EndpointSlices"):
        parse_slices(value)


def test_keys_have_names_in_camel_case_and_secrets_are_marked() -> None:
    made = keys_of(Keys)  # type: ignore[type-var]
    assert list(made) == [
        "replicaRegister",
        "replicaRegisterPrefix",
        "replicaRegisterUser",
        "replicaRegisterPasswordFile",
        "replicaRegisterAccountPath",
        "replicaEndpoint",
        "replicaEndpointAddress",
        "replicaRegisterTimeoutMs",
        "tls.register.certPath",
        "tls.register.keyPath",
        "tls.register.keyPassword",
        "tls.register.trustCertPath",
    ]
    assert [key for key, item in made.items() if item.metadata.get("secret")] == ["tls.register.keyPassword"]
    assert not any(item.metadata["hot"] for item in made.values())


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"replicaRegister": "etcd:x"}, "is not the URL of an etcd member"),
        ({"replicaRegisterPrefix": "delaymq"}, "is not a prefix of keys"),
        ({"replicaRegisterPrefix": "/delaymq/"}, "is not a prefix of keys"),
        ({"replicaRegisterTimeoutMs": "1"}, "replicaRegisterTimeoutMs"),
        ({"replicaEndpointAddress": "broker-a-0"}, "is not an IP address"),
        ({"replicaEndpoint": "kubernetes:a/b"}, "set both replicaEndpoint and replicaEndpointAddress"),
        ({"replicaEndpointAddress": "10.0.0.1"}, "set both replicaEndpoint and replicaEndpointAddress"),
        (
            {
                "replicaEndpoint": "kubernetes:a/b",
                "replicaEndpointAddress": "fd00::1",
                "replicaRegisterAccountPath": "x",
            },
            "replicaRegisterAccountPath is not an absolute path",
        ),
        ({"tls.register.certPath": "/x"}, "set both tls.register.certPath and tls.register.keyPath"),
        ({"replicaRegisterUser": "x"}, "set both replicaRegisterUser and replicaRegisterPasswordFile"),
        (
            {"replicaRegister": "etcd:http://a:1", "replicaRegisterUser": "x", "replicaRegisterPasswordFile": "/x"},
            "unencrypted: use https",
        ),
        (
            {"replicaRegister": "kubernetes:a/b", "replicaRegisterAccountPath": "x"},
            "replicaRegisterAccountPath is not an absolute path",
        ),
    ],
)
def test_invalid_keys_are_errors(values: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        keys(**values)


def test_password_may_be_sent_to_this_machine_and_over_tls() -> None:
    account = {"replicaRegisterUser": "x", "replicaRegisterPasswordFile": "/x"}
    for url in ("http://127.0.0.1:2379", "http://localhost:2379", "http://[::1]:2379", "https://etcd:2379"):
        assert keys(replicaRegister=f"etcd:{url}", **account).replica_register_user == "x"
