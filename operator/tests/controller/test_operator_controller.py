"""The controller's scheduling of reconciliation, in virtual time."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from delaymq_operator.controller.controller import MAX_BACKOFF_S, RUN_TIMEOUT_S, WOKEN_BACKOFF_S, Controller, Result
from delaymq_operator.reconcile.context import Key, Outcome
from delaymq_operator.reconcile.errors import BrokerUnreachable, KubeError
from delaymq_testing.virtual_loop import VirtualLoop, run_virtually

A, B = Key("Broker", "ns", "a"), Key("Broker", "ns", "b")


class Runs:
    """Times and results of reconciliations."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.times_s: list[tuple[Key, float]] = []
        self.results: Counter[Result] = Counter()

    def ran(self, key: Key, result: Result, seconds: float) -> None:
        self.results[result] += 1

    def of(self, key: Key) -> list[float]:
        return [when_s for run, when_s in self.times_s if run == key]


def started(
    loop: VirtualLoop,
    do: Callable[[Key], Awaitable[Outcome]],
    *,
    workers: int = 2,
    resync_s: float = 1e9,
    known: tuple[Key, ...] = (),
) -> tuple[Controller, Runs]:
    runs = Runs(loop)

    async def reconcile(key: Key) -> Outcome:
        runs.times_s.append((key, loop.time()))
        return await do(key)

    controller = Controller(
        reconcile, runs, workers=workers, resync_s=resync_s, known=lambda: known, chance=lambda: 0.5
    )
    controller.start()
    return controller, runs


async def done(key: Key) -> Outcome:
    return Outcome()


def test_repeated_enqueues_are_merged_into_one_further_run() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async def slow(key: Key) -> Outcome:
            await asyncio.sleep(10)
            return Outcome()

        controller, runs = started(loop, slow)
        for _ in range(100):
            controller.enqueue(A)
        await asyncio.sleep(5)
        for _ in range(100):
            controller.enqueue(A)
        await asyncio.sleep(100)
        assert len(runs.of(A)) == 2
        await controller.stop(0)

    run_virtually(scenario)


def test_key_is_never_reconciled_concurrently() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        running: Counter[Key] = Counter()

        async def slow(key: Key) -> Outcome:
            running[key] += 1
            assert running[key] == 1
            await asyncio.sleep(1)
            running[key] -= 1
            return Outcome(0.1)

        controller, runs = started(loop, slow, workers=8)
        for _ in range(200):
            controller.enqueue(A)
            await asyncio.sleep(0.05)
        assert runs.results[Result.ERROR] == 0
        assert len(runs.of(A)) > 5
        await controller.stop(2)

    run_virtually(scenario)


def test_concurrent_runs_are_limited_to_number_of_workers() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        running = most = 0

        async def slow(key: Key) -> Outcome:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1
            return Outcome()

        controller, runs = started(loop, slow, workers=3)
        for n in range(20):
            controller.enqueue(Key("Topic", "ns", str(n)))
        await asyncio.sleep(100)
        assert (most, len(runs.times_s)) == (3, 20)
        await controller.stop(0)

    run_virtually(scenario)


def test_outcome_requeues_its_key_and_enqueues_others() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async def next_one(key: Key) -> Outcome:
            return Outcome(10.0, enqueue=(B,)) if key == A else Outcome()

        controller, runs = started(loop, next_one)
        controller.enqueue(A)
        await asyncio.sleep(25)
        assert runs.of(A) == pytest.approx([0.0, 10.0, 20.0])
        assert len(runs.of(B)) == 3
        await controller.stop(0)

    run_virtually(scenario)


def test_failures_are_retried_with_bounded_backoff() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async def failing(key: Key) -> Outcome:
            raise BrokerUnreachable("10.0.0.1:8080", "no answer")

        controller, runs = started(loop, failing)
        controller.enqueue(A)
        await asyncio.sleep(3_000)
        times_s = runs.of(A)
        gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
        assert gaps_s[:9] == pytest.approx([1, 2, 4, 8, 16, 32, 64, 128, 256])
        assert gaps_s[9:] == pytest.approx([MAX_BACKOFF_S] * len(gaps_s[9:]))
        assert runs.results == {Result.TRANSIENT: len(times_s)}
        await controller.stop(0)

    run_virtually(scenario)


def test_conflict_is_retried_promptly_and_persistent_conflict_backs_off() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async def conflict(key: Key) -> Outcome:
            raise KubeError(409, "Conflict", "it was changed")

        controller, runs = started(loop, conflict)
        controller.enqueue(A)
        await asyncio.sleep(1_000)
        times_s = runs.of(A)
        assert times_s[5] - times_s[0] < 2
        assert len(times_s) < 20
        await controller.stop(0)

    run_virtually(scenario)


