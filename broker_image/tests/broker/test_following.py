"""A replica's broker: transactions, logs of RocketMQ's broker, old segments, requests, and taking over."""

from __future__ import annotations

import tarfile
from pathlib import Path
from random import Random

import pytest
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.protocol.codes import ResponseCode
from delaymq.store.errors import StoreFailedError, StoreFullError
from delaymq.store.reader import StoreReader
from delaymq.store.replica.cutting import cut
from delaymq_testing.broker.followers import LEVELS, Follower, check_copies, kept_state_of, recovered, state_of
from delaymq_testing.broker.harness import Clock, FakeSession, Harness, broker_config
from delaymq_testing.broker.transactions import COMMIT, ROLLBACK, Half, Transacting
from delaymq_testing.repetitions import SEED
from delaymq_testing.store.raw_logs import log_of
from delaymq_testing.store.small_stores import GOLDEN, flush

pytestmark = pytest.mark.usefixtures("closed_stores")


def places_of(log: bytes, follower: Follower) -> list[int]:
    """Where the records of a log start, and its end."""
    follower.receive(log, len(log), Random(0))
    flush(follower.broker.store)
    starts = [record.physical_offset for record in StoreReader(follower.path / "store").records()]
    follower.close()
    return [*starts, len(log)]


def random_transactions(harness: Transacting, chance: Random, steps: int) -> None:
    halves: list[Half] = []
    for _ in range(steps):
        choice = chance.randrange(10)
        if choice < 4:
            halves.append(harness.prepare(**({"DELAY": "1"} if chance.random() < 0.4 else {})))
        elif choice < 7 and halves:
            harness.end(chance.choice(halves), chance.choice([COMMIT, COMMIT, ROLLBACK]))
        elif choice == 7:
            harness.connect()
            harness.next_round()
        elif choice == 8:
            harness.clock.advance(2_000)
            harness.broker.hand_over(harness.clock(), 100)
        else:
            harness.send("Other", b"plain")


@pytest.mark.parametrize("run", range(4))
def test_transactions_of_a_replica_are_those_of_a_start_on_the_same_log(tmp_path: Path, run: int) -> None:
    chance = Random(SEED * 100 + run)
    harness = Transacting(tmp_path / "source", transaction_check_max=chance.choice([1, 2]), message_delay_level=LEVELS)
    random_transactions(harness, chance, 80)
    log, clock = log_of(harness.broker.store), harness.clock
    starts = places_of(log, Follower(tmp_path, clock))
    follower = Follower(tmp_path, clock)
    for end in sorted(chance.sample(starts, 4)):
        follower.receive(log, end, chance)
        fresh = recovered(tmp_path, clock, log, end)
        assert state_of(follower.broker, set(starts)) == state_of(fresh.broker, set(starts))
        if chance.random() < 0.6:
            follower.snapshot()
            follower.restart(kill=True)
            assert state_of(follower.broker, set(starts)) == state_of(fresh.broker, set(starts))
        fresh.close()
    clock.advance(100_000)
    assert follower.broker.transactions.check(clock(), 100) == 0
    follower.broker.transactions.state_progress()
    fresh = recovered(tmp_path, clock, log, end)
    follower.broker.lead()
    checked = []
    for each in (follower, fresh):
        session = FakeSession()
        harness = harness_of(each)
        harness.connect(session=session)
        harness.next_round()
        checked.append([command.fields["msgId"] for command in session.notified])
    assert checked[0] == checked[1]
    assert state_of(follower.broker, set(starts))["transactions"] == state_of(fresh.broker, set(starts))["transactions"]


