"""Validation of Users by a real API server: accepted specs, error messages, changes."""

from __future__ import annotations

import pytest
from delaymq.access.quotas import NAMES
from delaymq_operator.api import SpecError, names, parse_user
from delaymq_operator.api.user import UserQuotas, duration_ms
from delaymq_operator_testing.api_server import ApiServer
from delaymq_operator_testing.crd_files import at, schema_of
from delaymq_operator_testing.crd_requests import Spec, check_change, refusal, would_make
from msgspec import structs

TO = {"brokerRef": {"name": "demo"}}
KEY_LENGTH = "an access key has 7 to 128 characters, and metadata.name has not: set accessKey"
KEY_CHARACTERS = "an access key consists of letters, digits, ., _ and -: use a name like orders-service"
DURATION = "a duration consists of hours, minutes and seconds: use a value like"
CHANGED = "an access key cannot change: restore the previous accessKey, and create another User for the other one"
REFUSED: list[tuple[str, Spec, str, str]] = [
    ("orders-service", {}, "spec.brokerRef", "Required value"),
    ("orders", TO, "spec.accessKey", KEY_LENGTH),
    ("o" * 129, TO, "spec.accessKey", KEY_LENGTH),
    ("delaymq-operator", TO, "spec.accessKey", "delaymq-operator is the access key of the operator"),
    (
        "o" * 242,
        TO | {"accessKey": "orders-service"},
        "metadata.name",
        "the Secret is named <name>-credentials, so a name has at most 241 characters: use a shorter name",
    ),
    ("u", TO | {"accessKey": "orders"}, "spec.accessKey", "should be at least 7 chars long"),
    ("u", TO | {"accessKey": "orders service"}, "spec.accessKey", KEY_CHARACTERS),
    (
        "u",
        TO | {"accessKey": "delaymq-operator"},
        "spec.accessKey",
        "delaymq-operator is the access key of the operator",
    ),
    ("service1", TO | {"defaultTopicPermission": "ALL"}, "spec.defaultTopicPermission", "Unsupported value"),
    ("service1", TO | {"topics": [{"name": "a=b", "permission": "PUB"}]}, "spec.topics[0].name", "should match"),
    ("service1", TO | {"topics": [{"name": "a", "permission": "WRITE"}]}, "spec.topics[0].permission", "Unsupported"),
    ("service1", TO | {"groups": [{"name": "a"}]}, "spec.groups[0].permission", "Required value"),
    ("service1", TO | {"groups": [{"name": "a", "permission": "SUB"}] * 2}, "spec.groups[1]", "Duplicate value"),
    ("service1", TO | {"quotas": {"connections": 0}}, "spec.quotas.connections", "greater than or equal to 1"),
    ("service1", TO | {"quotas": {"eventLoopPercent": 101}}, "spec.quotas.eventLoopPercent", "less than or equal to"),
    ("service1", TO | {"rotation": {"every": "30d"}}, "spec.rotation.every", DURATION),
    ("service1", TO | {"rotation": {"overlap": "1.5h"}}, "spec.rotation.overlap", DURATION),
    (
        "service1",
        TO | {"rotation": {"every": "60m"}},
        "spec.rotation",
        "every must be longer than overlap: increase every, or shorten overlap",
    ),
    ("service1", TO | {"role": "admin"}, "spec.role", 'supported values: "read", "operate", "administer"'),
    ("service1", TO | {"rotation": {"request": "x" * 257}}, "spec.rotation.request", "Too long"),
]
"""Name and invalid spec, the field, and a part of the message."""
ACCEPTED: list[tuple[str, Spec]] = [
    ("orders-service", TO),
    ("o" * 128, TO),
    ("u", TO | {"accessKey": "A.b_c-1"}),
    ("service1", TO | {"admin": True, "requireSecondSignature": False}),
    ("service1", TO | {"topics": [{"name": "%RETRY%g|x", "permission": "PUB|SUB"}]}),
    ("service1", TO | {"groups": [{"name": f"g{number}", "permission": "SUB"} for number in range(256)]}),
    ("service1", TO | {"quotas": {"heldPulls": 0, "sendBytesPerSecond": 1 << 40, "maxDelayMs": 10}}),
    ("service1", TO | {"role": "administer"}),
    ("service1", TO | {"rotation": {"every": "1h1s"}}),
    ("service1", TO | {"rotation": {"every": "720h", "overlap": "0s", "request": 1}}),
    ("service1", TO | {"rotation": {"overlap": "1h30m", "request": "2026-11-29"}}),
]
CHANGES: list[tuple[Spec, Spec, tuple[str, str] | None]] = [
    (TO | {"accessKey": "service-1"}, TO | {"accessKey": "service-2"}, ("spec.accessKey", CHANGED)),
    (
        TO | {"accessKey": "service-1"},
        {"brokerRef": {"name": "other"}, "accessKey": "service-1"},
        (
            "spec.brokerRef",
            "a User cannot move to another Broker: restore brokerRef, and create another User for the other Broker",
        ),
    ),
    (TO | {"accessKey": "service-1"}, TO | {"accessKey": "service-1", "admin": True}, None),
]


@pytest.mark.parametrize(("name", "spec", "field", "message"), REFUSED)
def test_invalid_users_are_refused_with_a_remedy(
    api_server: ApiServer, namespace: str, name: str, spec: Spec, field: str, message: str
) -> None:
    found = refusal(api_server, namespace, "User", name, spec)
    assert any(path == field and message in text for path, text in found), found


@pytest.mark.parametrize(("name", "spec"), ACCEPTED)
def test_valid_users_are_accepted_and_parsed(api_server: ApiServer, namespace: str, name: str, spec: Spec) -> None:
    made = would_make(api_server, namespace, "User", name, spec)
    user = parse_user(made)
    assert user.access_key == spec.get("accessKey", name)
    assert made["spec"]["rotation"]["overlap"] == spec.get("rotation", {}).get("overlap", "1h")


@pytest.mark.parametrize(("before", "after", "refused"), CHANGES)
def test_access_key_and_broker_cannot_change(
    api_server: ApiServer, namespace: str, before: Spec, after: Spec, refused: tuple[str, str] | None
) -> None:
    check_change(api_server, namespace, "User", before, after, refused)


def test_quotas_are_those_of_the_rule_file() -> None:
    assert {each.encode_name for each in structs.fields(UserQuotas)} == set(NAMES)
    assert set(at(schema_of("User"), "spec.quotas")["properties"]) == set(NAMES)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1h", 3_600_000), ("1h1m1s", 3_661_000), ("90m", 5_400_000), ("0s", 0), ("", None), ("1d", None)],
)
def test_durations_are_parsed(text: str, value: int | None) -> None:
    assert duration_ms(text) == value


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("short", TO),
        (names.OPERATOR_ACCESS_KEY, TO),
        ("service1", TO | {"topics": [{"name": "a=SUB", "permission": "PUB"}]}),
        ("service1", TO | {"accessKey": "a\nb: cdefg"}),
        ("service1", TO | {"rotation": {"every": "1h", "overlap": "1h"}}),
        ("service1", TO | {"rotation": {"overlap": "soon"}}),
    ],
)
def test_operator_refuses_what_an_older_schema_may_accept(name: str, spec: Spec) -> None:
    with pytest.raises(SpecError, match="spec"):
        parse_user({"metadata": {"name": name, "namespace": "ns"}, "spec": spec})
