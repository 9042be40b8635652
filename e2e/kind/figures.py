"""Measurements of the tests: printed, and stored in build/reports/kind-figures.json for the documentation."""

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

REPORTS_PATH = Path(__file__).resolve().parents[2] / "build" / "reports"


class Figures:
    """Test → name → value; written after each test, so that an aborted run keeps its figures."""

    def __init__(self, path: Path = REPORTS_PATH / "kind-figures.json") -> None:
        self._path = path
        self._tests: dict[str, dict[str, object]] = {}
        if path.is_file():
            # A run of a few tests replaces only their figures.
            self._tests = json.loads(path.read_text()).get("tests", {})

    def note(self, test: str, **values: object) -> None:
        """Add values to a test's figures; floats are rounded."""
        rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in values.items()}
        self._tests.setdefault(test, {}).update(rounded)
        print(f"{test}: " + ", ".join(f"{name} {value}" for name, value in rounded.items()))
        self.save()

    def begin(self, test: str) -> None:
        """Delete values of an earlier run of the test."""
        self._tests.pop(test, None)

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        whole = {
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Linux {platform.release()}",
            "tests": self._tests,
        }
        self._path.write_text(json.dumps(whole, indent=2) + "\n")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which ``percent`` of the values lie; 0 for no values."""
    if not values:
        return 0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
