"""Rates at which due messages of topics are delivered."""

from __future__ import annotations

import pytest
from delaymq.api_types.delay_settings import LatenessObjective
from delaymq.broker.delivery.settings.promises import ObjectiveCounts
from delaymq.message import names
from delaymq_testing.broker.changing import Open, records, schedule, send
from delaymq_testing.broker.harness import Harness
from delaymq_testing.broker.smoothing import delivered, limit, run


@pytest.mark.parametrize("properties", [{"TIMER_DELAY_MS": "1000"}, {"DELAY": "1"}])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_rate_applies_to_all_kinds_of_delays_and_after_a_restart(
    open_harness: Open, properties: dict[str, str], is_restarted: bool
) -> None:
    harness = open_harness(message_delay_level="1s 1h")
    limit(harness, max_per_second=10)
    for number in range(100):
        send(harness, str(number), **properties)
        send(harness, str(number), topic="Bills", **properties)
    if is_restarted:
        harness.restart()
    begin_ms = harness.clock() + 1_000
    run(harness, 60_000)
    times = delivered(harness)
    assert len(times) == 100
    assert begin_ms + 9_500 <= max(times) <= begin_ms + 10_100
    assert all(sum(first <= time < first + 1_000 for time in times) <= 11 for first in times)
    assert set(delivered(harness, "Bills")) == {begin_ms}


def test_rate_that_is_set_or_removed_applies_to_messages_that_are_due_already(harness: Harness) -> None:
    for number in range(100):
        schedule(harness, str(number), TIMER_DELAY_MS="1000")
    limit(harness, max_per_second=1)
    run(harness, 10_900)
    assert len(delivered(harness)) == 10
    limit(harness, max_per_second=10)
    run(harness, 1_000)
    assert 20 <= len(delivered(harness)) <= 22
    woken: list[bool] = []
    harness.broker.delivery.on_wakeup_earlier = lambda: woken.append(True)
    limit(harness)
    assert woken
    run(harness, 0)
    assert len(delivered(harness)) == 100


def test_smoothed_messages_count_as_late_and_arrive_in_order(harness: Harness) -> None:
    limit(harness, spread_over_ms=10_000, lateness_objective=LatenessObjective(within_ms=5_000, percent=99))
    for number in range(100):
        schedule(harness, str(number), TIMER_DELAY_MS="1000")
    run(harness, 60_000)
    assert [int(record.body) for record in records(harness, "Orders")] == list(range(100))
    counts = harness.broker.delivery.promises.counts()["Orders"]
    assert counts.messages == 100
    assert 45 <= counts.late <= 55
    assert ObjectiveCounts(100, counts.late) == counts


def test_retries_of_consumers_are_not_smoothed(open_harness: Open) -> None:
    harness = open_harness(message_delay_level="1s 1h")
    limit(harness, max_per_second=1)
    retries = names.RETRY_PREFIX + "readers"
    for number in range(20):
        send(harness, str(number), topic=retries, DELAY="1")
    run(harness, 1_000)
    assert len(delivered(harness, retries)) == 20


def test_messages_that_are_dropped_on_request_do_not_wait_for_the_rate(harness: Harness) -> None:
    limit(harness, max_per_second=1)
    for number in range(100):
        schedule(harness, str(number), TIMER_DELAY_MS="1000")
    schedule(harness, "later", TIMER_DELAY_MS="20000")
    harness.broker.delivery.control.pause()
    harness.clock.advance(10_000)
    harness.broker.delivery.control.drop(harness.clock())
    run(harness, 0)
    assert harness.broker.delivery.counters.refused == 100
    assert harness.broker.delivery.control.policy is None
    run(harness, 10_000)
    assert len(delivered(harness)) == 1


def test_messages_that_are_spread_on_request_do_not_exceed_the_rate(harness: Harness) -> None:
    limit(harness, max_per_second=1)
    for number in range(20):
        schedule(harness, str(number), TIMER_DELAY_MS="1000")
        schedule(harness, str(number), topic="Bills", TIMER_DELAY_MS="1000")
    harness.clock.advance(10_000)
    begin_ms = harness.clock()
    harness.broker.delivery.control.spread(5_000)
    run(harness, 60_000)
    assert max(delivered(harness)) >= begin_ms + 19_000
    assert begin_ms + 4_000 <= max(delivered(harness, "Bills")) <= begin_ms + 5_000
