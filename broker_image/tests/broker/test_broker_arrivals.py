"""Arrivals are announced once they are confirmed, message by message, and runs without a held pull are skipped."""

from __future__ import annotations

from collections.abc import Iterable

from delaymq.broker.pull.arrival_notifier import ArrivalNotifier
from delaymq.store.consume_queue import ENTRY
from delaymq.store.plain_runs import PlainRun

Seen = list[tuple[str, int, int, int, bytes | None]]


def run_of(topic: str, first: int, offsets: Iterable[int]) -> PlainRun:
    """A run of messages of 100 bytes, whose tags code is their physical offset."""
    places = [*offsets]
    entries = b"".join(ENTRY.pack(offset, 100, offset) for offset in places)
    return PlainRun(topic, 0, first, places[0], 0, len(places), b"", entries, b"", "")


def watching() -> tuple[ArrivalNotifier, Seen]:
    notifier, seen = ArrivalNotifier(), Seen()
    notifier.on_arrival = lambda *arrival: seen.append(arrival)
    return notifier, seen


def test_messages_of_a_run_are_announced_as_they_are_confirmed() -> None:
    notifier, seen = watching()
    notifier.dispatch_run(run_of("Orders", 7, [0, 300, 400]))
    notifier.dispatch_run(run_of("Bills", 1, [100, 200]))
    notifier.announce(99)
    assert seen == []
    notifier.announce(399)
    assert seen == [("Orders", 0, 7, 0, None)]
    notifier.announce(400)
    assert seen[1:] == [("Orders", 0, 8, 300, None)]
    notifier.announce(500)
    assert seen[2:] == [("Orders", 0, 9, 400, None), ("Bills", 0, 1, 100, None), ("Bills", 0, 2, 200, None)]
    assert not notifier.waiting


def test_runs_of_queues_without_a_held_pull_are_skipped_when_they_are_announced() -> None:
    notifier, seen = watching()
    held: set[tuple[str, int]] = set()
    notifier.held = held
    notifier.dispatch_run(run_of("Orders", 0, [0]))
    notifier.announce(100)
    notifier.dispatch_run(run_of("Orders", 1, [100, 200, 300]))
    notifier.announce(350)
    assert seen == []
    held.add(("Orders", 0))
    notifier.announce(400)
    assert seen == [("Orders", 0, 3, 300, None)]
    assert not notifier.waiting


def test_nothing_is_kept_for_a_listener_that_has_gone() -> None:
    notifier, seen = watching()
    notifier.dispatch_run(run_of("Orders", 0, [0, 100]))
    notifier.on_arrival = None
    notifier.announce(200)
    assert (seen, len(notifier.waiting)) == ([], 0)
