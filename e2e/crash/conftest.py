"""A load program shared by all runs, in a network with loopback only."""

from collections.abc import Iterator

import pytest
from crash.load import SHORT_LIVED, SOURCES_PATH, LoadProgram
from harness import java
from harness.suite import enter_isolated
from harness.without_kernels import rotate


def pytest_configure() -> None:
    rotate()


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadProgram]:
    """Provide RocketMQ's own producers and consumers, controlled by commands."""
    enter_isolated(lambda: java.client_class_path(sources_path=SOURCES_PATH))
    with LoadProgram(tmp_path_factory.mktemp("load"), jvm_options=SHORT_LIVED) as program:
        yield program
