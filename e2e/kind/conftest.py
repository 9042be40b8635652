"""One cluster for all tests here, with the operator in it; a namespace for each test, and evidence of what failed.

Processes of pytest-xdist share the cluster. A test that changes what others stand on (nodes, the operator) is marked
``alone``: no other runs meanwhile.

DELAYMQ_KIND_KEEP=1 leaves the cluster for the next run, which takes it over with freshly built images. No other cluster
is ever touched: the kubeconfig of these tests is the one that the cluster was made with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import cluster as kind_cluster
import pytest
from cluster import Cluster, dockerd
from cluster.images import build_images
from kind import evidence, sharing
from kind.figures import Figures
from kind.lab import CLUSTER_NAME, OPERATOR_NAMESPACE, Lab, Operator
from kind.sharing import Run
from kind.space import Space

KEEP = os.environ.get("DELAYMQ_KIND_KEEP") == "1"
WORKERS = 2
RUN = pytest.StashKey[Run]()
TURN = pytest.StashKey[ExitStack]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with tests that run alone come last, when no other process has anything left to do."""
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    # All processes collect before the first test runs: the cluster stays until the last of them has ended.
    config.stash[RUN] = Run()
    for item in ours:
        # Limits are for tests: the first of a process waits for the cluster, whose making has limits of its own.
        for marker in item.iter_markers("timeout"):
            item.add_marker(pytest.mark.timeout(*marker.args, func_only=True), append=False)
            break
    last = {item.path for item in ours if item.get_closest_marker("alone")}
    items.sort(key=lambda item: item.path in last)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if RUN in session.config.stash:
        session.config.stash[RUN].leave()


@pytest.fixture(scope="session")
def run(pytestconfig: pytest.Config) -> Run:
    return pytestconfig.stash[RUN]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """A test's turn begins before all of its fixtures."""
    held = item.stash[TURN] = sharing.turn(alone=item.get_closest_marker("alone") is not None)
    try:
        yield
    except BaseException:
        held.close()
        raise


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends a test's turn after its own fixtures, before those of its process: these wait for other processes."""
    yield
    request.node.stash[TURN].close()


@pytest.fixture(scope="session")
def lab(run: Run) -> Iterator[Lab]:
    reason = kind_cluster.why_not()
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no cluster can be made here: {reason}")
        pytest.skip(f"no cluster can be made here: {reason}")
    daemon = nullcontext() if KEEP else dockerd.session()
    with daemon, ThreadPoolExecutor(4) as beside:
        with run.preparing() as facts:
            ours = "cluster" not in facts
            building = beside.submit(build_images)
            made = _make_cluster() if ours else Cluster.join(CLUSTER_NAME)
            try:
                lab = Lab(made, building.result())
                lab.load_images(beside)
                facts["cluster"] = CLUSTER_NAME
            except BaseException:
                _let_go(made, ours)
                raise
        try:
            yield lab
            for space in list(lab.spaces):
                lab.remove(space)
        finally:
            if ours:
                run.wait_for_others()
            _let_go(made, ours)


def _make_cluster() -> Cluster:
    return (Cluster.attach(CLUSTER_NAME) if KEEP else None) or Cluster.create(CLUSTER_NAME, workers=WORKERS)


def _let_go(made: Cluster, ours: bool) -> None:
    if ours and not KEEP:
        made.delete()
    else:
        made.release()


@pytest.fixture(scope="session")
def operator(lab: Lab, run: Run) -> Operator:
    """The operator, cluster-wide; tests that change it put it back."""
    made = Operator(lab)
    with run.preparing() as facts:
        if "operator_installed_in_s" in facts:
            made.installed_in_s = facts["operator_installed_in_s"]
        else:
            if KEEP:
                _forget_former_run(lab, made)
            made.install()
            facts["operator_installed_in_s"] = made.installed_in_s
    return made


def _forget_former_run(lab: Lab, operator: Operator) -> None:
    """Its operator, its definitions and its namespaces; those go in the background, once there is an operator again."""
    lab.cluster.helm("uninstall", operator.release, "-n", operator.namespace, "--ignore-not-found", "--wait")
    operator.upgrade_definitions()
    former = lab.cluster.get("namespaces", selector="delaymq.io/e2e")["items"]
    names = [each["metadata"]["name"] for each in former if each["metadata"]["name"] != operator.namespace]
    if names:
        lab.cluster.kubectl("delete", "namespace", "--wait=false", *names)


@pytest.fixture
def spaces(lab: Lab, operator: Operator) -> Iterator[Callable[..., Space]]:
    """Makes namespaces that go with the test."""
    made: list[Space] = []

    def make(about: str, **options: Any) -> Space:
        made.append(lab.space(about, **options))
        return made[-1]

    yield make
    for space in made:
        lab.remove(space)


@pytest.fixture
def spare(lab: Lab, operator: Operator) -> Iterator[Callable[[], Space]]:
    """Takes namespaces with a Broker and a Topic that are ready already; they go with the test."""
    taken: list[Space] = []

    def take() -> Space:
        taken.append(lab.spare())
        return taken[-1]

    yield take
    for space in taken:
        lab.remove(space)


@pytest.fixture(scope="session")
def all_figures() -> Figures:
    return Figures()


@pytest.fixture
def note(request: pytest.FixtureRequest, all_figures: Figures) -> Callable[..., None]:
    """`note(lost=0, gap_s=1.2)`: keeps what the test measured."""
    test = request.node.name
    return lambda **values: all_figures.note(test, **values)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Evidence is taken before the fixtures remove it."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and call.when in ("setup", "call") and isinstance(lab, Lab):
        names = [space.name for space in lab.spaces]
        folder = evidence.collect(lab.cluster, item.name, names, [OPERATOR_NAMESPACE])
        report.sections.append(("evidence", f"kept in {folder}"))
    return report
