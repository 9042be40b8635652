"""Check that every suite and every test module ran, and that no test was skipped. The exit code is 1 otherwise."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
SUITES = ("unit", "api", "spark-core", "spark", "compat-core", "compat", "crash", "kind")
TEST_FOLDERS = (".ci", "bench", "broker_image", "e2e", "helm", "operator", "spark")
LONG_ONLY = frozenset(
    {"e2e.kind.test_kind_idle", "e2e.kind.test_kind_replica_losses", "e2e.replication.test_replication_control"}
)
"""All of their tests run in `make test-long`."""

NEEDS_CARGO = "compiled kernels: off (delaymq-kernels is not installed)"
"""Reason of tests that a machine skips on which compiled kernels cannot be built: without cargo, or without crates."""
NOT_FETCHED = ROOT / "build" / "kernels" / "not-fetched"
"""File that exists if the crates could not be downloaded."""


def can_build_kernels() -> bool:
    """Return whether this machine has what a build of the kernels needs."""
    return shutil.which("cargo") is not None and not NOT_FETCHED.exists()


def modules(root: Path = ROOT) -> set[str]:
    """Return the test modules of the checkout, as named in reports."""
    paths = (path for folder in TEST_FOLDERS for path in (root / folder).rglob("test_*.py"))
    names = {".".join(path.relative_to(root).with_suffix("").parts) for path in paths}
    # The analytics have a separate pytest configuration, and therefore a separate root.
    return {name.removeprefix("spark.") for name in names}


def problems(reports: Path, wanted: Iterable[str]) -> list[str]:
    """Return a sentence for each missing suite or module and each skipped test."""
    found, ran = [], set()
    for suite in SUITES:
        path = reports / f"{suite}.xml"
        if not path.exists():
            found.append(f"suite {suite} did not run: {path} is missing")
            continue
        cases = list(ElementTree.parse(path).iter("testcase"))
        for case in cases:
            ran.add(case.get("classname", ""))
            skipped = case.find("skipped")
            if skipped is not None and (skipped.get("message") != NEEDS_CARGO or can_build_kernels()):
                found.append(f"{case.get('classname')}.{case.get('name')} was skipped: {skipped.get('message')}")
        if not cases:
            found.append(f"suite {suite} ran no test")
        print(f"{suite}: {len(cases)} tests")
    # For tests in a class, the report appends the class to the name of the module.
    found += [
        f"no test of {module} ran"
        for module in sorted(set(wanted) - LONG_ONLY)
        if not any(name == module or name.startswith(f"{module}.") for name in ran)
    ]
    return found


if __name__ == "__main__":
    missing = problems(Path(sys.argv[1]), modules())
    for sentence in missing:
        print(f"FAILED: {sentence}")
    sys.exit(1 if missing else 0)
