"""Treatment of overdue messages when the clock is set back."""

from __future__ import annotations

import pytest
from delaymq_testing.broker.harness import Harness
from delaymq_testing.broker.overdue import DOWN_MS, MINUTE_MS, kill, lateness, schedule_overdue, treat
from delaymq_testing.broker.smoothing import run


@pytest.mark.parametrize("treatment", ["spread", "shift", "drop"])
@pytest.mark.parametrize("restarted", [False, True])
def test_treatment_ends_when_a_clock_that_was_ahead_is_corrected(
    harness: Harness, treatment: str, restarted: bool
) -> None:
    treat(harness, treatment)
    schedule_overdue(harness)
    year_ms = 365 * 24 * 60 * MINUTE_MS
    kill(harness, year_ms)
    harness.clock.advance(-year_ms)
    if restarted:
        kill(harness, 0)
    else:
        next_ms = harness.broker.delivery.next_wakeup_ms()
        assert next_ms is not None
        assert next_ms <= harness.clock()
    run(harness, 10 * MINUTE_MS)
    assert {0: set(range(100))} == lateness(harness)
    assert not harness.broker.delivery.control.treatments.open


def test_broker_sleeps_when_the_clock_was_ahead_and_no_treatment_is_left(harness: Harness) -> None:
    treat(harness, "shift")
    schedule_overdue(harness)
    kill(harness, 60 * MINUTE_MS)
    harness.clock.advance(-60 * MINUTE_MS)
    harness.broker.delivery.control.treatments.end_all()
    next_ms = harness.broker.delivery.next_wakeup_ms()
    assert next_ms is not None
    assert next_ms > harness.clock()


def test_shift_goes_on_when_the_clock_is_set_back_a_little(harness: Harness) -> None:
    treat(harness, "shift")
    schedule_overdue(harness)
    kill(harness)
    harness.clock.advance(-MINUTE_MS)
    run(harness, 60 * MINUTE_MS)
    assert set(lateness(harness)) == {(DOWN_MS - 1_000) // 1_000}
