"""Programs of etcd and of network namespaces; without them, the tests are skipped, and in CI they fail."""

import os

import pytest
from delaymq_operator_testing.api_server_fixtures import kubernetes_programs, mark_kubernetes  # noqa: F401
from replication import namespaces as network


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_kubernetes(items)


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Make sure that namespaces can be created; otherwise skip the test, or fail it in CI."""
    try:
        network.prepare()
    except network.NamespaceError as error:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
