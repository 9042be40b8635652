"""Held pulls, with a virtual clock and scripted responses."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from delaymq.broker.requests.results import Held
from delaymq.protocol.command import Command, Response
from delaymq.server.requests.client_session import BUCKET_MS, ClientSession
from delaymq.server.requests.long_polling import (
    DROP_UNITS,
    MAX_NEWS,
    PULL_BYTES,
    RESUME_UNITS,
    SLICE_UNITS,
    HeldPulls,
)

WANTED, UNWANTED = 7, 8


class Session:
    remote_address = "10.0.0.1:5000"

    def __init__(self) -> None:
        self.held: set[object] = set()
        self.held_bytes = 0
        self.usage = None


class Queue:
    """What the broker would do: `end` is the next offset of the one queue."""

    def __init__(self) -> None:
        self.end = 5
        self.answers: list[tuple[int, int]] = []
        self.resumed = 0
        self.now_ms = 1_000_000
        self.held = HeldPulls(self.reply)
        self.session = cast(ClientSession, Session())

    def reply(self, session: ClientSession, request: Command, response: Response) -> None:
        self.answers.append((request.opaque, response.code))

    def pull(self, opaque: int, *, deadline_ms: int = 30_000, offset: int = 5, queue_id: int = 0) -> None:
        self.held.hold(self.session, Command(11, opaque), self.held_at(offset, deadline_ms, queue_id))

    def held_at(self, offset: int, deadline_ms: int, queue_id: int = 0) -> Held:
        def resume(final: bool) -> Response | Held:
            self.resumed += 1
            if self.end > offset:
                return Response(0)
            return Response(19) if final else self.held_at(offset, deadline_ms, queue_id)

        return Held("T", queue_id, offset, deadline_ms, cast(Callable[[int], bool], WANTED.__eq__), resume)

    def recheck(self) -> None:
        self.now_ms += 60_000
        self.held.recheck(self.now_ms, 5_000, 5_000)

    def store(self, tags_code: int = WANTED, queue_id: int = 0) -> None:
        self.end += 1
        self.held.arrived("T", queue_id, self.end - 1, tags_code)


@pytest.fixture
def queue() -> Queue:
    return Queue()


def empty(queue: Queue) -> bool:
    tables: list[dict[Any, Any]] = [queue.held._by_queue, queue.held._by_deadline]
    return len(queue.held) == 0 and tables == [{}, {}] and not queue.session.held


def test_matching_message_wakes_the_pull_immediately(queue: Queue) -> None:
    queue.pull(1)
    assert queue.answers == []
    queue.store()
    assert queue.answers == [(1, 0)]
    assert empty(queue)


def test_other_messages_cost_nothing(queue: Queue) -> None:
    queue.pull(1)
    queue.store(UNWANTED)
    queue.store(queue_id=3)
    queue.held.arrived("other", 0, 9, WANTED)
    queue.held.arrived("T", 0, 4, WANTED)
    assert (queue.answers, queue.resumed) == ([], 0)


def test_one_message_wakes_every_pull_of_its_queue(queue: Queue) -> None:
    for opaque in range(10):
        queue.pull(opaque)
    queue.pull(99, queue_id=1)
    queue.store()
    assert sorted(queue.answers) == [(opaque, 0) for opaque in range(10)]
    assert len(queue.held) == 1


def test_pull_is_answered_at_its_deadline(queue: Queue) -> None:
    queue.pull(1, deadline_ms=10_000)
    queue.pull(2, deadline_ms=20_000)
    queue.held.expire(9_999)
    assert queue.answers == []
    queue.held.expire(10_000 + BUCKET_MS)
    assert queue.answers == [(1, 19)]
    queue.held.expire(20_000 + BUCKET_MS)
    assert queue.answers == [(1, 19), (2, 19)]
    assert empty(queue)


def test_recheck_finds_missed_arrivals(queue: Queue) -> None:
    queue.pull(1)
    queue.recheck()
    assert queue.answers == []
    queue.end = 6
    queue.recheck()
    assert queue.answers == [(1, 0)]
    assert empty(queue)


def test_recheck_is_sliced_and_complete(queue: Queue) -> None:
    for opaque in range(10):
        queue.pull(opaque)
    seen = []
    for now_ms in range(10_000, 22_000, 1_000):
        before = queue.resumed
        queue.held.recheck(now_ms, 5_000, 1_000)
        seen.append(queue.resumed - before)
    assert seen == [2, 2, 2, 2, 2] * 2 + [2, 2]
    queue.end = 6
    for now_ms in range(22_000, 30_000, 1_000):
        queue.held.recheck(now_ms, 5_000, 1_000)
    assert sorted(opaque for opaque, _ in queue.answers) == list(range(10))
    assert empty(queue)


def test_pull_is_rechecked_once_per_interval(queue: Queue) -> None:
    queue.pull(1)
    for now_ms in range(10_000, 20_000, 200):
        queue.held.recheck(now_ms, 5_000, 200)
    assert queue.resumed == 2


def test_re_held_pull_keeps_its_new_deadline(queue: Queue) -> None:
    first = queue.held_at(5, 10_000)
    first.resume = lambda final: queue.held_at(5, 40_000)
    queue.held.hold(queue.session, Command(11, 1), first)
    queue.recheck()
    queue.held.expire(30_000)
    assert queue.answers == []
    queue.held.expire(41_000)
    assert queue.answers == [(1, 19)]
    assert empty(queue)


def test_closed_connection_leaves_no_pulls(queue: Queue) -> None:
    queue.pull(1)
    queue.pull(2, queue_id=4)
    queue.held.session_closed(queue.session)
    assert empty(queue)
    queue.store()
    queue.held.expire(10**9)
    assert queue.answers == []


def test_stop_leaves_pulls_to_the_connection_reset(queue: Queue) -> None:
    queue.pull(1)
    queue.pull(2, queue_id=1)
    queue.held.close()
    queue.pull(3)
    queue.store()
    assert queue.answers == []
    assert empty(queue)


def test_held_pulls_per_connection_are_limited(queue: Queue) -> None:
    queue.held.max_bytes = 8 * PULL_BYTES
    others = [cast(ClientSession, Session()) for _ in range(3)]
    for opaque in range(6):
        queue.pull(opaque)
    assert [opaque for opaque, _ in queue.answers] == [4, 5]
    for opaque in range(10, 14):
        queue.held.hold(others[0], Command(11, opaque), queue.held_at(5, 30_000))
    assert [opaque for opaque, _ in queue.answers] == [4, 5, 12, 13]
    queue.held.hold(others[1], Command(11, 20), queue.held_at(5, 30_000))
    queue.held.hold(others[2], Command(11, 30), queue.held_at(5, 30_000))
    assert len(queue.held) == 8
    assert all(code == 19 for _, code in queue.answers)
    queue.held.session_closed(queue.session)
    assert (len(queue.held), queue.held.bytes_held) == (4, 4 * PULL_BYTES)


def test_long_strings_are_counted(queue: Queue) -> None:
    queue.held.max_bytes = 4 * PULL_BYTES + 40_000
    for opaque, text in enumerate(("*" * 10_000, "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 10_000)):
        queue.held.hold(queue.session, Command(11, opaque, fields={"subscription": text}), queue.held_at(5, 30_000))
    assert queue.answers == [(1, 19)]
    assert queue.held.bytes_held == PULL_BYTES + 10_000


class Turns:
    """Stands for the event loop; counts what is done in each of its turns."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.work: list[Callable[[], None]] = []
        self.resumed: list[int] = []
        queue.held._work.soon = self.work.append

    def run(self, begin: Callable[[], None]) -> None:
        """The turn in which something happens to many pulls, and all that follow."""
        self.work.append(begin)
        while self.work:
            before = self.queue.resumed
            self.work.pop(0)()
            self.resumed.append(self.queue.resumed - before)


