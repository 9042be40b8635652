"""Fixtures of the real API server; conftest.py brings them in."""

import os
from collections.abc import Iterator, Sequence

import pytest

from delaymq_operator_testing.api_server import ApiServer, MissingProgramsError, Programs, find_programs

BUILT_FIRST = {"kubernetes_programs", "helm"}
"""Fixtures of programs that `make cluster` builds."""


def mark_kubernetes(items: Sequence[pytest.Item]) -> None:
    """Give tests of these fixtures the marker `kubernetes`, by which `make test` leaves them to `make test-api`."""
    for item in items:
        if BUILT_FIRST.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("kubernetes")


@pytest.fixture(scope="session")
def kubernetes_programs() -> Programs:
    """Kubernetes as programs; without them the test is skipped, and in CI it fails."""
    try:
        return find_programs()
    except MissingProgramsError as error:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def api_server(kubernetes_programs: Programs) -> Iterator[ApiServer]:
    """A Kubernetes API with the project's CRDs in which nothing happens automatically."""
    with ApiServer(kubernetes_programs) as server:
        yield server


@pytest.fixture(scope="session")
def api_server_with_controllers(kubernetes_programs: Programs) -> Iterator[ApiServer]:
    """One of its own with controllers: StatefulSets make pods, owned objects go with their owners, namespaces end."""
    with ApiServer(kubernetes_programs, controllers=True) as server:
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """A fresh namespace of `api_server`."""
    return api_server.new_namespace()


@pytest.fixture
def controlled_namespace(api_server_with_controllers: ApiServer) -> str:
    """A fresh namespace of `api_server_with_controllers`."""
    return api_server_with_controllers.new_namespace()
