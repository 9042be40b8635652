"""Schedules of faults of processes, networks, disks and the register, each member in its own network namespace."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from delaymq_operator_testing.api_server import Programs
from delaymq_testing.repetitions import SEED
from replication.faults import FAULTS, FAULTS_WITHOUT_WAITING, KILL_AHEAD, SLOW_DISK
from replication.history_load import Mix
from replication.members import NAMES
from replication.relay import NONE, Disturbance
from replication.schedules import Schedule, run
from replication.slow_disk import unavailable

IN_CI, FAULTS_IN_CI, FAULTS_LONG = 3, 2, 3
SCHEDULES_LONG, WITHOUT_WAITING_LONG, CLOCKS_LONG = 27, 4, 2
LONG_S = (3.0, 12.0)
HOUR_MS = 3_600_000
SLOW_DISK_GAP_S = 6.0
"""The master removes a replica that lags for 2 s, by a write to the register."""
DISTURBED = Disturbance(delay_s=0.02, jitter_s=0.1, reordered=0.1, repeated=0.1, lost=0.01)
pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("namespaces")]


def schedule(number: int) -> Schedule:
    """Return a schedule of the seed. Successive ones contain all kinds of faults in turn."""
    kinds = list(FAULTS)
    random.Random(f"{SEED}").shuffle(kinds)
    is_long = number >= IN_CI
    count = FAULTS_LONG if is_long else FAULTS_IN_CI
    faults = [kinds[(number * count + index) % len(kinds)] for index in range(count)]
    return Schedule(
        seed=f"{SEED} {number}",
        faults=faults,
        long_s=LONG_S if is_long else (2.3, 3.5),
        mix=Mix(delays_ms=(300, 6_000 if is_long else 3_000), reads_replicas=True),
        settings={"slaveReadEnable": "true"},
        background=DISTURBED if is_long and number % 2 else NONE,
    )


@pytest.mark.parametrize(
    "number", [*range(IN_CI), *(pytest.param(IN_CI + n, marks=pytest.mark.long) for n in range(SCHEDULES_LONG))]
)
def test_faults_lose_repeat_and_hasten_nothing(kubernetes_programs: Programs, tmp_path: Path, number: int) -> None:
    found = run(schedule(number), kubernetes_programs.etcd, tmp_path)
    print(f"schedule {number}: {found.text()}")
    assert not found.verdict.breaches, found.text()
    assert not found.differing
    assert found.verdict.counts["done sends"] > 100, found.text()


@pytest.mark.long
@pytest.mark.parametrize("number", range(WITHOUT_WAITING_LONG))
def test_without_waiting_only_what_no_replica_had_is_lost(
    kubernetes_programs: Programs, tmp_path: Path, number: int
) -> None:
    chance = random.Random(f"{SEED} {number}")
    faults = [KILL_AHEAD, chance.choice(list(FAULTS_WITHOUT_WAITING)), KILL_AHEAD]
    settings = {"brokerRole": "ASYNC_MASTER", "replicaLeaseMs": "3000"}
    plan = Schedule(seed=f"{SEED} {number}", faults=faults, long_s=LONG_S, settings=settings)
    found = run(plan, kubernetes_programs.etcd, tmp_path)
    print(f"without waiting {number}: {found.text()}")
    assert not found.verdict.breaches, found.text()
    assert not found.differing
    assert found.lost, "the faults did not even take place"


@pytest.mark.long
@pytest.mark.parametrize("number", range(CLOCKS_LONG))
def test_clocks_an_hour_apart_affect_only_times(kubernetes_programs: Programs, tmp_path: Path, number: int) -> None:
    # A clock that is behind would deliver what is pending an hour later. The master with it is therefore the first.
    first, *others = NAMES[number % len(NAMES) :] + NAMES[: number % len(NAMES)]
    shifts_ms = dict.fromkeys(others, HOUR_MS)
    plan = Schedule(
        seed=f"{SEED} {number}",
        faults=["kill the master", "kill a replica"],
        long_s=LONG_S,
        first_master=first,
        clock_shifts_ms=shifts_ms,
    )
    found = run(plan, kubernetes_programs.etcd, tmp_path)
    print(f"clocks {number}: {found.text()}")
    assert not found.verdict.breaches, found.text()
    assert not found.differing
    assert found.epochs > 1


@pytest.mark.long
def test_replica_with_a_slow_disk_is_removed_from_the_set(kubernetes_programs: Programs, tmp_path: Path) -> None:
    reason = unavailable()
    if reason:
        pytest.skip(reason)
    settings = {"replicaAcknowledge": "Flushed"}
    plan = Schedule(seed=f"{SEED}", faults=[SLOW_DISK], long_s=LONG_S, settings=settings)
    found = run(plan, kubernetes_programs.etcd, tmp_path)
    print(f"slow disk: {found.text()}")
    assert not found.verdict.breaches, found.text()
    assert not found.differing
    assert found.figures[0].gap_s < SLOW_DISK_GAP_S, found.text()
