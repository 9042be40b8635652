"""Group commit and its deadlines, over a log whose syncs the test controls."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from delaymq.broker.requests.results import Deferred, ReplicaWait
from delaymq.protocol.command import Command, Response, encode_response
from delaymq.server.requests import flushing
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.requests.flushing import FLUSH_BUCKETS_S, Flushing, FlushTimes
from delaymq.throttled_log import ThrottledLogger

BOUND_S = 10


class Sync:
    def __init__(self, log: "Log") -> None:
        self.log = log
        self.end = log.end_offset

    def run(self) -> None:
        self.log.syncs += 1
        self.log.threads.add(threading.get_ident())
        self.log.overlaps |= self.log.running
        self.log.running = True
        self.log.may_end.wait(BOUND_S)
        self.log.running = False

    def finish(self) -> OSError | None:
        if self.log.failures:
            self.log.failures -= 1
            return OSError(5, "Input/output error")
        self.log.flushed_offset = self.end
        return None


class Log:
    """Stands for the store."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.flushed_offset = 0
        self.replicated_offset = 0
        self.syncs = 0
        self.failures = 0
        self.failure: Exception | None = None
        self.running = False
        self.overlaps = False
        self.threads: set[int] = set()
        self.may_end = threading.Event()
        self.may_end.set()

    def flush_task(self) -> Sync | None:
        return Sync(self) if self.flushed_offset < self.end_offset else None


class Connection:
    """Counts the writes of what is sent."""

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []
        self.is_corked = False

    def cork(self) -> bool:
        is_new, self.is_corked = not self.is_corked, True
        self.writes += [[]] if is_new else []
        return is_new

    def uncork(self) -> None:
        self.is_corked = False

    def send(self, data: bytes) -> None:
        self.writes += [] if self.is_corked else [[]]
        self.writes[-1].append(data)


class Session:
    def __init__(self) -> None:
        self.connection = Connection()


class World:
    def __init__(self, interval_ms: int = 3_600_000) -> None:
        self.log = Log()
        self.answers: dict[int, int] = {}
        self.confirmed: list[int] = []
        self.sent = 0
        self.session = Session()
        self.flushing = Flushing(
            cast(Any, self.log),
            lambda: interval_ms,
            self.reply,
            lambda: self.confirmed.append(self.log.flushed_offset),
        )
        self.flushing.start()

    def reply(self, session: ClientSession, request: Command, response: Response) -> None:
        assert request.opaque not in self.answers
        self.answers[request.opaque] = response.code
        session.connection.send(b"%d" % request.opaque)

    def send(self, timeout_ms: int = 5_000, session: Session | None = None) -> int:
        self.sent += 1
        self.log.end_offset += 100
        deferred = Deferred(Response(0), self.log.end_offset, timeout_ms, Response(10))
        self.flushing.wait(cast(ClientSession, session or self.session), Command(10, self.sent), deferred)
        return self.sent

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - the scenario's time limit bounds it
            await asyncio.sleep(0.001)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario()

    asyncio.run(bounded())


def test_producers_of_one_iteration_share_a_sync() -> None:
    async def scenario() -> None:
        world = World()
        for _ in range(50):
            world.send()
        assert world.answers == {}
        await world.until(lambda: len(world.answers) == 50)
        assert set(world.answers.values()) == {0}
        assert world.log.syncs == 1
        assert world.confirmed[-1] == 5_000
        await world.flushing.stop()

    run(scenario)


def test_responses_that_stop_waiting_together_share_a_write() -> None:
    async def scenario() -> None:
        world = World()
        other = Session()
        for _ in range(3):
            world.send()
        world.send(session=other)
        requests = Command(310, 7), Command(310, 8)
        encoded = b"".join(encode_response(each, Response(0, None, {"queueId": "1"})) for each in requests)
        waiting = Deferred(Response(0), world.log.end_offset, 5_000, Response(10))
        world.flushing.wait_together(cast(Any, world.session.connection), encoded, 2, waiting)
        assert world.flushing.waiting == 6
        await world.until(lambda: world.flushing.waiting == 0)
        assert world.session.connection.writes == [[b"1", b"2", b"3", encoded]]
        assert other.connection.writes == [[b"4"]]
        assert not world.session.connection.is_corked
        world.send()
        await world.until(lambda: world.flushing.waiting == 0)
        assert world.session.connection.writes[1:] == [[b"5"]]
        await world.flushing.stop()

    run(scenario)


