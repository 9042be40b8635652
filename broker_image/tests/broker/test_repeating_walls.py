"""Matching wall-clock times of cron expressions, compared with cronsim."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice, takewhile
from random import Random

import pytest
from cronsim import CronSim
from delaymq.broker.delivery.repeating.walls import Walls
from delaymq_testing.broker.crons import drawn
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

_RARE = (
    "* * */28 2 4#5", "0 9 L * *", "15,30 0 9 LW * *", "0 9 * feb mon#1", "5 4 * * 5L", "0 0 29 2 *", "0 0 */31 2 0#4",
    "0 0 13 * 5", "0 0 */2 * 1-5", "0 0 * * 7", "0 0 29 2 1,3L", "*/7 59 23 31 12 *",
)  # fmt: skip


def _expressions() -> list[str]:
    random = Random(SEED)
    return [*_RARE, *(drawn(random, with_seconds=number % 3 == 0) for number in range(max(FUZZ_INPUTS // 200, 1)))]


@pytest.mark.parametrize("number", range(5))
def test_matches_are_those_of_cronsim(number: int) -> None:
    random = Random(f"{SEED} {number}")
    for expression in _expressions():
        walls = Walls(expression)
        time = datetime(2020, 1, 1) + timedelta(seconds=random.randrange(10 * 365 * 86_400))
        assert walls.after(time) == next(CronSim(expression, time), None), expression
        least, count = time - timedelta(days=random.choice([1, 400])), random.choice([1, 3, 50])
        matches = CronSim(expression, time + timedelta(seconds=1), reverse=True)
        last = list(islice(takewhile(lambda match, least=least: match >= least, matches), count))
        assert walls.back(time, count, least) == (last[-1] if last else None, len(last)), expression


def test_end_of_time_is_no_match() -> None:
    assert Walls("0 0 1 1 *").after(datetime(9999, 12, 31)) is None
