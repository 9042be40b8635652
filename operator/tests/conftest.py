"""Fixtures and markers of all operator tests."""

import pytest
from delaymq_operator_testing.api_server_fixtures import (  # noqa: F401
    api_server,
    api_server_with_controllers,
    controlled_namespace,
    kubernetes_programs,
    mark_kubernetes,
    namespace,
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_kubernetes(items)