@pytest.mark.parametrize(("in_sync", "code"), [(2, 0), (1, 11), (0, 12)])
def test_encoded_responses_get_the_code_of_the_wait(in_sync: int, code: int) -> None:
    async def scenario() -> None:
        world = World()
        world.flushing.in_sync = in_sync
        fields = {"msgId": "0A", "queueOffset": "5"}
        requests = [Command(310, 2**31 - 1), Command(310, 8)]
        encoded = b"".join(encode_response(each, Response(0, None, fields)) for each in requests)
        replicas = ReplicaWait(5_000 if in_sync else 1, Response(12), Response(11))
        world.log.end_offset = 300
        waiting = Deferred(Response(0), 300, 5_000, Response(10), replicas, waits_for_flush=False)
        world.flushing.wait_together(cast(Any, world.session.connection), encoded, 2, waiting)
        if in_sync:
            world.log.replicated_offset = 300
            world.flushing.replicated()
        await world.until(lambda: bool(world.session.connection.writes))
        expected = b"".join(encode_response(each, Response(code, None, fields)) for each in requests)
        assert world.session.connection.writes == [[expected]]
        await world.flushing.stop()

    run(scenario)


def test_requests_during_a_sync_share_the_next_one() -> None:
    async def scenario() -> None:
        world = World()
        world.log.may_end.clear()
        world.send()
        await world.until(lambda: world.log.running)
        for _ in range(30):
            world.send()
            await asyncio.sleep(0)
        world.log.may_end.set()
        await world.until(lambda: len(world.answers) == 31)
        assert world.log.syncs == 2
        assert not world.log.overlaps
        assert threading.get_ident() not in world.log.threads
        await world.flushing.stop()

    run(scenario)


def test_durable_data_is_answered_immediately() -> None:
    async def scenario() -> None:
        world = World()
        world.log.end_offset = world.log.flushed_offset = 500
        deferred = Deferred(Response(0), 400, 5_000, Response(10))
        world.flushing.wait(cast(ClientSession, world.session), Command(10, 1), deferred)
        assert world.answers == {1: 0}
        await world.flushing.stop()

    run(scenario)


def test_overdue_sync_is_answered_late_and_only_once() -> None:
    async def scenario() -> None:
        world = World()
        world.log.may_end.clear()
        late = world.send(timeout_ms=20)
        patient = world.send(timeout_ms=9_000)
        await world.until(lambda: late in world.answers)
        assert world.answers == {late: 10}
        world.log.may_end.set()
        await world.until(lambda: patient in world.answers)
        assert world.answers == {late: 10, patient: 0}
        await world.flushing.stop()

    run(scenario)


def test_sync_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World()
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        sent = world.send()
        await world.until(lambda: bool(world.answers))
        assert world.answers == {sent: 0}
        await world.flushing.stop()

    run(scenario)


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_failed_sync_confirms_nothing_and_is_retried() -> None:
    async def scenario() -> None:
        world = World()
        world.log.failures = 1
        number = world.send()
        await world.until(lambda: world.flushing.failures == 1)
        assert world.answers == {}
        assert world.log.flushed_offset == 0
        await world.until(lambda: number in world.answers)
        assert world.answers == {number: 0}
        assert world.log.syncs == 2
        await world.flushing.stop()

    run(scenario)


def test_repeated_sync_failures_are_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flushing, "RETRY_S", 0.001)
    monkeypatch.setattr(flushing, "_throttled", ThrottledLogger(logging.getLogger("delaymq.flushing"), lambda: 0))

    async def scenario() -> None:
        world = World()
        world.log.failures = 20
        number = world.send()
        await world.until(lambda: number in world.answers)
        assert world.flushing.failures == 20
        await world.flushing.stop()

    run(scenario)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_log_is_synced_at_intervals_without_waiting_producers() -> None:
    async def scenario() -> None:
        world = World(interval_ms=10)
        await asyncio.sleep(0.05)
        assert world.log.syncs == 0
        world.log.end_offset = 700
        await world.until(lambda: world.log.flushed_offset == 700)
        assert world.log.syncs == 1
        await world.flushing.stop()

    run(scenario)


def test_stop_syncs_everything_and_answers_all() -> None:
    async def scenario() -> None:
        world = World()
        numbers = [world.send() for _ in range(3)]
        await world.flushing.stop()
        assert world.answers == dict.fromkeys(numbers, 0)
        assert world.log.flushed_offset == world.log.end_offset

    run(scenario)


def test_stop_with_a_broken_disk_ends_with_timeout_responses() -> None:
    async def scenario() -> None:
        world = World()
        world.log.failures = 1_000
        number = world.send()
        await world.flushing.stop()
        assert world.answers == {number: 10}

    run(scenario)


def test_nothing_waits_after_a_stop() -> None:
    async def scenario() -> None:
        world = World()
        await world.flushing.stop()
        number = world.send()
        await asyncio.sleep(0.01)
        assert world.answers == {number: 10}
        assert world.log.syncs == 0

    run(scenario)


