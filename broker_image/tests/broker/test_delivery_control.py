"""Controlled deliveries: paused, spread over a time, or overdue messages dropped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random

import pytest
from delaymq.broker.delivery.control import FILE_NAME, DeliveryMode
from delaymq.message.names import MARK, MARKS_TOPIC
from delaymq.schedule import LevelQueue, PacedQueue, Settled
from delaymq.store.errors import StoreFullError
from delaymq_testing.broker.delivery_harness import START_MS, Bench


def overdue_bench(count: int = 10) -> Bench:
    """`count` messages of two levels that are overdue, and one that is not."""
    bench = Bench("1s 2s 60s")
    for number in range(count):
        bench.now_ms += 10
        bench.send(f"m{number}", 1 + number % 2)
    bench.send("later", 3)
    bench.now_ms += 10_000
    return bench


def bodies(bench: Bench, topic: str = "orders") -> list[str]:
    return [record.body.decode() for record in bench.store.records() if record.topic == topic]


def test_nothing_is_delivered_while_paused_even_after_a_restart() -> None:
    bench = overdue_bench()
    bench.delivery.control.pause()
    assert bench.delivery.next_wakeup_ms() is None
    bench.hand_over()
    assert bodies(bench) == []
    bench.kill()
    bench.start()
    bench.hand_over()
    assert bodies(bench) == []
    held = bench.delivery.status()["held"]
    assert isinstance(held, dict)
    assert (held["mode"], held["overdue"]) == ("paused", 10)
    bench.delivery.control.resume()
    bench.hand_over()
    assert len(bodies(bench)) == 10
    assert bench.delivery.status()["held"] is None
    assert FILE_NAME not in bench.files


def test_unreadable_file_pauses_all_deliveries() -> None:
    bench = overdue_bench()
    bench.kill()
    bench.files[FILE_NAME] = b'{"mode":"deliv'
    bench.start()
    bench.hand_over()
    assert bodies(bench) == []
    assert bench.delivery.control.policy is not None
    assert bench.delivery.control.policy.mode is DeliveryMode.PAUSED


def test_spread_keeps_due_order_over_its_time_and_does_not_delay_newer_messages() -> None:
    bench = overdue_bench()
    bench.delivery.control.spread(10_000)
    began_ms = bench.now_ms
    seen_ms: dict[str, int] = {}
    bench.send("new", 1)
    for _ in range(101):
        bench.hand_over()
        for body in bodies(bench):
            seen_ms.setdefault(body, bench.now_ms - began_ms)
        bench.now_ms += 100
    assert seen_ms.pop("new") == 1_000
    # The level of one second is due first, and of equal ones the earlier entry.
    dues = sorted(range(10), key=lambda number: (number * 10 + 1_000 * (1 + number % 2), number))
    assert list(seen_ms) == [f"m{number}" for number in dues]
    assert list(seen_ms.values()) == [1_000 * place for place in range(10)]
    assert bench.delivery.status()["held"] is None


def test_restart_during_a_spread_uses_the_remaining_time() -> None:
    bench = overdue_bench()
    bench.delivery.control.spread(10_000)
    began_ms = bench.now_ms
    bench.now_ms += 4_500
    bench.hand_over()
    assert len(bodies(bench)) == 5
    bench.kill()
    bench.start()
    bench.hand_over()
    assert len(bodies(bench)) == 6
    assert json.loads(bench.files[FILE_NAME])["untilMs"] == began_ms + 10_000
    bench.now_ms = began_ms + 10_000
    bench.hand_over()
    assert sorted(bodies(bench)) == sorted(f"m{number}" for number in range(10))


def test_unstarted_spread_begins_with_the_first_start() -> None:
    bench = overdue_bench()
    bench.kill()
    content = {"mode": "spread", "sinceMs": START_MS, "upToMs": None, "overMs": 1_000, "untilMs": None}
    bench.files[FILE_NAME] = json.dumps(content).encode()
    bench.now_ms += 3_600_000
    bench.start()
    kept = json.loads(bench.files[FILE_NAME])
    assert (kept["upToMs"], kept["untilMs"]) == (bench.now_ms, bench.now_ms + 1_000)
    bench.hand_over()
    assert len(bodies(bench)) == 1
    bench.now_ms += 1_000
    bench.hand_over()
    assert len(bodies(bench)) == 11


def test_rejected_appends_stay_in_the_spread() -> None:
    bench = overdue_bench()
    bench.delivery.control.spread(1_000)
    bench.store.refuse = lambda message: StoreFullError("full")
    bench.now_ms += 550
    bench.hand_over()
    bench.store.refuse = lambda message: None
    bench.now_ms += 200
    bench.hand_over()
    assert len(bodies(bench)) == 8
    bench.now_ms += 1_000
    bench.hand_over()
    assert sorted(bodies(bench)) == sorted(f"m{number}" for number in range(10))


def test_pause_during_a_spread_loses_nothing() -> None:
    bench = overdue_bench()
    bench.delivery.control.spread(10_000)
    bench.now_ms += 2_000
    bench.hand_over()
    bench.delivery.control.pause()
    assert bench.delivery.control.overdue(bench.now_ms) == 7
    bench.delivery.control.resume()
    bench.hand_over()
    assert sorted(bodies(bench)) == sorted(f"m{number}" for number in range(10))


@pytest.mark.parametrize("ending", ["kill", "stop", "power"])
def test_dropped_messages_are_settled_by_marks_permanently(ending: str) -> None:
    bench = overdue_bench()
    bench.delivery.control.drop(bench.now_ms)
    bench.hand_over()
    marks = [record for record in bench.store.records() if record.topic == MARKS_TOPIC]
    assert sorted(record.body.decode() for record in marks) == sorted(f"m{number}" for number in range(10))
    assert {record.properties[MARK].split(":")[0] for record in marks} == {"dropped"}
    assert bench.delivery.counters.refused == 10
    assert bench.delivery.status()["held"] is None
    bench.store.flush()
    {"kill": bench.kill, "stop": bench.stop, "power": bench.lose_power}[ending]()
    bench.start()
    bench.hand_over()
    assert bodies(bench) == []
    assert bench.delivery.pending() == {1: 0, 2: 0, 3: 1}
    assert bench.delivery.counters.disbelieved == 0
    bench.now_ms += 60_000
    bench.hand_over()
    assert bodies(bench) == ["later"]


def test_kill_during_a_drop_continues_it_and_delivers_nothing() -> None:
    bench = overdue_bench()
    bench.delivery.control.drop(bench.now_ms)
    assert bench.delivery.hand_over(bench.now_ms, 4) == 4
    bench.kill()
    bench.start()
    bench.send("new", 1)
    bench.now_ms += 2_000
    bench.hand_over()
    assert bodies(bench) == ["new"]
    assert len(bodies(bench, MARKS_TOPIC)) == 10


def test_messages_due_after_the_cutoff_are_delivered() -> None:
    bench = overdue_bench()
    bench.delivery.control.drop(bench.now_ms - 8_950)
    bench.hand_over()
    dropped = len(bodies(bench, MARKS_TOPIC))
    assert 0 < dropped < 10
    assert dropped + len(bodies(bench)) == 10


def test_spread_delivers_nothing_twice_after_returned_entries() -> None:
    spread = PacedQueue([queue_of(range(100))], 99, 1_000, 2_000)
    taken = spread.take(1_500, 30)
    spread.give_back(taken[10:])
    rest = spread.take(1_495, 100)
    assert [entry[2] for entry in taken[:10] + rest] == list(range(50))
    assert spread.left == 50
    spread.give_back(rest[-2:])
    runs, returned = spread.rest()
    assert [offset for _, run in runs for _, offset in run.pairs()] == list(range(50, 100))
    assert [entry[2] for entry in returned] == [48, 49]
    assert (spread.left, spread.next_due_ms()) == (0, None)


def queue_of(dues: Iterable[int]) -> LevelQueue:
    queue = LevelQueue(3, Settled())
    for offset, due_ms in enumerate(dues):
        queue.add(offset, due_ms)
    return queue


@pytest.mark.parametrize("seed", range(8))
def test_spread_takes_all_overdue_entries_and_returns_the_rest(seed: int) -> None:
    random = Random(seed)
    dues = sorted(random.choices(range(1_000), k=300))
    for _ in range(random.choice((0, 3, 150))):
        dues.insert(random.randrange(300), random.randrange(1_000))
    queue = queue_of(dues)
    for offset in random.sample(range(len(dues)), 40):
        queue.settled.settle(offset)
    waits = {(due, offset) for offset, due in enumerate(dues) if offset not in queue.settled}
    overdue = {pair for pair in waits if pair[0] <= 600}
    assert queue.due_count(600) == len(overdue)
    spread = PacedQueue([queue], 600, 1_000, 2_000)
    assert (spread.left, queue.due_count(600)) == (len(overdue), 0)
    assert [entry[::2] for entry in spread.entries()] == sorted(overdue)
    half = spread.take(1_499, 1_000)
    assert [entry[::2] for entry in half] == sorted(overdue)[: len(half)]
    assert abs(len(half) - len(overdue) / 2) <= 1
    for entry in half:
        queue.settled.settle(entry[2])
    queue.add(len(dues), 5)
    runs, _ = spread.rest()
    for _, run in runs:
        queue.put_back(run)
    rest = queue.take(2_000, 1_000)
    assert [entry[::2] for entry in rest] == sorted((waits - {entry[::2] for entry in half}) | {(5, len(dues))})


def test_entries_settled_during_a_spread_are_not_delivered_and_it_ends() -> None:
    queue = queue_of(range(100))
    spread = PacedQueue([queue], 99, 1_000, 2_000)
    for offset in range(90, 100):
        queue.settled.settle(offset)
    assert len(spread.take(2_000, 1_000)) == 90
    assert (spread.left, spread.next_due_ms()) == (0, None)


def test_pause_with_an_undeletable_file_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = overdue_bench()
    bench.delivery.control.pause()

    def refuse(name: str) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(bench.store.own_files, "remove", refuse)
    with pytest.raises(OSError, match="no"):
        bench.delivery.control.resume()
    bench.hand_over()
    assert bodies(bench) == []
    assert bench.delivery.control.policy is not None
