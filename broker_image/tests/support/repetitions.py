"""How often randomised tests repeat, and from which seed.

DELAYMQ_SEED chooses the random sequence (1). CI takes another one each time and prints it; the same number repeats a
run. DELAYMQ_FUZZ_INPUTS is the number of inputs for each fuzzed target (20,000), DELAYMQ_CRASH_STATES the number of
simulated power losses (1,000). `make test-long-fuzz` raises both.
"""

import os

SEED = int(os.environ.get("DELAYMQ_SEED", "1"))
FUZZ_INPUTS = int(os.environ.get("DELAYMQ_FUZZ_INPUTS", "20000"))
CRASH_STATES = int(os.environ.get("DELAYMQ_CRASH_STATES", "1000"))


def report_header() -> str:
    """The line above a test run with which the run can be repeated."""
    return f"DELAYMQ_SEED={SEED} DELAYMQ_FUZZ_INPUTS={FUZZ_INPUTS} DELAYMQ_CRASH_STATES={CRASH_STATES}"
