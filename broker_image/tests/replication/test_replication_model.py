"""Groups of replicas keep their promises under random faults; the simulation detects planted mistakes."""

from __future__ import annotations

import pytest
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.replication.bugs import BUGS, FOCUSES, planted
from delaymq_testing.replication.checker import ViolationError
from delaymq_testing.replication.faults import Focus, Scenario

PARTS = 2
STEPS = FUZZ_INPUTS * 3
"""Steps of each part."""
MAX_STEPS = STEPS * 10
"""Limit of further steps until everything has occurred."""
STEPS_A_RUN = 2_000
STEPS_OF_A_BUG = 1_200
MAX_RUNS_UNTIL_FOUND = 400
KNOWN_RUNS = {"unknown-is-failed": (10,), "join-at-confirmed": (214,), "founded-in-use": (4_484,)}
"""Runs that find bugs which earlier runs do not find, tried first to save time."""
OCCURRED = {
    "acknowledged", "appends", "block", "changed sets", "crash", "detach", "disturb_network", "disturb_register",
    "epochs", "founded records", "isolate_from_register", "jump_clock", "lose_power", "masters", "partition", "pause",
    "reads", "skew_clock", "switch_over", "unknown outcomes", "NO_REPLICA", "NOT_CONFIRMED",
}  # fmt: skip
"""Occurrences in each run of the test."""


@pytest.mark.parametrize("part", range(PARTS))
def test_groups_keep_one_confirmed_history_and_recover_after_any_faults(part: int) -> None:
    counts: dict[str, int] = {}
    steps = run = 0
    while steps < STEPS or (steps < MAX_STEPS and not counts.keys() >= OCCURRED):
        scenario = Scenario((SEED * PARTS + part) * 1_000_003 + run)
        scenario.run(STEPS_A_RUN)
        steps += scenario.world.steps
        run += 1
        for name, count in scenario.world.checker.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts.keys() >= OCCURRED, counts


@pytest.mark.parametrize("bug", BUGS)
def test_simulation_detects_a_planted_bug(bug: str) -> None:
    with planted(bug):
        for run in (*KNOWN_RUNS.get(bug, ()), *range(MAX_RUNS_UNTIL_FOUND)):
            scenario = Scenario(run, FOCUSES.get(bug, Focus()))
            try:
                scenario.run(STEPS_OF_A_BUG)
            except (ViolationError, AssertionError):
                return
    pytest.fail(f"{bug} was not found in {MAX_RUNS_UNTIL_FOUND} runs: {BUGS[bug].description}")
