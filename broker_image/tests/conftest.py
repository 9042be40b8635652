"""What holds for all tests of the broker."""

import signal

from delaymq_testing import repetitions
from delaymq_testing.any_disk import any_disk  # noqa: F401
from hypothesis import settings

# A shared machine may stall in the middle of any example: that is no failure.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Who is started in the background ignores Ctrl-C, and so would every command that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return repetitions.report_header()
