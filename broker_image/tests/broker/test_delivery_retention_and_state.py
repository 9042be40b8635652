"""Log and state kept for pending messages, and state after a stop."""

from __future__ import annotations

import pytest
from delaymq.broker.delivery.recovery import Replay
from delaymq.broker.transactions.ledger import Ledger
from delaymq.message.levels import DelayLevels
from delaymq.store.model import Dispatched
from delaymq_testing.broker.delivery_harness import START_MS, Bench, Settings
from delaymq_testing.broker.memory_store import SEGMENT_BYTES


def segment_of(record: Dispatched) -> int:
    """Start of the segment that contains a record."""
    return record.physical_offset // SEGMENT_BYTES * SEGMENT_BYTES


def test_pin_holds_pending_messages_and_copies_that_are_not_durable() -> None:
    bench = Bench("1s 5s")
    bench.send("x")
    first = bench.send("a", 1)
    while bench.store.end_offset < first.physical_offset + 2 * SEGMENT_BYTES:
        bench.send("y")
    second = bench.send("b", 2)
    bench.store.flush()
    assert bench.delivery.pin() == segment_of(first)
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]
    for _ in range(3):
        assert bench.delivery.pin() == segment_of(first)
    bench.store.flush()
    assert bench.delivery.pin() == segment_of(second)
    bench.now_ms += 4_000
    bench.hand_over()
    bench.store.flush()
    bench.delivery.pin()
    assert bench.delivery.pin() is None


def test_pending_messages_that_the_index_lacks_are_added_from_their_queue() -> None:
    bench = Bench("1s 5s")
    for number in range(50):
        bench.send(f"m{number}", 1 + number % 2)
    index = bench.delivery.timeline
    lost = index.held_messages
    for partition in index.partitions.pending():
        lost += index.due_at(START_MS + 1_000, partition)
    for pending in lost:
        index.end(pending.due_ms, pending.identity, pending.partition)
    assert 0 < bench.delivery.pending_total() < 30
    bench.stop()
    bench.start()
    assert bench.delivery.pending() == {1: 25, 2: 25}
    bench.now_ms += 5_000
    assert sorted(bench.hand_over()) == sorted(f"m{number}" for number in range(50))
    assert bench.delivery.pending_total() == 0


def test_pending_messages_of_a_deleted_log_count_as_gone_and_not_corrupt() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    bench.store.min_offset = bench.send("b", 1).physical_offset
    bench.now_ms += 1_000
    assert bench.hand_over() == ["b"]
    assert (bench.delivery.counters.gone, bench.delivery.counters.corrupt) == (1, 0)
    assert bench.delivery.delay_offsets() == {1: 2}


def test_state_beyond_a_queues_end_does_not_settle_later_entries() -> None:
    bench = Bench("1s")
    bench.send("a", 1)
    bench.kill()
    bench.snapshot = (
        len(bench.log),
        {"schedule": {"version": 1, "queues": {"0": {"low": 0, "above": [1, 40], "foreign": []}}}},
    )
    bench.start()
    bench.send("b", 1)
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a", "b"]


def test_changed_offsets_are_written_at_intervals() -> None:
    bench = Bench("1s", Settings(flush_delay_offset_interval=10_000))
    bench.send("a", 1)
    bench.store.flush()
    bench.save()
    assert bench.files == {"delayOffset.json": b'{"offsetTable":{"1":0}}'}
    bench.now_ms += 1_000
    bench.hand_over()
    bench.store.flush()
    bench.save()
    assert bench.files["delayOffset.json"] == b'{"offsetTable":{"1":0}}'
    bench.now_ms += 9_000
    assert bench.delivery.save_task() is not None
    bench.now_ms += 10_000
    bench.save()
    assert bench.files["delayOffset.json"] == b'{"offsetTable":{"1":1}}'
    bench.now_ms += 10_000
    assert bench.delivery.save_task() is None


def test_stop_succeeds_when_offsets_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench("1s")
    bench.send("a", 1)

    def fail(name: str, data: bytes, **_: int) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(bench.store.config_files, "save", fail)
    task = bench.delivery.save_task()
    assert task is None  # nothing is flushed yet
    bench.store.flush()
    task = bench.delivery.save_task()
    assert task is not None
    task.run()
    assert isinstance(task.finish(), OSError)
    bench.delivery.close()
    assert "could not be written at shutdown and is outdated" in caplog.text


def test_stop_lists_messages_that_the_real_broker_would_repeat(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("10s")
    bench.send("old", 1)
    bench.delivery.set_levels(DelayLevels.parse("1s"))
    bench.send("new", 1)
    bench.now_ms += 1_000
    assert bench.hand_over() == ["new"]
    bench.delivery.close()
    assert "delayOffset.json states 0, but 1 entries above it are also settled (1–1)" in caplog.text


@pytest.mark.parametrize("state", [7, {}, {"version": 2, "queues": {}}, {"version": 1, "queues": {"x": {}}}])
def test_state_of_another_version_is_rejected(state: object) -> None:
    with pytest.raises(ValueError, match=r"version|queue|int"):
        Replay().restore(state)


def test_no_state_exists_before_the_log_is_read() -> None:
    with pytest.raises(RuntimeError, match="schedule has no state"):
        Replay().state()
    with pytest.raises(RuntimeError, match="transactions have no state"):
        Ledger(6_000).state()