SLICE = SLICE_UNITS // RESUME_UNITS


@pytest.mark.parametrize("what", ["message", "deadline", "recheck"])
def test_work_on_many_pulls_is_sliced(queue: Queue, what: str) -> None:
    happens = {
        "message": queue.store,
        "deadline": lambda: queue.held.expire(10**9),
        "recheck": lambda: queue.held.recheck(10**9, 5_000, 5_000),
    }
    for opaque in range(10 * SLICE):
        queue.pull(opaque)
    if what == "recheck":
        queue.end += 1
    slices = Turns(queue)
    slices.run(happens[what])
    assert len(queue.answers) == 10 * SLICE
    assert max(slices.resumed) == SLICE
    assert len(slices.resumed) >= 10
    assert empty(queue)


def test_closed_connection_with_thousands_of_pulls_is_cleaned_in_slices(queue: Queue) -> None:
    count = 3 * SLICE_UNITS // DROP_UNITS
    for opaque in range(count):
        queue.pull(opaque)
    slices = Turns(queue)

    def ends() -> None:
        queue.held.session_closed(queue.session)
        queue.store()

    slices.run(ends)
    assert len(slices.resumed) >= 3
    assert (queue.resumed, queue.answers) == (0, [])
    assert (empty(queue), queue.held.bytes_held, queue.session.held_bytes) == (True, 0, 0)


