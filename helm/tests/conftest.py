"""Helm and a Kubernetes API for the chart's tests; without the programs the tests are skipped, and in CI they fail."""

import os

import pytest
from cluster.paths import artifacts_path
from cluster.programs import find_program
from delaymq_helm_testing.helm_chart import Helm
from delaymq_operator_testing.api_server_fixtures import kubernetes_programs, mark_kubernetes  # noqa: F401


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_kubernetes(items)


@pytest.fixture(scope="session")
def helm() -> Helm:
    """The command `helm` of the e2e tests' clusters."""
    found = find_program("helm")
    if found is None:
        sentence = f"Helm is not built (in {artifacts_path()}): run `make cluster` once"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(sentence, pytrace=False)
        pytest.skip(sentence)
    return Helm(found)
