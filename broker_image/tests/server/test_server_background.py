"""Periodic jobs, in virtual time where no thread is needed."""

import asyncio
import threading

import pytest
from delaymq.server.jobs.background import Background, Job, Task
from delaymq_testing.running_server import until
from delaymq_testing.virtual_loop import VirtualLoop, run_virtually

BOUND_S = 60


class Work:
    def __init__(self) -> None:
        self.runs = 0
        self.threads: set[int] = set()
        self.may_end = threading.Event()
        self.finished = 0
        self.error: OSError | None = None

    def begin(self) -> Task:
        self.runs += 1
        return self

    def run(self) -> None:
        self.threads.add(threading.get_ident())
        self.may_end.wait(BOUND_S)

    def finish(self) -> OSError | None:
        self.finished += 1
        return self.error


def test_jobs_run_at_their_intervals_and_follow_changes() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        interval_ms = 1_000
        seen: list[float] = []
        background = Background([Job(name="a", interval_ms=lambda: interval_ms, run=lambda: seen.append(loop.time()))])
        background.start()
        await asyncio.sleep(10.1)
        assert len(seen) == pytest.approx(9, abs=1)
        seen.clear()
        interval_ms = 5_000
        await asyncio.sleep(20)
        assert 3 <= len(seen) <= 5
        await background.stop()
        seen.clear()
        await asyncio.sleep(60)
        assert seen == []

    run_virtually(scenario)


def test_job_with_much_work_runs_at_its_short_interval() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        left = 1_000
        seen: list[float] = []

        def work() -> None:
            nonlocal left
            left = max(left - 1, 0)
            seen.append(loop.time())

        background = Background([Job(name="a", interval_ms=lambda: 4 if left else 1_000, run=work)])
        background.start()
        await asyncio.sleep(5)
        assert left == 0
        assert seen[500] - seen[400] == pytest.approx(0.4, abs=0.01)
        seen.clear()
        await asyncio.sleep(10)
        assert len(seen) == pytest.approx(9, abs=1)
        left = 1_000_000
        await asyncio.sleep(2)
        await background.stop()
        seen.clear()
        await asyncio.sleep(60)
        assert seen == []

    run_virtually(scenario)


def test_failing_job_does_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: VirtualLoop) -> None:
        good: list[int] = []

        def fail() -> None:
            raise ValueError("a defect")

        jobs = [
            Job(name="bad", interval_ms=lambda: 1_000, run=fail),
            Job(name="good", interval_ms=lambda: 1_000, run=lambda: good.append(1)),
        ]
        background = Background(jobs)
        background.start()
        await asyncio.sleep(5)
        assert len(good) >= 3
        await background.stop()

    run_virtually(scenario)
    assert "background job (bad) failed: a defect" in caplog.text
    assert "ValueError" in caplog.text


def test_task_runs_in_a_thread_and_never_concurrently_with_itself() -> None:
    async def scenario() -> None:
        work = Work()
        background = Background([Job(name="slow", interval_ms=lambda: 1, run=work.begin)])
        background.start()
        await until(lambda: work.threads)
        await asyncio.sleep(0.5)  # what must not happen has this long
        assert work.runs == 1
        work.may_end.set()
        await until(lambda: work.finished >= 2)
        assert threading.get_ident() not in work.threads
        await background.stop()
        assert work.finished == work.runs

    asyncio.run(asyncio.wait_for(scenario(), BOUND_S))


def test_error_of_a_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        work = Work()
        work.may_end.set()
        work.error = OSError(28, "No space left on device")
        background = Background([Job(name="tables", interval_ms=lambda: 1, run=work.begin)])
        background.start()
        await until(lambda: work.finished)
        await background.stop()

    asyncio.run(asyncio.wait_for(scenario(), BOUND_S))
    assert "background job (tables) failed: [Errno 28] No space left on device" in caplog.text


def test_blocked_loop_is_measured() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        background = Background([])
        background.start()
        await asyncio.sleep(1)
        assert background.lag_s < 0.001
        loop._jumping.now += 3.0  # as if a callback had taken that long
        await asyncio.sleep(0.5)
        assert background.lag_s == pytest.approx(2.9, abs=0.15)
        await asyncio.sleep(11)
        assert background.lag_s < 0.001
        await background.stop()

    run_virtually(scenario)
