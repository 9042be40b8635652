"""Programs of etcd; without them, the tests are skipped, and in CI they fail."""

import pytest
from delaymq_operator_testing.api_server_fixtures import kubernetes_programs, mark_kubernetes  # noqa: F401


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_kubernetes(items)
