"""Options of all suites here; pytest reads them only from a conftest at or above the path that it is given.

``--long`` adds the runs that take too long for every change; ``--against real`` tests RocketMQ's broker instead.
"""

import os
from collections import defaultdict

import pytest
from delaymq_testing.any_disk import any_disk  # noqa: F401
from delaymq_testing.repetitions import is_chosen


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="also the long runs: every kill instant, the real broker as control"
    )
    parser.addoption(
        "--against",
        choices=("ours", "real"),
        default=os.environ.get("DELAYMQ_AGAINST", "ours"),
        help="the broker under RocketMQ's own clients in compat/: delaymq (default) or the real one",
    )
    parser.addoption("--write-golden", action="store_true", help="keep mqadmin's output as golden files (real broker)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes too long for every change; runs with --long")
    config.addinivalue_line("markers", "one_in(share): one in `share` parameters each time, by the seed")
    config.addinivalue_line("markers", "ours_only: a promise that the real broker does not make")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unwanted = set()
    if config.getoption("--against") == "ours":
        _put_off(items)
    if not config.getoption("--long"):
        unwanted.add("long")
    if config.getoption("--against") == "real":
        unwanted.add("ours_only")
    # Deselected, not skipped: the run did not request these tests.
    dropped = [item for item in items if any(item.get_closest_marker(name) for name in unwanted)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]


def _put_off(items: list[pytest.Item]) -> None:
    """Leave the variants that `one_in` excludes to long runs; RocketMQ's broker, as a control, gets all of them."""
    # pytest counts combinations of parameters; here the values of each are counted, in order of appearance.
    values: dict[tuple[object, str], list[object]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is None:
            continue
        assert isinstance(item, pytest.Function), item
        numbers = []
        for name, value in item.callspec.params.items():
            known = values[item.function, name]
            if value not in known:
                known.append(value)
            numbers.append(known.index(value))
        if not is_chosen(marker.args[0], numbers):
            item.add_marker(pytest.mark.long)