def harness_of(follower: Follower) -> Transacting:
    """The helpers for requests, with a replica's broker."""
    harness = Transacting.__new__(Transacting)
    harness.broker, harness.clock, harness.config = follower.broker, follower.clock, follower.config
    harness.session, harness.numbers = FakeSession(), 0
    return harness


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_log_of_the_real_broker_is_followed_like_a_start_on_it(tmp_path: Path, name: str) -> None:
    with tarfile.open(GOLDEN / f"store-{name}.tar.gz") as archive:
        archive.extractall(tmp_path / name, filter="data")
    records = list(StoreReader(tmp_path / name).records())
    end = records[-1].physical_offset + records[-1].size
    segments = sorted((tmp_path / name / "commitlog").iterdir())
    log, file_bytes = b"".join(path.read_bytes() for path in segments)[:end], segments[0].stat().st_size
    clock, chance = Clock(records[-1].store_timestamp_ms + 1_000), Random(SEED)
    starts = {record.physical_offset for record in records}
    config = {"mapped_file_size_commit_log": file_bytes, "message_delay_level": "1s 5s 10s 30s 1m 2m 3m 4m 5m"}
    follower = Follower(tmp_path, clock, **config)
    for boundary in sorted(chance.sample(sorted(starts), 8)):
        follower.receive(log, boundary, chance)
        fresh = recovered(tmp_path, clock, log, boundary, **config)
        assert state_of(follower.broker, starts) == state_of(fresh.broker, starts)
        fresh.close()
    follower.receive(log, end, chance)
    fresh = recovered(tmp_path, clock, log, end, **config)
    follower.broker.lead()
    assert state_of(follower.broker, starts) == state_of(fresh.broker, starts)
    clock.advance(3_600_000)
    for each in (follower, fresh):
        while each.broker.hand_over(clock(), 64):
            pass
    assert check_copies(follower.path / "store") == check_copies(fresh.path / "store")


def test_replica_deletes_segments_only_when_its_own_durable_log_allows_it(tmp_path: Path) -> None:
    settings = {"mapped_file_size_commit_log": 65_536, "message_delay_level": LEVELS}
    source = Harness(tmp_path / "source", **settings)
    clock = source.clock
    source.send(properties={"TIMER_DELAY_SEC": "2592000", "UNIQ_KEY": "far"})
    for number in range(12):
        source.send(body=bytes(20_000), properties={"UNIQ_KEY": f"u{number}"})
    clock.advance(4 * 86_400_000)
    follower = Follower(tmp_path, clock, **settings)
    store = follower.broker.store
    before = log_of(source.broker.store)
    follower.receive(before, len(before), Random(SEED))
    flush(store)

    def clean() -> int:
        follower.broker.delivery.pin()
        follower.broker.store.clean(clock() + (1 << 40), at_any_hour=True)
        return follower.broker.store.min_offset

    assert not follower.broker.delivery.carry(clock())
    assert clean() == 0
    source.flush()
    for _ in range(10):
        source.broker.delivery.carry(clock())
        clock.advance(20)
    log = log_of(source.broker.store)
    assert len(log) > len(before)
    store.set_replicated(store.end_offset)
    follower.receive(log, len(log), Random(SEED))
    assert clean() == 0
    flush(store)
    assert clean() == 0
    store.set_replicated(store.end_offset)
    assert clean() > 0
    clock.advance(2_592_000_000)
    follower.broker.lead()
    assert follower.broker.hand_over(clock(), 10) == 1
    assert len(check_copies(follower.path / "store")) == 1


def test_replica_refuses_requests_that_would_store_something(tmp_path: Path) -> None:
    follower = Follower(tmp_path, Clock())
    harness = harness_of(follower)
    answer = harness.send("Orders")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "replica" in answer.remark
    follower.broker.lead()
    assert harness.send("Orders").code == ResponseCode.SUCCESS
    follower.broker.lead()  # has no effect


def test_replica_raises_its_format_version_with_the_log(tmp_path: Path) -> None:
    source = Harness(tmp_path / "source")
    source.send(properties={"TIMER_DELAY_SEC": "100", "UNIQ_KEY": "timed"})
    log = log_of(source.broker.store)
    follower = Follower(tmp_path, source.clock)
    follower.receive(log, len(log), Random(SEED))
    assert follower.broker.store.format_version == source.broker.store.format_version
    assert names.TIMER_TOPIC not in follower.broker.topics.table
    follower.broker.lead()
    assert names.TIMER_TOPIC in follower.broker.topics.table


