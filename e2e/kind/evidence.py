"""Data stored for a failed test: objects, descriptions, events and logs, in build/reports/kind/<test>/."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from cluster import Cluster
from cluster.errors import ClusterError
from kind.figures import REPORTS_PATH
from kind.space import Space

EVIDENCE_PATH = REPORTS_PATH / "kind"
AT_MOST_S = 60.0
"""Collecting evidence must not take longer than the test."""
COMMAND_S = 15
REASONS = 5
OPERATOR_LABEL = "app.kubernetes.io/name=delaymq-operator"


def collect(cluster: Cluster, test: str, namespaces: Iterable[str], operator_namespaces: Iterable[str]) -> Path:
    """Collect evidence within AT_MOST_S and return its directory."""
    folder = EVIDENCE_PATH / re.sub(r"[^\w.-]+", "_", test)[:100]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    deadline = time.monotonic() + AT_MOST_S
    jobs: list[tuple[str, list[str]]] = [("nodes.txt", ["get", "nodes,pv", "-o", "wide"])]
    for name in operator_namespaces:
        jobs.append((f"{name}-all.txt", ["-n", name, "get", "all,events,leases", "-o", "wide"]))
        for pod in _pods(cluster, name):
            jobs.append((f"{name}-{pod}.log", ["-n", name, "logs", pod, "--all-containers", "--tail=5000"]))
            jobs.append((f"{name}-{pod}-before.log", ["-n", name, "logs", pod, "--previous", "--tail=2000"]))
    for name in namespaces:
        kinds = "brokers,topics,delaylevelconfigs,users,statefulsets,pods,services,configmaps,pvc,pdb"
        jobs += [
            (f"{name}-objects.yaml", ["-n", name, "get", kinds, "-o", "yaml"]),
            (f"{name}-wide.txt", ["-n", name, "get", kinds, "-o", "wide"]),
            (f"{name}-describe.txt", ["-n", name, "describe", "brokers,topics,delaylevelconfigs,users,pods"]),
            (f"{name}-spark.yaml", ["-n", name, "get", "sparkapplications", "-o", "yaml"]),
            (f"{name}-events.txt", ["-n", name, "get", "events", "--sort-by=.lastTimestamp"]),
        ]
        for pod in _pods(cluster, name):
            jobs.append((f"{name}-{pod}.log", ["-n", name, "logs", pod, "--tail=5000"]))
            jobs.append((f"{name}-{pod}-before.log", ["-n", name, "logs", pod, "--previous", "--tail=2000"]))
    for file, arguments in jobs:
        if time.monotonic() > deadline:
            (folder / "incomplete.txt").write_text(f"no time left for {file} and what comes after it\n")
            break
        text = _said(cluster, arguments)
        if text:
            (folder / file).write_text(text)
    return folder


def failed_sends(spaces: Iterable[Space]) -> list[str]:
    """Return a line for each of the most frequent reasons of failed sends in each namespace."""
    return [
        f"{count} sends failed in {space.name}: {reason}"
        for space in spaces
        for reason, count in space.client.failed_sends().most_common(REASONS)
    ]


def _pods(cluster: Cluster, namespace: str) -> list[str]:
    names = _said(cluster, ["-n", namespace, "get", "pods", "-o", "name"])
    return [line.removeprefix("pod/") for line in names.splitlines() if line.startswith("pod/")]


def _said(cluster: Cluster, arguments: list[str]) -> str:
    try:
        return str(cluster.kubectl(*arguments, check=False, timeout_s=COMMAND_S).stdout)
    except ClusterError as e:
        return f"{e}\n"
