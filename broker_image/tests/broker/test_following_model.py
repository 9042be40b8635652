"""A replica's state at any point of a random log is that of a start on the same log, also after it has taken over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest
from delaymq.broker.delivery.recovery import Replay
from delaymq.broker.opening import open_broker
from delaymq.message.record import decode_record
from delaymq.store.errors import StoreFollowingError
from delaymq.store.reader import StoreReader
from delaymq.store.replica.cutting import cut
from delaymq_testing.broker.delivery_life import Life
from delaymq_testing.broker.followers import Follower, check_copies, kept_state_of, recovered, state_of
from delaymq_testing.broker.harness import Clock
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.schedule.timeline_index_model import SMALL
from delaymq_testing.store.small_stores import flush, message

RUNS = range(max(FUZZ_INPUTS // 2_000, 1))
"""By default, 10 logs of delayed messages."""

pytestmark = pytest.mark.usefixtures("closed_stores")


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let even a few messages be in several runs of the index."""
    monkeypatch.setattr("delaymq.broker.state.parts.Replay", partial(Replay, sizes=SMALL))


def log_of_life(seed: int, steps: int) -> tuple[bytes, int]:
    """The log of a random life of delayed messages, and the time of its end."""
    life = Life(seed)
    for _ in range(steps):
        life.step()
    return bytes(life.bench.store.log), life.bench.now_ms


def starts_in(log: bytes) -> Iterator[int]:
    position = 0
    while position < len(log):
        yield position
        position += decode_record(log, position).size
    yield position


@pytest.mark.parametrize("run", RUNS)
def test_state_of_a_replica_is_that_of_a_start_on_the_same_log(tmp_path: Path, run: int) -> None:
    chance = Random(SEED * 1_000 + run)
    log, now_ms = log_of_life(SEED * 1_000_003 + run, 150)
    starts, clock = list(starts_in(log)), Clock(now_ms)
    places, follower = set(starts), Follower(tmp_path, clock)
    for end in sorted(chance.sample(starts, min(4, len(starts)))):
        follower.receive(log, end, chance)
        fresh = recovered(tmp_path, clock, log, end)
        expected = state_of(fresh.broker, places)
        assert state_of(follower.broker, places) == expected
        fresh.close()
        if chance.random() < 0.5:
            follower.snapshot()
        if chance.random() < 0.5:
            follower.restart(kill=chance.random() < 0.7)
            assert state_of(follower.broker, places) == expected
    follower.close()


@pytest.mark.parametrize("run", RUNS)
def test_promoted_replica_delivers_what_a_start_on_the_same_log_delivers(tmp_path: Path, run: int) -> None:
    chance = Random(SEED * 1_000 + run)
    log, now_ms = log_of_life(SEED * 2_000_003 + run, 120)
    starts, clock = list(starts_in(log)), Clock(now_ms)
    end = chance.choice(starts[len(starts) // 3 :])
    follower = Follower(tmp_path, clock)
    if chance.random() < 0.5:
        follower.receive(log, chance.choice([each for each in starts if each <= end]), chance)
        follower.snapshot()
        follower.restart(kill=True)
    follower.receive(log, end, chance)
    assert follower.broker.hand_over(now_ms + 1_000_000, 100) == 0
    assert not follower.broker.delivery.carry(now_ms)
    assert follower.broker.delivery.next_wakeup_ms() is None
    with pytest.raises(StoreFollowingError):
        follower.broker.store.append(message("own"))
    assert follower.broker.store.end_offset == end
    fresh = recovered(tmp_path, clock, log, end)
    follower.broker.lead()
    assert state_of(follower.broker, set(starts)) == state_of(fresh.broker, set(starts))
    for _ in range(12):
        clock.advance(chance.choice([500, 3_000, 7_000]))
        for broker in (follower.broker, fresh.broker):
            flush(broker.store)  # copies of carried messages wait for it
            while broker.hand_over(clock(), 64) or broker.delivery.maintain():
                pass
    copies = [check_copies(each.path / "store") for each in (follower, fresh)]
    assert copies[0] == copies[1]
    pending = [each.broker.delivery.pending_total() for each in (follower, fresh)]
    assert pending[0] == pending[1]
    places = {record.physical_offset for record in StoreReader(follower.path / "store").records()}
    expected = state_of(follower.broker, places)
    follower.restart(kill=True, follows=False)
    assert state_of(follower.broker, places) == expected
    follower.close()
    fresh.close()


@pytest.mark.parametrize("run", RUNS)
def test_broker_whose_log_was_cut_is_one_that_never_had_the_tail(tmp_path: Path, run: int) -> None:
    chance = Random(SEED * 1_000 + run)
    log, now_ms = log_of_life(SEED * 3_000_003 + run, 120)
    starts, clock = list(starts_in(log)), Clock(now_ms)
    follower, at = Follower(tmp_path, clock), chance.choice(starts)
    early = chance.choice([each for each in starts if each <= at])
    follower.receive(log, early, chance)
    follower.snapshot()
    follower.broker.set_replicated(at)
    follower.receive(log, len(log), chance)
    assert follower.broker.store.snapshot_task(force=True) is None or at == len(log)
    if chance.random() < 0.5:
        follower.broker.close()
    else:
        follower.close()
    cut(follower.path / "store", at)
    follower.broker = open_broker(follower.config, clock, follows=chance.random() < 0.5)
    assert follower.broker.store.recovery.snapshot_used
    fresh = recovered(tmp_path, clock, log, at)
    assert kept_state_of(follower.broker, set(starts)) == kept_state_of(fresh.broker, set(starts))
    follower.close()
    fresh.close()
