"""Selection of the broker under test, and of its clients.

``--against ours|real`` (or DELAYMQ_AGAINST; see ../conftest.py) chooses it. Everything runs in a network namespace
with only loopback.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack

import pytest
from harness.brokers import Cluster, OurCluster, RealCluster
from harness.clients import Workbench
from harness.driver import Driver
from harness.suite import enter_isolated
from harness.without_kernels import rotate

DELAY_LEVELS = "1s 2s 1s 1s 3s 4s 10s 1h"
"""Short levels; 3 and 4 are the first and second retry of a failed message."""
COMMON_CONFIG: Mapping[str, str] = {"messageDelayLevel": DELAY_LEVELS}

NewCluster = Callable[..., Cluster]


def pytest_configure() -> None:
    rotate()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the broker's log to the report of a failure, before the log is deleted with the broker's folder."""
    report = yield
    if report.failed:
        for fixture in getattr(item, "funcargs", {}).values():
            if isinstance(fixture, Cluster):
                report.sections.append((f"log of {fixture.broker.name}", fixture.broker.log_tail()))
    return report


@pytest.fixture(scope="session")
def against(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--against"))


@pytest.fixture(scope="session", autouse=True)
def isolated_network() -> None:
    """Prepare libraries while Maven can reach its repository, then isolate this process from all other networks."""
    enter_isolated()


@pytest.fixture(scope="session")
def driver(isolated_network: None) -> Iterator[Driver]:
    with Driver() as driver:
        yield driver


@pytest.fixture(scope="session")
def driver5(isolated_network: None) -> Iterator[Driver]:
    with Driver(profile="client5") as driver:
        yield driver


@pytest.fixture(scope="session")
def new_cluster(against: str, isolated_network: None) -> NewCluster:
    """Provide clusters of the tested kind, as context managers. A setting of None has its default value."""

    def create(*, rules: str | None = None, **config: str | None) -> Cluster:
        wanted = {**COMMON_CONFIG, **config}
        settings = {key: value for key, value in wanted.items() if value is not None}
        kind = OurCluster if against == "ours" else RealCluster
        return kind(config=settings, rules=rules)

    return create


@pytest.fixture(scope="session")
def cluster(new_cluster: NewCluster) -> Iterator[Cluster]:
    """Provide the cluster shared by most tests; none of them stops it."""
    with new_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def strict_cluster(new_cluster: NewCluster) -> Iterator[Cluster]:
    """Provide a cluster without automatic creation of topics and groups, and with messages treated as not in memory."""
    settings = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"}
    with new_cluster(**settings, accessMessageInMemoryMaxRatio="0") as cluster:
        yield cluster


@pytest.fixture
def new_workbench(driver: Driver) -> Iterator[Callable[..., Workbench]]:
    """Provide clients for a cluster that the test started itself."""
    with ExitStack() as open_workbenches:

        def create(cluster: Cluster, *, credentials: dict[str, str] | None = None) -> Workbench:
            addresses = {"namesrv_address": cluster.namesrv_address, "broker_address": cluster.broker_address}
            workbench = Workbench(driver, **addresses, credentials=credentials)
            open_workbenches.callback(workbench.close)
            return workbench

        yield create


@pytest.fixture
def clients(cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]) -> Workbench:
    """Provide clients of the shared cluster."""
    return new_workbench(cluster)


@pytest.fixture(scope="module")
def clients5(driver5: Driver, cluster: Cluster) -> Iterator[Workbench]:
    """Provide clients of 5.3, which take 3 s to stop, for all tests of a module."""
    workbench = Workbench(driver5, namesrv_address=cluster.namesrv_address, broker_address=cluster.broker_address)
    yield workbench
    workbench.close()


@pytest.fixture(params=["4.9", "5.3"])
def either(request: pytest.FixtureRequest) -> Workbench:
    """Provide clients of each version, as senders: push consumers of 5.3 sometimes start 20 s late, because their
    first heartbeats compete for a lock.
    """
    fixture = {"4.9": "clients", "5.3": "clients5"}[request.param]
    workbench: Workbench = request.getfixturevalue(fixture)
    return workbench
