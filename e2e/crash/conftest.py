"""One load program for all runs, in a network that has only loopback."""

import os
from collections.abc import Iterator

import pytest
from crash.load import SOURCES_PATH, LoadProgram
from harness import isolation, java
from harness.errors import HarnessError


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadProgram]:
    """RocketMQ's own producers and readers, to be commanded."""
    try:
        java.prepare()
        java.client_class_path(sources_path=SOURCES_PATH)
        isolation.enter()
    except HarnessError as e:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no run with RocketMQ's own programs here: {e}")
    with LoadProgram(tmp_path_factory.mktemp("load")) as program:
        yield program
