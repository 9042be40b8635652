"""Fails when a suite that must run here did not, or skipped a test: a green run says that everything ran."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

# suite → the parts of it that must have run at least one test (beginnings of the tests' class names)
REQUIRED = {
    "unit": [
        "broker_image.tests.broker",
        "broker_image.tests.cli",
        "broker_image.tests.client",
        "broker_image.tests.config",
        "broker_image.tests.message",
        "broker_image.tests.namesrv",
        "broker_image.tests.protocol",
        "broker_image.tests.schedule",
        "broker_image.tests.server",
        "broker_image.tests.store",
        "broker_image.tests.transport",
        "e2e.cluster_tests",
        "helm.tests",
        "operator.tests.adapters",
        "operator.tests.api",
        "operator.tests.handlers",
        "operator.tests.manifests",
        "operator.tests.reconcile",
    ],
    "compat": ["e2e.compat", "e2e.console", "e2e.crash", "e2e.soak"],
    "spark": [
        "tests.test_spark_compaction_truth",
        "tests.test_spark_entrypoint",
        "tests.test_spark_http_broker",
        "tests.test_spark_independent_counts",
        "tests.test_spark_jobs_end_to_end",
        "tests.test_spark_publish",
        "tests.test_spark_scan",
        "tests.test_spark_source",
    ],
    "kind": ["e2e.kind.test_kind_analytics", "e2e.kind"],
}


def problems(reports: Path) -> list[str]:
    """What is missing, a sentence each."""
    found = []
    for suite, parts in REQUIRED.items():
        path = reports / f"{suite}.xml"
        if not path.exists():
            found.append(f"suite {suite} did not run: {path} is missing")
            continue
        cases = list(ElementTree.parse(path).iter("testcase"))
        for case in cases:
            skipped = case.find("skipped")
            if skipped is not None:
                found.append(f"{case.get('classname')}.{case.get('name')} was skipped: {skipped.get('message')}")
        names = [case.get("classname", "") for case in cases]
        found += [
            f"suite {suite} ran no test of {part}" for part in parts if not any(name.startswith(part) for name in names)
        ]
        print(f"{suite}: {len(cases)} tests")
    return found


if __name__ == "__main__":
    missing = problems(Path(sys.argv[1]))
    for sentence in missing:
        print(f"FAILED: {sentence}")
    sys.exit(1 if missing else 0)
