"""A broker with messages, and a browser that may send requests only to it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from console import chromium
from console.watched import Watched
from harness.brokers import OurCluster
from harness.errors import HarnessError
from playwright.sync_api import Browser, expect, sync_playwright

# What is waited for comes within a second; the bound is for machines with much else to do.
LIMIT_MS = 60_000
START_TIMEOUT_MS = 60_000
LEVELS = {"messageDelayLevel": "1s 50s 1s 1s 1h 2h"}
"""Level 1 to 6; 3 and 4 are the first and second retry of a failed message."""

NewCluster = Callable[..., OurCluster]
OpenPage = Callable[..., Watched]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Chromium first, while the machine's mirror can be reached: tests before these may leave the network."""
    here = Path(__file__).parent
    if any(here in item.path.parents for item in session.items):
        with contextlib.suppress(HarnessError):  # the fixture says what is missing, of the tests that need it
            chromium.prepare()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One a module: while playwright runs, no other test of this process can use asyncio in this thread."""
    try:
        path = chromium.executable()
    except HarnessError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no browser here: {error}")
    expect.set_options(timeout=LIMIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=chromium.options(), timeout=START_TIMEOUT_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def new_cluster() -> Iterator[NewCluster]:
    """Starts brokers; all end with the tests."""
    with ExitStack() as running:

        def create(store_path: Path | None = None, **config: str) -> OurCluster:
            cluster = OurCluster(config={**LEVELS, **config}, store_path=store_path)
            return running.enter_context(cluster)

        yield create


@pytest.fixture(scope="session")
def cluster(new_cluster: NewCluster) -> OurCluster:
    """The broker that most tests share; none of them stops it."""
    return new_cluster()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens the console of a cluster at a place (`#/…`), in a browser of its own; what it did wrong fails the test."""
    opened: list[Watched] = []

    def open_at(cluster: OurCluster, place: str = "", **options: Any) -> Watched:
        watched = Watched(browser, f"http://{cluster.http_address}", **options)
        opened.append(watched)
        watched.page.set_default_timeout(LIMIT_MS)
        watched.go(place)
        return watched

    yield open_at
    for watched in opened:
        watched.close()
    for watched in opened:
        assert watched.complaints == []
