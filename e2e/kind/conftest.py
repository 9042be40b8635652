"""One cluster for all tests here, with the operator in it; a namespace for each test, and evidence of failures.

DELAYMQ_KIND_KEEP=1 keeps the cluster for the next run, which reuses it with freshly built images. No other cluster is
touched: the kubeconfig of these tests is the one created with their cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import cluster as kind_cluster
import pytest
from cluster import Cluster, dockerd
from cluster.images import build_images
from kind import evidence
from kind.figures import Figures
from kind.lab import CLUSTER_NAME, OPERATOR_NAMESPACE, Lab, Operator
from kind.lost_nodes import LostNodes
from kind.space import Space

KEEP = os.environ.get("DELAYMQ_KIND_KEEP") == "1"
WORKERS = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Exclude the cluster's creation, which has limits of its own, from the time limit of the first test.

    The end of the time fails the test, but not the process, which has to delete the cluster.
    """
    for item in items:
        if item.path.parent == Path(__file__).parent and (marker := item.get_closest_marker("timeout")):
            item.add_marker(pytest.mark.timeout(*marker.args, func_only=True, method="signal"), append=False)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    reason = kind_cluster.why_not()
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no cluster can be made here: {reason}")
        pytest.skip(f"no cluster can be made here: {reason}")
    daemon = nullcontext() if KEEP else dockerd.session()
    with daemon, ThreadPoolExecutor(4) as beside:
        building = beside.submit(build_images)
        made = (Cluster.attach(CLUSTER_NAME) if KEEP else None) or Cluster.create(CLUSTER_NAME, workers=WORKERS)
        try:
            lab = Lab(made, building.result())
            lab.load_images(beside)
            yield lab
            for space in list(lab.spaces):
                lab.remove(space)
        finally:
            if KEEP:
                made.release()
            else:
                made.delete()


@pytest.fixture(scope="session")
def operator(lab: Lab) -> Operator:
    """Provide the operator, cluster-wide; tests that change it restore it."""
    made = Operator(lab)
    if KEEP:
        _forget_former_run(lab, made)
    made.install()
    return made


def _forget_former_run(lab: Lab, operator: Operator) -> None:
    """Remove the former run's operator, CRDs and namespaces; those in the background, once an operator runs again."""
    lab.cluster.helm("uninstall", operator.release, "-n", operator.namespace, "--ignore-not-found", "--wait")
    operator.upgrade_definitions()
    former = lab.cluster.get("namespaces", selector="delaymq.io/e2e")["items"]
    names = [each["metadata"]["name"] for each in former if each["metadata"]["name"] != operator.namespace]
    if names:
        lab.cluster.kubectl("delete", "namespace", "--wait=false", *names)


@pytest.fixture
def spaces(lab: Lab, operator: Operator) -> Iterator[Callable[..., Space]]:
    """Create namespaces that are deleted after the test."""
    made: list[Space] = []

    def make(about: str, **options: Any) -> Space:
        made.append(lab.space(about, **options))
        return made[-1]

    yield make
    for space in made:
        lab.remove(space)


@pytest.fixture
def spare(lab: Lab, operator: Operator) -> Iterator[Callable[[], Space]]:
    """Provide namespaces with a ready Broker and Topic, which are deleted after the test."""
    taken: list[Space] = []

    def take() -> Space:
        taken.append(lab.spare())
        return taken[-1]

    yield take
    for space in taken:
        lab.remove(space)


@pytest.fixture
def nodes(lab: Lab) -> Iterator[LostNodes]:
    """Provide nodes to stop; all run again after the test, whatever its result."""
    made = LostNodes(lab.cluster)
    yield made
    for node in list(made.lost):
        made.give_back(node)


@pytest.fixture(scope="session")
def all_figures() -> Figures:
    return Figures()


@pytest.fixture
def note(request: pytest.FixtureRequest, all_figures: Figures) -> Callable[..., None]:
    """Record measurements of the test: `note(lost=0, gap_s=1.2)`."""
    test = request.node.name
    all_figures.begin(test)
    return lambda **values: all_figures.note(test, **values)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Collect evidence before the fixtures delete it."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and call.when in ("setup", "call") and isinstance(lab, Lab):
        names = [space.name for space in lab.spaces]
        folder = evidence.collect(lab.cluster, item.name, names, [OPERATOR_NAMESPACE])
        failed = evidence.failed_sends(lab.spaces)
        report.sections.append(("evidence", "\n".join([f"kept in {folder}", *failed])))
    return report
