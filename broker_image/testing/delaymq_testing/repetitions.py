"""How often randomised tests repeat, and from which seed.

DELAYMQ_SEED chooses the random sequence (1). CI takes another one each time and prints it; the same number repeats a
run. DELAYMQ_FUZZ_INPUTS is the number of inputs for each fuzzed decoder and of steps of each model of the timeline
(20,000), and a sixth of the steps of simulated groups of replicas; whole brokers, rule files and sockets get a stated
share of it. DELAYMQ_CRASH_STATES is the number of simulated power losses (1,000), DELAYMQ_DAMAGES the number of flipped
bits in logs (250). Of the calls at which the operator dies one in DELAYMQ_DEATHS_SHARE (3) is tried; the seed says
which. `make test-long-fuzz` raises the first three and tries every call.
"""

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

SEED = int(os.environ.get("DELAYMQ_SEED", "1"))
FUZZ_INPUTS = int(os.environ.get("DELAYMQ_FUZZ_INPUTS", "20000"))
CRASH_STATES = int(os.environ.get("DELAYMQ_CRASH_STATES", "1000"))
DAMAGES = int(os.environ.get("DELAYMQ_DAMAGES", "250"))
DEATHS_SHARE = int(os.environ.get("DELAYMQ_DEATHS_SHARE", "3"))

Item = TypeVar("Item")


def one_in(share: int, items: Sequence[Item]) -> Sequence[Item]:
    """Every `share`-th item; the seed chooses the first."""
    return items[SEED % share :: share]


def is_chosen(share: int, numbers: Iterable[int]) -> bool:
    """Whether the values of a test's parameters, by their numbers, are among the one in `share` of this seed.

    Of two parameters with `share` values each, every value of either is chosen with some value of the other.
    """
    return sum(numbers) % share == SEED % share


def report_header() -> str:
    """The line above a test run with which the run can be repeated."""
    values = {
        "SEED": SEED,
        "FUZZ_INPUTS": FUZZ_INPUTS,
        "CRASH_STATES": CRASH_STATES,
        "DAMAGES": DAMAGES,
        "DEATHS_SHARE": DEATHS_SHARE,
    }
    return " ".join(f"DELAYMQ_{name}={value}" for name, value in values.items())
