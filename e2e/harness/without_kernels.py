"""Some of the processes of a suite run their brokers without compiled kernels."""

import os

from delaymq import kernels
from delaymq_testing.repetitions import SEED

SHARE = 3
"""One in this many processes does so."""


def rotate() -> None:
    """Let brokers run without kernels if this is one of the parallel test processes that the seed chooses.

    The tests of a file stay together and are assigned to any process, so each run chooses other files. The process that
    only distributes the tests is never one of them: all others inherit its environment.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and (SEED + int(worker.removeprefix("gw"))) % SHARE == 0:
        os.environ.setdefault(kernels.VARIABLE, "off")
