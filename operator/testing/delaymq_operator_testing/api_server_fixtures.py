"""Fixtures of the real API server, imported by conftest.py."""

import os
from collections.abc import Iterator, Sequence

import pytest

from delaymq_operator_testing.api_server import ApiServer, MissingProgramsError, Programs, find_programs

BUILT_FIRST = {"kubernetes_programs", "helm"}
"""Fixtures of programs that `make cluster` builds."""


def mark_kubernetes(items: Sequence[pytest.Item]) -> None:
    """Add the marker `kubernetes` to tests that use these fixtures: `make test-api` runs them, `make test` does not."""
    for item in items:
        if BUILT_FIRST.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("kubernetes")


@pytest.fixture(scope="session")
def kubernetes_programs() -> Programs:
    """Return the Kubernetes programs; if they are missing, skip the test, or fail it in CI."""
    try:
        return find_programs()
    except MissingProgramsError as error:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def api_server(kubernetes_programs: Programs) -> Iterator[ApiServer]:
    """Return a Kubernetes API with the project's CRDs and without controllers."""
    with ApiServer(kubernetes_programs) as server:
        yield server


@pytest.fixture(scope="session")
def api_server_with_controllers(kubernetes_programs: Programs) -> Iterator[ApiServer]:
    """Return a separate Kubernetes API with controllers for StatefulSets, garbage collection and namespaces."""
    with ApiServer(kubernetes_programs, controllers=True) as server:
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """Return the name of a new namespace of `api_server`."""
    return api_server.new_namespace()


@pytest.fixture
def controlled_namespace(api_server_with_controllers: ApiServer) -> str:
    """Return the name of a new namespace of `api_server_with_controllers`."""
    return api_server_with_controllers.new_namespace()
