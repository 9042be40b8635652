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

LIMIT_MS = 60_000
"""Results appear within a second; the limit allows for busy machines."""
START_TIMEOUT_MS = 60_000
LEVELS = {"messageDelayLevel": "1s 50s 1s 1s 1h 2h"}
"""Levels 1 to 6; 3 and 4 are the first and second retry of a failed message."""

NewCluster = Callable[..., OurCluster]
OpenPage = Callable[..., Watched]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install Chromium while the machine's mirror is reachable: earlier tests may isolate this process."""
    here = Path(__file__).parent
    if any(here in item.path.parents for item in session.items):
        with contextlib.suppress(HarnessError):  # the fixture reports what is missing, for the tests that need it
            chromium.prepare()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Provide one browser per module: while playwright runs, this thread cannot run asyncio for other tests."""
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
    """Provide a function that starts brokers; all stop with the tests."""
    with ExitStack() as running:

        def create(store_path: Path | None = None, rules: str | None = None, **config: str) -> OurCluster:
            cluster = OurCluster(config={**LEVELS, **config}, store_path=store_path, rules=rules)
            return running.enter_context(cluster)

        yield create


@pytest.fixture(scope="session")
def cluster(new_cluster: NewCluster) -> OurCluster:
    """Provide the broker shared by most tests; none of them stops it."""
    return new_cluster()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a cluster's console at a place (`#/…`), in a separate browser context; its complaints fail the test."""
    opened: list[Watched] = []

    def open_at(
        cluster: OurCluster, place: str = "", account: tuple[str, str] | None = None, **options: Any
    ) -> Watched:
        watched = Watched(browser, f"http://{cluster.http_address}", **options)
        opened.append(watched)
        watched.page.set_default_timeout(LIMIT_MS)
        if account is not None:
            watched.sign_in(*account)
        watched.go(place)
        return watched

    yield open_at
    for watched in opened:
        watched.close()
    for watched in opened:
        assert watched.complaints == []
