"""What holds for all tests of the broker."""

import signal
from collections.abc import Iterator

import pytest
from delaymq_testing import any_disk, repetitions
from hypothesis import settings

# A shared machine may stall in the middle of any example: that is no failure.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Who is started in the background ignores Ctrl-C, and so would every command that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

any_disk.accept()


@pytest.fixture(autouse=True, scope="session")
def half_full_disk() -> Iterator[None]:
    """Make stores in this process independent of the machine's disk."""
    with any_disk.half_full():
        yield


def pytest_report_header() -> str:
    return repetitions.report_header()
