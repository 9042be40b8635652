"""Controlled deliveries: paused, spread over a time, or overdue messages dropped."""

from __future__ import annotations

import json

import pytest
from delaymq.broker.delivery.changes.changes import BROKER
from delaymq.broker.delivery.changes.requests import Action, ChangeRequest, perform
from delaymq.broker.delivery.control import FILE_NAME, DeliveryMode
from delaymq.message.names import MARK, MARKS_TOPIC
from delaymq.schedule.timeline.rates import Smoothing
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


# Overdue messages of paused topics and groups.


def change(bench: Bench, action: Action, group: str | None = "g") -> None:
    perform(bench.delivery, ChangeRequest(action=action, topic="orders", group=group), BROKER)


def settle(bench: Bench) -> None:
    while bench.delivery.hand_over(bench.now_ms, 64):
        pass


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("group", ["g", None])
def test_drop_applies_to_paused_messages_when_they_are_resumed(group: str | None, restart: bool) -> None:
    bench = Bench()
    bench.send_timed("paused", START_MS + 1_000, DELAY_GROUP="g")
    bench.send_timed("other", START_MS + 1_000, topic="others")
    change(bench, Action.PAUSE, group)
    bench.now_ms += 5_000
    bench.delivery.control.drop(bench.now_ms)
    bench.send_timed("new", bench.now_ms + 1, DELAY_GROUP="g")
    settle(bench)
    if restart:
        bench.take_snapshot()
        bench.kill()
        bench.start()
    bench.now_ms += 60_000
    settle(bench)
    assert bench.delivery.status()["held"] is not None
    change(bench, Action.RESUME, group)
    settle(bench)
    assert bodies(bench) == ["new"]
    assert bodies(bench, MARKS_TOPIC).count("paused") == 1
    assert (bench.delivery.status()["held"], bench.delivery.pending_total()) == (None, 0)


@pytest.mark.parametrize("group", ["g", None])
@pytest.mark.parametrize("resumed_after_ms", [2_000, 60_000])
def test_spread_applies_to_paused_messages_when_they_are_resumed(group: str | None, resumed_after_ms: int) -> None:
    bench = Bench()
    for number in range(10):
        bench.send_timed(f"m{number}", START_MS + 1_000 + number, DELAY_GROUP="g")
    change(bench, Action.PAUSE, group)
    bench.now_ms += 5_000
    bench.delivery.control.spread(10_000)
    bench.hand_over()
    bench.now_ms += resumed_after_ms
    bench.hand_over()
    assert bodies(bench) == []
    change(bench, Action.RESUME, group)
    span_ms = 8_000 if resumed_after_ms == 2_000 else 10_000
    delivered = []
    for _ in range(10):
        bench.hand_over()
        delivered.append(len(bodies(bench)))
        bench.now_ms += span_ms // 10
    assert delivered == list(range(1, 11))
    assert bench.delivery.status()["held"] is None


def test_drop_applies_to_messages_that_wait_because_of_the_rate_of_their_topic() -> None:
    bench = Bench()
    bench.delivery.timeline.queues.set_rate("orders", Smoothing(1))
    for number in range(3):
        bench.send_timed(f"m{number}", START_MS + 1_000)
    bench.now_ms += 5_000
    bench.delivery.control.drop(bench.now_ms)
    for _ in range(10):
        settle(bench)
        bench.now_ms += 1_000
    assert (bodies(bench), bench.delivery.pending_total(), bench.delivery.status()["held"]) == ([], 0, None)


def test_pause_with_an_undeletable_file_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = overdue_bench()
    bench.delivery.control.pause_locally()

    def refuse(name: str) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(bench.store.own_files, "remove", refuse)
    with pytest.raises(OSError, match="no"):
        bench.delivery.control.resume()
    bench.hand_over()
    assert bodies(bench) == []
    assert bench.delivery.control.policy is not None
