"""CRD schemas: completeness, bounds, descriptions, agreement with the operator's types."""

from __future__ import annotations

import re
from typing import Any

import kubernetes.client as kubernetes_models
import msgspec
import pytest
from delaymq.config import BrokerConfig, keys_of
from delaymq.config.known_keys import REFUSED
from delaymq_operator.api import (
    BrokerSpec,
    BrokerStatus,
    DelayLevelConfigSpec,
    DelayLevelConfigStatus,
    TopicSpec,
    TopicStatus,
    UserSpec,
    UserStatus,
    analytics_names,
    names,
)
from delaymq_operator_testing.crd_files import at, load_crds, schema_of, walk, with_defaults
from msgspec import inspect

KINDS = sorted(names.PLURALS)
TYPES: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    names.BROKER_KIND: (BrokerSpec, BrokerStatus),
    names.TOPIC_KIND: (TopicSpec, TopicStatus),
    names.DELAY_LEVEL_CONFIG_KIND: (DelayLevelConfigSpec, DelayLevelConfigStatus),
    names.USER_KIND: (UserSpec, UserStatus),
}
HANDED_ON: dict[str, Any] = {
    "spec.podTemplate.tolerations[]": kubernetes_models.V1Toleration,
    "spec.podTemplate.topologySpreadConstraints[]": kubernetes_models.V1TopologySpreadConstraint,
    "spec.podTemplate.topologySpreadConstraints[].labelSelector": kubernetes_models.V1LabelSelector,
    "spec.analytics.tolerations[]": kubernetes_models.V1Toleration,
    "spec.networkPolicy.allowFrom[]": kubernetes_models.V1NetworkPolicyPeer,
    "spec.networkPolicy.allowFrom[].ipBlock": kubernetes_models.V1IPBlock,
    "spec.networkPolicy.allowFrom[].podSelector": kubernetes_models.V1LabelSelector,
    "spec.networkPolicy.allowFrom[].namespaceSelector": kubernetes_models.V1LabelSelector,
    "status.conditions[]": kubernetes_models.V1Condition,
}
"""Fields of a Broker that are passed unchanged to Kubernetes: path and corresponding Kubernetes model."""


