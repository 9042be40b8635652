"""Agreement of docs/operations/resources.md with the schemas and the operator."""

from __future__ import annotations

import re

import pytest
from delaymq_operator.api import ConditionType, Reason, names
from delaymq_operator_testing.crd_files import REPOSITORY_PATH, Schema, schema_of, walk

PAGE = (REPOSITORY_PATH / "docs" / "operations" / "resources.md").read_text()
HANDED_ON = (
    "podTemplate.tolerations[]",
    "analytics.tolerations[]",
    "podTemplate.topologySpreadConstraints[]",
    "networkPolicy.allow",
)
"""Fields whose parts the page does not list: it states "as in a pod", or names them in the text."""


@pytest.mark.parametrize("kind", sorted(names.PLURALS))
def test_page_lists_exactly_fields_of_schema(kind: str) -> None:
    assert _fields_of_the_page(kind) == {path for path, _ in _leaves(kind)}


@pytest.mark.parametrize("kind", sorted(names.PLURALS))
def test_page_states_defaults_and_bounds_of_schema(kind: str) -> None:
    rows = _rows(kind)
    for path, node in _leaves(kind):
        row = next(text for fields, text in rows if path in fields)
        if "default" in node and not isinstance(node["default"], dict):
            default = node["default"]
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            assert re.search(rf"\| `?{shown}`? \|", row), path
        if "minimum" in node:
            assert f"{node['minimum']} to {node['maximum']}" in row, path
        for choice in node.get("enum", []):
            escaped = str(choice).replace("|", "\\|")
            assert f"`{escaped}`" in row, path
        if "maxProperties" in node and "resources" not in path and "affinity" not in path:
            assert re.search(rf"\| {node['maxProperties']}[ a-z]*\|", row), path


def test_page_lists_exactly_conditions_and_reasons_of_operator() -> None:
    table = PAGE.partition("## Conditions")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    reasons = {word for row in rows[2:] for word in re.findall(r"`(\w+)`", row[1])}
    conditions = {row[0].rpartition(", ")[2] for row in rows[2:] if row[0]}
    assert reasons == {str(reason) for reason in Reason}
    assert conditions == {str(condition) for condition in ConditionType}


def test_page_lists_user_annotations() -> None:
    for annotation in (
        names.RESTART_ANNOTATION,
        names.FORCE_SCALE_IN_ANNOTATION,
        names.ANALYZE_ANNOTATION,
        names.DRY_RUN_ANNOTATION,
        names.PROMOTE_ANNOTATION,
    ):
        assert f"| `{annotation}` |" in PAGE


def test_page_states_limit_of_broker_name() -> None:
    assert f"at most {names.MAX_BROKER_NAME_CHARS} characters" in PAGE


def _leaves(kind: str) -> list[tuple[str, Schema]]:
    """Return the fields of the spec without nested fields, including lists and maps of such values."""
    found = []
    for path, node in walk(schema_of(kind)):
        path = path.removeprefix("spec.")
        if path in ("", "spec") or path.startswith(("status", "metadata", "apiVersion", "kind")) or "{}" in path:
            continue
        if path.startswith(HANDED_ON):
            is_leaf = path.count("[]") == 1 and path.endswith("[]")
        else:
            is_leaf = "properties" not in node and node.get("type") != "array"
        if is_leaf:
            found.append((path, node))
    return found


def _rows(kind: str) -> list[tuple[set[str], str]]:
    """Return the fields and the text of each row of a kind's first table."""
    section = PAGE.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
    table = section[section.index("| field") :].partition("\n\n")[0]
    return [(set(re.findall(r"`([^`]+)`", line.split("|")[1])), line) for line in table.splitlines()[2:]]


def _fields_of_the_page(kind: str) -> set[str]:
    return {field for fields, _ in _rows(kind) for field in fields}
