"""The chart, and Helm to render it."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "helm/delaymq"
TIMEOUT_S = 120.0
KUBERNETES_VERSION = "1.34.0"
"""What `helm template` takes the cluster for; the oldest that the chart accepts is in Chart.yaml."""

Object = dict[str, Any]


class HelmError(Exception):
    """Helm refused; the text is what it printed."""


@dataclass(frozen=True)
class Helm:
    """The command `helm`."""

    program: Path

    def run(self, *arguments: str) -> str:
        """What it printed. HelmError when it fails."""
        done = subprocess.run(
            [str(self.program), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise HelmError(done.stderr + done.stdout)
        return done.stdout

    def render(self, values: Mapping[str, Any] | None = None, *, namespace: str = "delaymq") -> list[Object]:
        """The objects of a release `delaymq` with these values over the chart's own."""
        arguments = ["template", "delaymq", str(CHART), "-n", namespace, "--kube-version", KUBERNETES_VERSION]
        for key, value in (values or {}).items():
            arguments += ["--set-json", f"{key}={json.dumps(value)}"]
        return [found for found in yaml.safe_load_all(self.run(*arguments)) if found]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Those of one kind."""
    return [found for found in objects if found["kind"] == kind]


def only(objects: list[Object], kind: str) -> Object:
    """The one of this kind."""
    (found,) = of_kind(objects, kind)
    return found


def chart_values() -> Object:
    """values.yaml."""
    return _mapping(yaml.safe_load((CHART / "values.yaml").read_text()))


def chart_metadata() -> Object:
    """Chart.yaml."""
    return _mapping(yaml.safe_load((CHART / "Chart.yaml").read_text()))


def alert_groups(namespace: str = "delaymq") -> list[Object]:
    """The groups of a PrometheusRule with the chart's own values, as a release in this namespace has them."""
    text = (CHART / "alerts/alerts.yaml").read_text()
    text = text.replace("LATENESS_SECONDS", str(chart_values()["metrics"]["prometheusRule"]["latenessSeconds"]))
    groups = yaml.safe_load(text.replace("OPERATOR_NAMESPACE", namespace))
    assert isinstance(groups, list)
    return groups


def alert_rules() -> list[Object]:
    """The alerts, from all groups."""
    return [rule for group in alert_groups() for rule in group["rules"]]


def project_of(distribution: str) -> Object:
    """The table `project` of a distribution's pyproject.toml."""
    return _mapping(tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"])


def pins_of(name: str) -> dict[str, list[str]]:
    """requirements/NAME.txt: versions by name of the distribution, with the Python that each is for where there are
    several."""
    lines = (ROOT / f"requirements/{name}.txt").read_text().splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        if "==" in line and line[0].isalnum():
            distribution, _, version = line.rstrip(" \\").partition("==")
            found.setdefault(distribution, []).append(version)
    return found


def wanted_of(name: str) -> set[str]:
    """requirements/NAME.in: names of distributions."""
    lines = (ROOT / f"requirements/{name}.in").read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def paths_of(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted paths of all mappings' keys in a tree."""
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from paths_of(value, f"{prefix}{key}.")


def _mapping(value: object) -> Object:
    assert isinstance(value, dict)
    return value