def test_crd_names_match_constants_of_operator() -> None:
    crds = load_crds()
    assert {kind: crd["spec"]["names"]["plural"] for kind, crd in crds.items()} == names.PLURALS
    for crd in crds.values():
        spec = crd["spec"]
        assert (spec["group"], [version["name"] for version in spec["versions"]]) == (names.GROUP, [names.VERSION])
        assert crd["metadata"]["name"] == f"{spec['names']['plural']}.{names.GROUP}"
        assert (spec["scope"], spec["names"]["categories"]) == ("Namespaced", ["delaymq"])
    assert {kind: crd["spec"]["names"]["shortNames"] for kind, crd in crds.items()} == {
        "Broker": ["dmqb"],
        "Topic": ["dmqt"],
        "DelayLevelConfig": ["dmql"],
        "User": ["dmqu"],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_description(kind: str) -> None:
    # The API server describes metadata.
    bare = [
        path for path, node in walk(schema_of(kind)) if not path.startswith("metadata") and not node.get("description")
    ]
    assert bare == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_string_list_and_map_is_bounded(kind: str) -> None:
    def is_unbounded(node: dict[str, Any]) -> bool:
        is_map = "additionalProperties" in node or node.get("x-kubernetes-preserve-unknown-fields")
        is_text = node.get("type") == "string" or node.get("x-kubernetes-int-or-string")
        return bool(
            (is_text and "maxLength" not in node and "enum" not in node)
            or (node.get("type") == "array" and "maxItems" not in node)
            or (is_map and "maxProperties" not in node)
        )

    assert [path for path, node in walk(schema_of(kind)) if is_unbounded(node)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_list_declares_list_type(kind: str) -> None:
    lists = [(path, node) for path, node in walk(schema_of(kind)) if node.get("type") == "array"]
    assert [path for path, node in lists if "x-kubernetes-list-type" not in node] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_has_message_without_final_punctuation(kind: str) -> None:
    for path, node in walk(schema_of(kind)):
        for rule in node.get("x-kubernetes-validations", []):
            assert len(rule["message"]) > 20, path
            assert not rule["message"].endswith((".", "!")), f"{path}: {rule['message']}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["spec", "status"])
def test_types_match_schema(kind: str, part: str) -> None:
    struct = TYPES[kind][part == "status"]
    assert _differences(part, at(schema_of(kind), part), inspect.type_info(struct)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_of_types_match_schema(kind: str) -> None:
    named = {"brokerRef": {"name": "b"}}
    required = {"Topic": named, "User": named, "DelayLevelConfig": {"levels": ["1s"]}}.get(kind, {})
    filled = with_defaults(at(schema_of(kind), "spec"), required)
    struct = TYPES[kind][0]
    assert msgspec.convert(required, struct) == msgspec.convert(filled, struct)
    of_brokers: list[dict[str, Any]] = [
        {"external": {"type": "NodePort"}},
        {"analytics": {}},
        {"tls": {"generate": {}}},
    ]
    for optional in of_brokers if kind == names.BROKER_KIND else ():
        filled = with_defaults(at(schema_of(kind), "spec"), optional)
        assert msgspec.convert(optional, struct) == msgspec.convert(filled, struct)


@pytest.mark.parametrize("path", HANDED_ON)
def test_embedded_kubernetes_types_have_all_their_fields(path: str) -> None:
    ours = at(schema_of("Broker"), path)["properties"]
    assert set(ours) == set(HANDED_ON[path].attribute_map.values())


def test_reserved_config_keys_match_rules_and_exist() -> None:
    rules = at(schema_of("Broker"), "spec.config")["x-kubernetes-validations"]
    refused = {rule["rule"].removeprefix("!('").removesuffix("' in self)"): rule["message"] for rule in rules}
    # TLS keys are recognised by their prefix, in the rule and in the operator.
    assert "spec.tls" in refused.pop("useTLS' in self) && self.all(key, !key.startsWith('tls.'))")
    # aclAdminNeedsTls may be set by users, and httpTls has a rule of its own.
    others = ("aclAdminNeedsTls", "httpTls")
    known = [key for key in keys_of(BrokerConfig) if "tls" in key.lower() and key not in others]
    assert len(known) > 10
    assert [key for key in known if key != "useTLS" and not key.startswith("tls.")] == []
    assert set(refused) == set(names.OWNED_KEYS)
    assert set(refused) <= set(keys_of(BrokerConfig)) | set(REFUSED)
    for key, message in refused.items():
        assert message.startswith(f"{key} is set by the operator")


def test_fields_named_in_messages_exist() -> None:
    fields = {path for path, _ in walk(schema_of("Broker"))}
    texts = [*names.OWNED_KEYS.values()]
    texts += [rule["message"] for rule in at(schema_of("Broker"), "spec.config")["x-kubernetes-validations"]]
    named = [word.rstrip(",.:;)") for text in texts for word in text.split() if word.startswith("spec.")]
    assert len(named) > 20
    assert [field for field in named if field not in fields] == []


def test_reserved_spark_properties_match_rules() -> None:
    rules = at(schema_of("Broker"), "spec.analytics.sparkConf")["x-kubernetes-validations"]
    stated = {
        key: rule["message"]
        for rule in rules
        for key in re.findall(r"'(spark\.[^']+)'", rule["rule"])
        if "\\" not in key
    }
    assert stated == analytics_names.OWNED_SPARK_KEYS
    fields = {path for path, _ in walk(schema_of("Broker"))}
    named = {word.rstrip(",.:;)") for text in stated.values() for word in text.split() if word.startswith("spec.")}
    assert named <= fields


def test_scale_subresource_scales_size() -> None:
    [version] = load_crds()["Broker"]["spec"]["versions"]
    scale = version["subresources"]["scale"]
    fields = {f".{path}" for path, _ in walk(schema_of("Broker"))}
    assert set(scale.values()) == {".spec.size", ".status.size", ".status.selector"}
    assert set(scale.values()) <= fields


def _differences(path: str, node: dict[str, Any], type_info: inspect.Type) -> list[str]:
    """Return the differences between schema and type."""
    type_info = _without_none(type_info)
    match type_info:
        case inspect.StructType(fields=fields):
            return _field_differences(path, node, {field.encode_name: field for field in fields})
        case inspect.VarTupleType(item_type=item_type):
            bounds = _differ(path, node, "minItems", type_info.min_length) + _differ(
                path, node, "maxItems", type_info.max_length
            )
            return _is(path, node, "array") + bounds + _differences(f"{path}[]", node["items"], item_type)
        case inspect.DictType(value_type=inspect.AnyType()):
            return _is(path, node, "object")
        case inspect.DictType(value_type=value_type):
            return _is(path, node, "object") + _differences(f"{path}{{}}", node["additionalProperties"], value_type)
        case inspect.LiteralType(values=values):
            return [] if sorted(node.get("enum", [])) == sorted(map(str, values)) else [f"{path}: other choices"]
        case inspect.UnionType():
            return [] if node.get("x-kubernetes-int-or-string") else [f"{path}: a number or a text"]
        case inspect.StrType():
            bounds = _differ(path, node, "minLength", type_info.min_length)
            return _is(path, node, "string") + bounds + _differ(path, node, "maxLength", type_info.max_length)
        case inspect.IntType():
            bounds = _differ(path, node, "minimum", type_info.ge) + _differ(path, node, "maximum", type_info.le)
            return _is(path, node, "integer") + bounds
        case inspect.FloatType():
            return _is(path, node, "number")
        case inspect.BoolType():
            return _is(path, node, "boolean")
    return [f"{path}: {type(type_info).__name__} is not compared"]


def _field_differences(path: str, node: dict[str, Any], fields: dict[str, inspect.Field]) -> list[str]:
    found = _is(path, node, "object")
    properties = node.get("properties", {})
    found += [f"{path}.{name}: only in one of both" for name in sorted(set(fields) ^ set(properties))]
    for name in sorted(set(fields) & set(properties)):
        found += _differences(f"{path}.{name}", properties[name], fields[name].type)
    # The types accept a condition without observedGeneration, as metav1 does; the operator always sets it.
    required = {name for name, field in fields.items() if field.required}
    if required != set(node.get("required", [])):
        found.append(f"{path}: other fields are required: {sorted(required)}")
    return found


def _without_none(type_info: inspect.Type) -> inspect.Type:
    if isinstance(type_info, inspect.UnionType):
        rest = [one for one in type_info.types if not isinstance(one, inspect.NoneType)]
        return rest[0] if len(rest) == 1 else type_info
    return type_info


def _is(path: str, node: dict[str, Any], expected: str) -> list[str]:
    return [] if node.get("type") == expected else [f"{path}: {node.get('type')}, and {expected} in the type"]


def _differ(path: str, node: dict[str, Any], bound: str, ours: int | None) -> list[str]:
    """Compare a bound of the type with the schema; the schema may have additional bounds."""
    return [] if ours is None or node.get(bound) == ours else [f"{path}: {bound} {node.get(bound)}, and {ours} here"]
