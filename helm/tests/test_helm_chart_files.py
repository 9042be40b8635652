"""Agreement of the chart with the project: CRDs, versions, settings, metrics and condition types."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from delaymq.server.metrics.exposition import Snapshot
from delaymq.server.metrics.gather import gather
from delaymq.server.metrics.replication_facts import ReplicationFacts
from delaymq_helm_testing.helm_chart import CHART, ROOT, alert_rules, chart_metadata, chart_values, paths_of, project_of
from delaymq_operator.api.conditions import ConditionType
from delaymq_operator.settings import OperatorSettings, flag_of
from delaymq_testing.running_server import run, standalone
from prometheus_client.core import Metric

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DASHBOARD = json.loads((CHART / "dashboards/delaymq.json").read_text())
NOT_IN_VALUES = {
    "namespaces", "default_image", "analytics_image", "analytics_role", "analytics_role_kind", "namespace", "pod_name",
    "http_host", "http_port", "lease", "lease_name", "lease_namespace", "kubeconfig", "kube_context",
}  # fmt: skip
"""Settings that the Deployment sets itself, or that only an operator outside a cluster needs."""
LABELS = {
    "namespace", "pod", "le", "kind", "type", "status", "level", "topic", "group", "reason", "what", "which", "holder",
    "mode", "version", "result", "due_in", "limit", "treatment", "account", "quota", "direction", "verb", "broker",
    "broker_namespace", "broker_pod",
}  # fmt: skip
"""The first labels are added by Prometheus; the others belong to the metrics."""


@cache
def metrics_of_the_broker() -> set[str]:
    """Return the names that a running broker exposes."""
    families: list[Metric] = []

    async def scenario() -> None:
        with TemporaryDirectory() as path:
            async with standalone(Path(path)) as server:
                gathered = await gather(server.broker)
                gathered.replication = ReplicationFacts()  # as if it had replicas
                families.extend(Snapshot(gathered).collect())

    run(scenario)
    makers = {"counter": "Counter", "histogram": "Histogram", "gauge": "Gauge"}
    return series([(makers[one.type], one.name) for one in families if one.name.startswith("delaymq_")])


def metrics_of_the_operator() -> set[str]:
    text = (ROOT / "operator/src/delaymq_operator/metrics.py").read_text()
    named = re.findall(r'(\w+)\(\s*f"\{PREFIX\}_(\w+)"', text) + re.findall(r'(_gauges?)\(\s*"(\w+)"', text)
    return series([(maker, f"delaymq_operator_{name}") for maker, name in named])


def series(made: list[tuple[str, str]]) -> set[str]:
    """Return the names of series as Prometheus stores them."""
    assert made
    found = set()
    for maker, name in made:
        if "Counte" in maker or maker == "_counter":
            found.add(f"{name}_total")
        elif "Histogram" in maker:
            found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            found.add(name)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [rule["expr"] for rule in alert_rules()] + shown


def test_crds_of_the_chart_equal_those_of_the_project() -> None:
    theirs = {path.name: path.read_text() for path in (CHART / "crds").iterdir()}
    ours = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    assert theirs == ours, "run: cp crds/*.yaml helm/delaymq/crds/"


def test_every_crd_starts_with_a_document_separator() -> None:
    """`helm show crds` concatenates the files; without the separator, kubectl would apply only the last one."""
    assert all(path.read_text().startswith("---\n") for path in (CHART / "crds").iterdir())


def test_chart_images_and_distributions_have_one_version() -> None:
    stated = {chart_metadata()["version"], chart_metadata()["appVersion"]}
    stated |= {project_of(name)["version"] for name in ("broker_image", "operator", "spark")}
    stated |= set(re.findall(r"^ARG VERSION=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    assert len(stated) == 1


def test_chart_offers_every_setting_of_the_operator() -> None:
    known = {one.name for one in fields(OperatorSettings)}
    assert known >= NOT_IN_VALUES
    offered = {re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), name) for name in settings_of_the_schema()}
    assert offered == known - NOT_IN_VALUES


def test_schema_has_the_limits_of_the_operator_settings() -> None:
    for one in fields(OperatorSettings):
        stated = settings_of_the_schema().get(re.sub(r"_([a-z])", lambda found: found[1].upper(), one.name))
        if stated is None:
            continue
        if one.metadata["least"] is not None:
            assert stated["minimum"] == one.metadata["least"], one.name
        if one.metadata["choices"]:
            assert tuple(stated["enum"]) == one.metadata["choices"], one.name


def settings_of_the_schema() -> dict[str, Any]:
    found = SCHEMA["properties"]["settings"]["properties"]
    assert isinstance(found, dict)
    return found


def test_every_value_of_the_schema_has_a_default() -> None:
    def closed(schema: dict[str, Any]) -> dict[str, Any]:
        below = {key: one for key, one in schema.get("properties", {}).items() if key not in ("global", "settings")}
        return {key: closed(one) if one.get("additionalProperties") is False else None for key, one in below.items()}

    defaults = set(paths_of(chart_values()))
    wanted = set(paths_of(closed(SCHEMA)))
    assert wanted <= defaults
    assert {path for path in defaults if path.count(".") == 0} - {"settings"} <= wanted


def test_schema_rejects_unknown_keys_in_every_object_of_the_chart() -> None:
    def open_ones(schema: dict[str, Any], path: str) -> list[str]:
        found = [path] if "properties" in schema and schema.get("additionalProperties") is not False else []
        for key, value in schema.get("properties", {}).items():
            found += open_ones(value, f"{path}.{key}")
        return found

    assert open_ones(SCHEMA, "values") == []


def test_metrics_of_alerts_and_dashboard_exist() -> None:
    known = metrics_of_the_broker() | metrics_of_the_operator()
    for expression in expressions():
        named = set(re.findall(r"\bdelaymq_\w+", expression))
        assert named, expression
        assert named <= known, expression


def test_every_delay_metric_of_the_broker_is_on_the_dashboard() -> None:
    shown = set(re.findall(r"\bdelaymq_\w+", " ".join(expressions())))
    only_sums = {name for name in metrics_of_the_broker() if name.endswith(("_sum", "_count"))}
    not_shown = {"delaymq_delay_foreign_total", "delaymq_kernels_compiled"}
    assert metrics_of_the_broker() - only_sums - shown <= not_shown


@pytest.mark.parametrize("expression", expressions())
def test_expressions_use_existing_labels(expression: str) -> None:
    selected = re.findall(r"(\w+)(?:=~|!=|!~|=)\"", expression)
    grouped = re.findall(r"(?:by|ignoring|on) \(([^)]*)\)", expression)
    assert {*selected, *(label.strip() for labels in grouped for label in labels.split(","))} <= LABELS
    assert expression.count("(") == expression.count(")")


def test_alerts_name_existing_condition_types() -> None:
    named = set(re.findall(r'\btype="(\w+)"', " ".join(expressions())))
    assert named
    assert named <= {str(kind) for kind in ConditionType}


def test_alerts_have_severity_summary_and_description() -> None:
    names = [rule["alert"] for rule in alert_rules()]
    assert len(names) == len(set(names))
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(identities) == len(set(identities))


def test_values_set_in_the_manual_exist() -> None:
    known = set(paths_of(chart_values())) | {f"settings.{name}" for name in settings_of_the_schema()}
    for name in ("kubernetes.md", "upgrading.md"):
        text = Path(ROOT / "docs/operations" / name).read_text()
        named = set(re.findall(r"--set(?:-json|-string)? '?([a-zA-Z.]+)=", text))
        assert {path for path in named if not path.startswith("broker.spec.")} <= known


def rows_of(title: str) -> list[list[str]]:
    """Return the cells of the manual's table below `## title`."""
    section = (ROOT / "docs/operations/kubernetes.md").read_text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_manual_lists_every_setting_of_the_operator() -> None:
    def text_of(default: object) -> str:
        if isinstance(default, bool):
            return str(default).lower()
        if isinstance(default, tuple):
            return ",".join(default)
        return f"{default:g}" if isinstance(default, float) else str(default)

    stated = [(row[0], row[1]) for row in rows_of("The operator's settings")]
    defaults = [(flag_of(one.name), text_of(one.default)) for one in fields(OperatorSettings)]
    assert stated == [(f"`{flag}`", f"`{default}`" if default else "") for flag, default in defaults]
    assert all(row[2] for row in rows_of("The operator's settings"))


def test_manual_lists_every_metric_of_the_operator() -> None:
    named = {re.findall(r"delaymq_\w+", row[0])[0] for row in rows_of("The operator's metrics")}
    known = metrics_of_the_operator()
    buckets = {name.removesuffix("_bucket") for name in known if name.endswith("_bucket")}
    parts = {f"{name}_{part}" for name in buckets for part in ("bucket", "sum", "count")}
    assert named == known - parts | buckets


def test_manual_names_every_alert() -> None:
    text = (ROOT / "docs/operations/kubernetes.md").read_text()
    assert set(re.findall(r"`(DelayMQ\w+)`", text)) == {rule["alert"] for rule in alert_rules()}