def test_messages_arriving_during_a_walk_are_not_missed(queue: Queue) -> None:
    for opaque in range(4 * SLICE):
        queue.pull(opaque, offset=5 if opaque % 2 else 6)
    slices = Turns(queue)
    slices.work.append(queue.store)
    slices.work.append(queue.store)
    slices.run(lambda: queue.store(UNWANTED))
    assert len(queue.answers) == 4 * SLICE
    assert empty(queue)


def test_every_pull_runs_again_after_an_overflow_of_arrivals(queue: Queue) -> None:
    count = SLICE_UNITS + 1
    for opaque in range(count):
        queue.pull(opaque, offset=1_000)
    slices = Turns(queue)

    def flood() -> None:
        for _ in range(2 * MAX_NEWS):
            queue.store(UNWANTED)

    slices.run(flood)
    assert queue.resumed == count
    assert max(slices.resumed) <= SLICE
    assert queue.answers == []
    queue.end = 1_001
    slices.run(lambda: queue.held.arrived("T", 0, 1_000, WANTED))
    assert len(queue.answers) == count


def test_expensive_filter_does_not_delay_the_send(queue: Queue) -> None:
    tried = 0

    def costly(properties: bytes) -> bool:
        nonlocal tried
        tried += 1
        return False

    for opaque in range(100):
        held = queue.held_at(5, 30_000)
        held.properties, held.cost = costly, 128
        queue.held.hold(queue.session, Command(11, opaque), held)
    slices = Turns(queue)
    before = 0
    seen: list[int] = []

    def note() -> None:
        nonlocal before
        seen.append(tried - before)
        before = tried

    def noted(function: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            function()
            note()

        return run

    queue.held._work.soon = lambda function: slices.work.append(noted(function))
    slices.run(noted(lambda: queue.held.arrived("T", 0, 5, WANTED, b"")))
    assert tried == 100
    assert max(seen) <= SLICE_UNITS // 130 + 1


def test_pull_filtering_properties_is_resumed_only_by_those(queue: Queue) -> None:
    def hold(opaque: int, queue_id: int) -> None:
        held = queue.held_at(5, 30_000, queue_id)
        held.properties = b"price\x012".__eq__
        queue.held.hold(queue.session, Command(11, opaque), held)

    hold(1, 0)
    hold(2, 1)
    queue.pull(3, queue_id=2)
    assert set(queue.held.property_queues) == {("T", 0), ("T", 1)}
    queue.held.arrived("T", 0, 5, WANTED, b"price\x011")
    assert queue.answers == []
    queue.end += 1
    queue.held.arrived("T", 0, 5, WANTED, b"price\x012")
    # Where nobody knew the properties when the message came, the pull itself finds out.
    queue.held.arrived("T", 1, 5, WANTED)
    assert [opaque for opaque, _ in queue.answers] == [1, 2]
    assert set(queue.held.property_queues) == set()
