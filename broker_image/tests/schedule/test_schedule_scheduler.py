from __future__ import annotations

from delaymq.schedule import Backoff, Entry, Lane, RetryQueue, Scheduler
from hypothesis import given
from hypothesis import strategies as st


class UserSource:
    """Source of entries in one queue, with ascending due times."""

    lane = Lane.USERS

    def __init__(self, queue_id: int, dues: list[int]) -> None:
        self._entries = [(due_ms, queue_id, offset, 0) for offset, due_ms in enumerate(dues)]

    def next_due_ms(self) -> int | None:
        return self._entries[0][0] if self._entries else None

    def take(self, now_ms: int, count: int) -> list[Entry]:
        due = sum(entry[0] <= now_ms for entry in self._entries[:count])
        taken, self._entries = self._entries[:due], self._entries[due:]
        return taken


class SystemSource:
    lane = Lane.SYSTEM

    def __init__(self, count: int) -> None:
        self.left = count

    def next_due_ms(self) -> int | None:
        return 0 if self.left else None

    def take(self, now_ms: int, count: int) -> list[Entry]:
        taken = min(self.left, count)
        self.left -= taken
        return [(0, -1, 0, 0)] * taken


def taken_by_queue(batches: list[list[Entry]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for batch in batches:
        for entry in batch:
            counts[entry[1]] = counts.get(entry[1], 0) + 1
    return counts


def test_next_wakeup_is_the_earliest_of_all_sources() -> None:
    scheduler = Scheduler()
    assert scheduler.next_wakeup_ms() is None
    scheduler.add(UserSource(0, [500]))
    scheduler.add(UserSource(1, [300, 900]))
    assert scheduler.next_wakeup_ms() == 300
    assert scheduler.due(299, 10) == []
    assert scheduler.due(300, 10) == [[(300, 1, 0, 0)]]
    assert scheduler.next_wakeup_ms() == 500


def test_busy_queues_share_the_budget() -> None:
    scheduler = Scheduler()
    for queue_id in range(4):
        scheduler.add(UserSource(queue_id, [1] * 1_000))
    assert taken_by_queue(scheduler.due(5, 100)) == {0: 25, 1: 25, 2: 25, 3: 25}


def test_unused_budget_of_a_queue_goes_to_others() -> None:
    scheduler = Scheduler()
    scheduler.add(UserSource(0, [1] * 3))
    scheduler.add(UserSource(1, [1] * 1_000))
    assert taken_by_queue(scheduler.due(5, 100)) == {0: 3, 1: 97}


def test_budget_smaller_than_the_number_of_queues_rotates() -> None:
    scheduler = Scheduler()
    for queue_id in range(5):
        scheduler.add(UserSource(queue_id, [1] * 10))
    seen: dict[int, int] = {}
    for _ in range(5):
        for queue_id, count in taken_by_queue(scheduler.due(5, 2)).items():
            seen[queue_id] = seen.get(queue_id, 0) + count
    assert set(seen) == set(range(5))


def test_users_retries_and_system_do_not_starve_each_other() -> None:
    scheduler = Scheduler()
    for queue_id in range(18):
        scheduler.add(UserSource(queue_id, [1] * 1_000))
    retries = RetryQueue(Backoff(first_ms=1))
    for offset in range(1_000):
        retries.add_failed((1, 50, offset, 0), 0)
    scheduler.add(retries)
    scheduler.add(SystemSource(1_000))
    counts = taken_by_queue(scheduler.due(5, 300))
    assert counts[50] == 100
    assert counts[-1] == 100
    assert sum(counts[queue_id] for queue_id in range(18)) == 100


@given(
    st.lists(st.lists(st.integers(0, 50), max_size=60), max_size=6),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), max_size=12),
)
def test_every_due_entry_is_returned_once_and_never_early(
    queues: list[list[int]], steps: list[tuple[int, int]]
) -> None:
    scheduler = Scheduler()
    for queue_id, dues in enumerate(queues):
        scheduler.add(UserSource(queue_id, sorted(dues)))
    left = {(due, queue_id, at) for queue_id, dues in enumerate(queues) for at, due in enumerate(sorted(dues))}
    for now_ms, budget in [*steps, (60, 1_000)]:
        assert scheduler.next_wakeup_ms() == min((due for due, _, _ in left), default=None)
        due = {entry for entry in left if entry[0] <= now_ms}
        taken = [entry[:3] for batch in scheduler.due(now_ms, budget) for entry in batch]
        assert len(taken) == min(budget, len(due))
        assert set(taken) <= due
        assert len(set(taken)) == len(taken)
        left -= set(taken)
    assert not left


def test_failed_entry_backs_off_exponentially_up_to_the_limit() -> None:
    backoff = Backoff(first_ms=100, longest_ms=1_000)
    assert [backoff.wait_ms(failures) for failures in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]
    assert backoff.wait_ms(10_000) == 1_000


def test_failed_entry_keeps_its_due_time_and_failure_count() -> None:
    retries = RetryQueue(Backoff(first_ms=100))
    assert retries.add_failed((40, 0, 7, 0), 1_000) == 100
    assert retries.next_due_ms() == 1_100
    assert retries.take(1_099, 5) == []
    (entry,) = retries.take(1_100, 5)
    assert entry == (40, 0, 7, 1)
    assert retries.add_failed(entry, 1_100) == 200
    retries.give_back((40, 0, 8, 1), 1_100)
    assert retries.take(1_100, 5) == [(40, 0, 8, 1)]
    assert list(retries.entries()) == [(40, 0, 7, 2)]


def test_excess_failed_entries_wait_longest_and_none_is_lost() -> None:
    retries = RetryQueue(Backoff(first_ms=100, longest_ms=1_000), max_objects=3)
    count = 40_000
    for offset in range(count):
        assert retries.add_failed((40, 5, offset, 0), 2_000) == (100 if offset < 3 else 1_000)
    assert retries.next_due_ms() == 2_100
    assert {entry[:3] for entry in retries.entries()} == {(40, 5, offset) for offset in range(count)}
    assert [entry[2] for entry in retries.take(2_999, 100)] == [0, 1, 2]
    assert retries.next_due_ms() == 3_000
    assert retries.take(2_999, 100) == []
    taken: list[int] = []
    while batch := retries.take(3_000, 1_000):
        assert all(failures > 0 for *_, failures in batch)
        taken += [entry[2] for entry in batch]
    assert taken == list(range(3, count))
    assert retries.next_due_ms() is None
    assert list(retries.entries()) == []