def test_sync_times_are_counted_in_buckets() -> None:
    times = FlushTimes()
    for seconds in (0.0004, 0.0005, 0.003, 99.0):
        times.add(seconds)
    assert times.counts[0] == 2
    assert times.counts[FLUSH_BUCKETS_S.index(0.005)] == 1
    assert times.counts[-1] == 1
    assert sum(times.counts) == 4
    assert abs(times.sum_s - 99.0039) < 1e-9


def test_disk_is_busy_from_a_waiting_request_until_a_successful_sync() -> None:
    async def scenario() -> None:
        world = World()
        flushing = world.flushing
        flushing.busy_after_s = 7.0
        world.log.may_end.clear()
        world.log.failures = 1
        asked_at = asyncio.get_running_loop().time()
        number = world.send()
        await world.until(lambda: world.log.running)
        busy_at = flushing.busy_at
        assert asked_at + 7.0 <= busy_at < math.inf
        world.log.may_end.set()
        await world.until(lambda: flushing.failures == 1)
        # A failed sync does not restart the interval.
        assert flushing.busy_at == busy_at
        await world.until(lambda: number in world.answers)
        await world.until(lambda: flushing.busy_at == math.inf)
        await flushing.stop()

    run(scenario)


def test_background_sync_does_not_make_the_disk_busy() -> None:
    async def scenario() -> None:
        world = World()
        world.log.may_end.clear()
        world.log.end_offset = 100
        world.flushing.request()
        await world.until(lambda: world.log.running)
        assert world.flushing.busy_at == math.inf
        world.log.may_end.set()
        await world.until(lambda: world.log.flushed_offset == 100)
        await world.flushing.stop()

    run(scenario)


def test_waiting_requests_hold_no_body() -> None:
    async def scenario() -> None:
        world = World()
        world.log.end_offset = 100
        request = Command(10, 1, body=b"x" * 1_000)
        deferred = Deferred(Response(0), 100, 5_000, Response(10))
        world.flushing.wait(cast(ClientSession, world.session), request, deferred)
        assert (world.flushing.waiting, request.body) == (1, b"")
        await world.until(lambda: world.answers == {1: 0})
        await world.flushing.stop()

    run(scenario)


def test_answer_waits_for_the_watermarks_that_it_names() -> None:
    async def scenario() -> None:
        world = World()
        world.log.may_end.clear()
        for number, waits_for_flush in enumerate((False, True), 1):
            world.log.end_offset += 100
            replicas = ReplicaWait(5_000, Response(12), Response(11))
            deferred = Deferred(Response(0), world.log.end_offset, 5_000, Response(10), replicas, waits_for_flush)
            world.flushing.wait(cast(ClientSession, world.session), Command(10, number), deferred)
        assert world.flushing.waiting == 2
        world.log.replicated_offset = 100
        world.flushing.replicated()
        assert world.answers == {1: 0}
        world.log.replicated_offset = 200
        world.flushing.replicated()
        assert world.answers == {1: 0}
        world.log.may_end.set()
        await world.until(lambda: 2 in world.answers)
        assert world.answers == {1: 0, 2: 0}
        await world.flushing.stop()

    run(scenario)


@pytest.mark.parametrize(
    ("flushes", "replicates", "code"), [(False, False, 12), (True, False, 12), (False, True, 10), (True, True, 0)]
)
def test_late_answer_states_which_copy_is_missing(flushes: bool, replicates: bool, code: int) -> None:
    async def scenario() -> None:
        world = World()
        if not flushes:
            world.log.may_end.clear()
        world.log.end_offset = 100
        deferred = Deferred(Response(0), 100, 20, Response(10), ReplicaWait(30, Response(12), Response(11)))
        world.flushing.wait(cast(ClientSession, world.session), Command(10, 1), deferred)
        if replicates:
            world.log.replicated_offset = 100
            world.flushing.replicated()
        await world.until(lambda: 1 in world.answers)
        assert world.answers == {1: code}
        world.log.may_end.set()
        await world.flushing.stop()

    run(scenario)


@pytest.mark.parametrize(("in_sync", "least", "code"), [(3, 1, 0), (2, 2, 0), (2, 3, 12), (1, 1, 11)])
def test_confirmed_answer_states_whether_enough_replicas_are_in_sync(in_sync: int, least: int, code: int) -> None:
    async def scenario() -> None:
        world = World()
        world.log.end_offset = 100
        replicas = ReplicaWait(5_000, Response(12), Response(11))
        deferred = Deferred(Response(0), 100, 5_000, Response(10), replicas, waits_for_flush=False)
        world.flushing.wait(cast(ClientSession, world.session), Command(10, 1), deferred)
        world.flushing.in_sync, world.flushing.min_in_sync = in_sync, least
        world.log.replicated_offset = 100
        world.flushing.replicated()
        assert world.answers == {1: code}
        await world.flushing.stop()

    run(scenario)
