"""Schedules of faults of processes, networks, disks and the register, each member in its own network namespace."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from delaymq_operator_testing.api_server import Programs
from delaymq_testing.repetitions import SEED
from replication.faults import FAULTS
from replication.history_load import Mix
from replication.schedules import Schedule, run

PER_SCHEDULE = 3
IN_CI = 3
SCHEDULES_LONG = 27
pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("namespaces")]


def schedule(number: int) -> Schedule:
    """Return a schedule of the seed. Successive ones contain all kinds of faults in turn."""
    kinds = list(FAULTS)
    random.Random(f"{SEED}").shuffle(kinds)
    faults = [kinds[(number * PER_SCHEDULE + index) % len(kinds)] for index in range(PER_SCHEDULE)]
    is_long = number >= IN_CI
    return Schedule(
        seed=f"{SEED} {number}",
        faults=faults,
        long_s=(3.0, 12.0) if is_long else (2.3, 3.5),
        mix=Mix(delays_ms=(300, 6_000 if is_long else 3_000)),
    )


@pytest.mark.parametrize(
    "number", [*range(IN_CI), *(pytest.param(IN_CI + n, marks=pytest.mark.long) for n in range(SCHEDULES_LONG))]
)
def test_faults_lose_repeat_and_hasten_nothing(kubernetes_programs: Programs, tmp_path: Path, number: int) -> None:
    found = run(schedule(number), kubernetes_programs.etcd, tmp_path)
    print(f"schedule {number}: {found.text()}")
    assert not found.verdict.breaches, found.text()
    assert not found.differing
    assert found.verdict.counts["done sends"] > 300, found.text()