def test_enqueue_shortens_backoff_without_busy_loop() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async def failing(key: Key) -> Outcome:
            raise BrokerUnreachable("10.0.0.1:8080", "no answer")

        controller, runs = started(loop, failing)
        controller.enqueue(A)
        await asyncio.sleep(400)
        before = len(runs.of(A))
        for _ in range(1_000):
            controller.enqueue(A)
            await asyncio.sleep(0.1)
        assert 100 / WOKEN_BACKOFF_S - 2 <= len(runs.of(A)) - before <= 100 / WOKEN_BACKOFF_S + 1
        await controller.stop(0)

    run_virtually(scenario)


def test_key_that_requeues_itself_is_throttled() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async def itself(key: Key) -> Outcome:
            return Outcome(0.0, enqueue=(key,))

        controller, runs = started(loop, itself)
        controller.enqueue(A)
        await asyncio.sleep(10)
        assert len(runs.of(A)) <= 51
        await controller.stop(0)

    run_virtually(scenario)


def test_success_resets_backoff() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        attempts = 0

        async def sometimes(key: Key) -> Outcome:
            nonlocal attempts
            attempts += 1
            if attempts % 4:
                raise BrokerUnreachable("10.0.0.1:8080", "no answer")
            return Outcome(100)

        controller, runs = started(loop, sometimes)
        controller.enqueue(A)
        await asyncio.sleep(200)
        assert runs.of(A) == pytest.approx([0, 1, 3, 7, 107, 108, 110, 114])
        await controller.stop(0)

    run_virtually(scenario)


def test_hanging_run_is_cancelled_and_worker_continues() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async def hanging(key: Key) -> Outcome:
            if key == A:
                await asyncio.Event().wait()
            return Outcome()

        controller, runs = started(loop, hanging, workers=1)
        controller.enqueue(A)
        controller.enqueue(B)
        await asyncio.sleep(RUN_TIMEOUT_S - 1)
        assert controller.longest_run_s() == pytest.approx(RUN_TIMEOUT_S - 1)
        assert runs.of(B) == []
        await asyncio.sleep(2)
        assert len(runs.of(B)) == 1
        await controller.stop(0)

    run_virtually(scenario)


def test_bug_is_logged_with_stack_trace_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        async def broken(key: Key) -> Outcome:
            raise KeyError("spec")

        controller, runs = started(loop, broken)
        controller.enqueue(A)
        await asyncio.sleep(2.5)
        assert runs.results == {Result.ERROR: 2}
        await controller.stop(0)

    run_virtually(scenario)
    assert caplog.records[0].exc_info is not None


def test_known_keys_are_resynced_periodically() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        controller, runs = started(loop, done, resync_s=600, known=(A, B))
        await asyncio.sleep(6_000)
        assert len(runs.of(A)) == len(runs.of(B)) == 10
        await controller.stop(0)

    run_virtually(scenario)


def test_locked_key_is_not_reconciled() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        entered: list[float] = []

        async def run(key: Key) -> Outcome:
            entered.append(loop.time())
            return Outcome()

        controller, _ = started(loop, run)
        async with controller.alone(A):
            controller.enqueue(A)
            await asyncio.sleep(10)
            assert entered == []
        await asyncio.sleep(1)
        assert entered == [10.0]
        await controller.stop(0)

    run_virtually(scenario)


def test_state_of_finished_keys_is_discarded() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        controller, _ = started(loop, done)
        for n in range(1_000):
            controller.enqueue(Key("Topic", "ns", str(n)))
        await asyncio.sleep(10)
        assert controller._states == {}
        await controller.stop(0)

    run_virtually(scenario)


def test_stop_waits_for_running_keys_and_starts_no_more() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        ended: list[Key] = []

        async def slow(key: Key) -> Outcome:
            await asyncio.sleep(3 if key == A else 60)
            ended.append(key)
            return Outcome(0.1)

        controller, runs = started(loop, slow, workers=2)
        waiting = Key("Broker", "ns", "waiting")
        for key in (A, B, waiting):
            controller.enqueue(key)
        await asyncio.sleep(1)
        began_s = loop.time()
        await controller.stop(5)
        assert loop.time() - began_s == pytest.approx(5)
        assert ended == [A]
        assert runs.of(waiting) == []
        controller.enqueue(A)
        await asyncio.sleep(100)
        assert len(runs.of(A)) == 1

    run_virtually(scenario)
