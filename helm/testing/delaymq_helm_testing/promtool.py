"""promtool, which tests Prometheus rules, and series as Prometheus would store them after a scrape."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import apt
from harness.caching import cache_root
from harness.errors import HarnessError
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 120.0
PACKAGE = "prometheus"
FIRING = 'ALERTS{alertstate="firing"}'

Labels = Mapping[str, str]
Series = tuple[str, frozenset[tuple[str, str]]]
"""Name and labels of a metric."""


def find_promtool() -> Path:
    """Return promtool from the PATH, or from Debian's package, unpacked into the cache. HarnessError without either."""
    installed = shutil.which("promtool")
    if installed is not None:
        return Path(installed)
    return apt.unpack(PACKAGE, cache_root() / PACKAGE, error=HarnessError) / "usr/bin/promtool"


@dataclass(frozen=True)
class Values:
    """Values of one series: the first one, and the growth per minute."""

    first: float
    growth: float = 0.0

    def notation(self, minutes: int) -> str:
        return f"{self.first!r}{self.growth:+}x{minutes}"


@dataclass(frozen=True)
class Promtool:
    """The command promtool."""

    program: Path

    def complaint(
        self,
        folder: Path,
        groups: Sequence[Mapping[str, Any]],
        series: Mapping[Series, Values],
        *,
        minutes: int,
        firing: Iterable[Labels],
    ) -> str:
        """Return an empty string if exactly these alerts fire after `minutes`, else the output of promtool.

        `firing` contains all labels of each alert, including its name and severity.
        """
        alerts = [("ALERTS", _items({**one, "alertstate": "firing"})) for one in firing]
        expected = [{"labels": series_text(each), "value": 1} for each in alerts]
        stored = [
            {"series": series_text(each), "values": values.notation(minutes + 1)} for each, values in series.items()
        ]
        test = {
            "interval": "1m",
            "input_series": stored,
            "promql_expr_test": [{"expr": FIRING, "eval_time": f"{minutes}m", "exp_samples": expected}],
        }
        (folder / "rules.json").write_text(json.dumps({"groups": list(groups)}))
        tests = {"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [test]}
        (folder / "test.json").write_text(json.dumps(tests))
        command = [str(self.program), "test", "rules", "test.json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        return "" if done.returncode == 0 else done.stdout + done.stderr


def series_text(series: Series) -> str:
    """Return the series in PromQL notation."""
    name, labels = series
    return f"{name}{{{', '.join(f'{key}={json.dumps(value)}' for key, value in sorted(labels))}}}"


def scraped(text: str, target: Labels, *, at_s: float) -> dict[Series, Values]:
    """Return an exposition as Prometheus stores it: a label that the target has as well becomes `exported_…`.

    promtool's clock starts at 0, so timestamps are relative to the scrape.
    """
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = {f"exported_{key}" if key in target else key: value for key, value in sample.labels.items()}
            value = sample.value - at_s if sample.name.endswith("_timestamp_seconds") else sample.value
            found[sample.name, _items({**target, **own})] = Values(value)
    return found


def families_of(text: str) -> set[str]:
    """Return the names of series in an exposition, including those that appear with the first count."""
    found = set()
    for family in text_string_to_metric_families(text):
        found |= {family.name, f"{family.name}_total"} | {sample.name for sample in family.samples}
    return found


def _items(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())