def test_version_that_a_full_disk_does_not_state_is_stated_with_the_next_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Harness(tmp_path / "source")
    source.send(properties={"TIMER_DELAY_SEC": "100", "UNIQ_KEY": "timed"})
    log = log_of(source.broker.store)
    follower = Follower(tmp_path, source.clock)

    def refuse(*_: object) -> None:
        raise StoreFullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(follower.broker.store, "raise_format_version", refuse)
        follower.receive(log, len(log), Random(SEED))
    assert (follower.broker.store.format_version, follower.broker.store.failure) == (1, None)
    follower.snapshot()
    assert follower.broker.store.format_version == source.broker.store.format_version


def test_replica_shows_messages_and_notifies_held_pulls(tmp_path: Path) -> None:
    source = Harness(tmp_path / "source")
    source.send(body=b"1")
    log = log_of(source.broker.store)
    follower = Follower(tmp_path, source.clock)
    arrived: list[int] = []
    follower.broker.watch_arrivals(lambda topic, queue, offset, *_: arrived.append(offset), {("Orders", 0)})
    follower.broker.set_replicated(0)
    follower.receive(log, len(log), Random(SEED))
    follower.broker.announce_arrivals()
    assert (arrived, follower.broker.store.queue_bounds("Orders", 0)) == ([], (0, 0))
    follower.broker.set_replicated(len(log))
    follower.broker.announce_arrivals()
    assert (arrived, follower.broker.store.queue_bounds("Orders", 0)) == ([0], (0, 1))


def test_record_that_cannot_be_applied_stops_the_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Harness(tmp_path / "source", message_delay_level=LEVELS)
    source.send(properties={"DELAY": "1"})
    first = source.broker.store.end_offset
    source.send(properties={"DELAY": "1"})
    log = log_of(source.broker.store)
    follower = Follower(tmp_path, source.clock)
    follower.receive(log, first, Random(SEED))

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(follower.broker.delivery.timeline, "add", fail)
        follower.broker.store.append_raw(first, log[first:])
    assert follower.broker.store.failure is not None
    with pytest.raises(StoreFailedError):
        follower.broker.lead()
    follower.restart(kill=False)
    assert follower.broker.delivery.pending_total() == 2


def test_stopped_replica_may_start_as_a_broker_of_its_own(tmp_path: Path) -> None:
    source = Harness(tmp_path / "source", message_delay_level=LEVELS)
    source.send(properties={"DELAY": "1"})
    log = log_of(source.broker.store)
    follower = Follower(tmp_path, source.clock)
    follower.receive(log, len(log), Random(SEED))
    follower.broker.close()
    broker = open_broker(broker_config(follower.path, message_delay_level=LEVELS), source.clock)
    source.clock.advance(1_000)
    assert broker.hand_over(source.clock(), 10) == 1
    broker.close()


@pytest.mark.parametrize("run", range(4))
def test_former_master_returns_to_what_its_replicas_have(tmp_path: Path, run: int) -> None:
    chance = Random(SEED * 100 + run)
    harness = Transacting(tmp_path / "source", transaction_check_max=2, message_delay_level=LEVELS)
    broker, clock = harness.broker, harness.clock
    random_transactions(harness, chance, 40)
    harness.flush()
    confirmed = broker.store.end_offset
    broker.set_replicated(confirmed)
    for _ in range(5):
        random_transactions(harness, chance, 8)
        clock.advance(20_000)
        harness.flush()
        broker.delivery.pin()
        broker.transactions.pin()
        broker.transactions.state_progress()
        assert broker.store.snapshot_task(force=True) is None
        for task in (broker.delivery.save_task(), broker.persist_task(clock())):
            if task is not None:
                task.run()
                task.finish()
    log, path = log_of(broker.store), Path(broker.store.path)
    if run % 2:
        broker.close()
    else:
        broker.store.abandon()
    cut(path, confirmed)
    returned = open_broker(harness.config, clock, follows=True)
    fresh = recovered(tmp_path, clock, log, confirmed)
    starts = {record.physical_offset for record in StoreReader(path).records()}
    assert returned.store.end_offset == confirmed
    assert kept_state_of(returned, starts) == kept_state_of(fresh.broker, starts)
    returned.store.abandon()
    fresh.close()
