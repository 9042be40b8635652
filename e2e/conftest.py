"""What all suites here share: the runs that take too long for every change stay out unless asked for."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="also the long runs: every kill instant, the real broker as control"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes too long for every change; runs with --long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        # Deselected, not skipped: nothing is missing here that the run was asked for.
        kept = [item for item in items if item.get_closest_marker("long") is None]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
