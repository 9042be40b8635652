"""The statements of form 2 suffice to find the pending messages in any log; the model detects planted mistakes."""

from __future__ import annotations

import pytest
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.timeline_model import BUGS, Model, ModelError

STEPS = FUZZ_INPUTS
STEPS_A_RUN = 500
MAX_RUNS_UNTIL_FOUND = 200
PERFORMED = {
    "send", "deliver", "move", "cancel", "copy", "carry", "delete", "flush", "snapshot", "kill", "lose_power", "damage",
    "snapshot used",
}  # fmt: skip
"""Operations that each run of the test performs."""


def test_log_leads_to_the_pending_messages_after_any_crash_and_any_damaged_statement() -> None:
    counts: dict[str, int] = {}
    for run in range(max(1, STEPS // STEPS_A_RUN)):
        model = Model(SEED * 1_000_003 + run)
        for _ in range(STEPS_A_RUN):
            model.step()
        for name, count in model.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts.keys() >= PERFORMED, counts


@pytest.mark.parametrize("bug", BUGS)
def test_model_detects_a_planted_bug(bug: str) -> None:
    for run in range(MAX_RUNS_UNTIL_FOUND):
        model = Model(run, frozenset({bug}))
        try:
            for _ in range(STEPS_A_RUN):
                model.step()
        except ModelError:
            return
    pytest.fail(f"{bug} was not found in {MAX_RUNS_UNTIL_FOUND} runs: {BUGS[bug]}")
