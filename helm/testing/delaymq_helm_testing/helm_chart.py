"""The chart's files, and Helm to render it."""

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
"""Version that `helm template` assumes for the cluster; Chart.yaml states the oldest that the chart accepts."""

Object = dict[str, Any]


class HelmError(Exception):
    """Helm failed; the message is its output."""


@dataclass(frozen=True)
class Helm:
    """The command `helm`."""

    program: Path

    def run(self, *arguments: str) -> str:
        """Run Helm and return its output. HelmError if it fails."""
        done = subprocess.run(
            [str(self.program), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise HelmError(done.stderr + done.stdout)
        return done.stdout

    def render(self, values: Mapping[str, Any] | None = None, *, namespace: str = "delaymq") -> list[Object]:
        """Return the objects of a release `delaymq` with these values in addition to the chart's defaults."""
        arguments = ["template", "delaymq", str(CHART), "-n", namespace, "--kube-version", KUBERNETES_VERSION]
        for key, value in (values or {}).items():
            arguments += ["--set-json", f"{key}={json.dumps(value)}"]
        return [found for found in yaml.safe_load_all(self.run(*arguments)) if found]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Return the objects of one kind."""
    return [found for found in objects if found["kind"] == kind]


def only(objects: list[Object], kind: str) -> Object:
    """Return the only object of this kind."""
    (found,) = of_kind(objects, kind)
    return found


def chart_values() -> Object:
    """Return the contents of values.yaml."""
    return _mapping(yaml.safe_load((CHART / "values.yaml").read_text()))


def chart_metadata() -> Object:
    """Return the contents of Chart.yaml."""
    return _mapping(yaml.safe_load((CHART / "Chart.yaml").read_text()))


def alert_groups(namespace: str = "delaymq") -> list[Object]:
    """Return the groups of the PrometheusRule of a release in this namespace with the chart's default values."""
    text = (CHART / "alerts/alerts.yaml").read_text()
    text = text.replace("LATENESS_SECONDS", str(chart_values()["metrics"]["prometheusRule"]["latenessSeconds"]))
    groups = yaml.safe_load(text.replace("OPERATOR_NAMESPACE", namespace))
    assert isinstance(groups, list)
    return groups


def alert_rules() -> list[Object]:
    """Return the alerts of all groups."""
    return [rule for group in alert_groups() for rule in group["rules"]]


def project_of(distribution: str) -> Object:
    """Return the table `project` of a distribution's pyproject.toml."""
    return _mapping(tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"])


def pins_of(name: str) -> dict[str, list[str]]:
    """Return the versions in requirements/NAME.txt by distribution, with their Python version if there are several."""
    lines = (ROOT / f"requirements/{name}.txt").read_text().splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        if "==" in line and line[0].isalnum():
            distribution, _, version = line.rstrip(" \\").partition("==")
            found.setdefault(distribution, []).append(version)
    return found


def wanted_of(name: str) -> set[str]:
    """Return the names of the distributions in requirements/NAME.in."""
    lines = (ROOT / f"requirements/{name}.in").read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def paths_of(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of all keys in a tree of mappings."""
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from paths_of(value, f"{prefix}{key}.")


def _mapping(value: object) -> Object:
    assert isinstance(value, dict)
    return value
