"""Periodic jobs: each runs on the loop's thread; if it returns a task, the task's system calls run in another."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from delaymq.clock import now_ms
from delaymq.server.resources import started
from delaymq.throttled_log import ThrottledLogger

TICK_S: Final = 0.2
"""Interval of looking for due jobs, and of measuring the loop's lag. Jobs with a shorter interval have own timers."""
LAG_WINDOW_TICKS: Final = 50
"""The reported lag is the maximum of the last ten seconds."""
WORKER_THREADS: Final = 2
"""Two, so that a slow write of one job does not delay the allocation of the next segment."""

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)


class Task(Protocol):
    """A task like the store's: system calls in any thread, completion on the loop's thread."""

    def run(self) -> None:
        """Run the system calls, in any thread."""

    def finish(self) -> object:
        """Complete the task on the loop's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A periodic job."""

    name: str
    interval_ms: Callable[[], int]
    """Called each time, because the configuration may change."""
    run: Callable[[], Task | None]
    """The job; it is not run again before its returned task has finished."""


class Background:
    """Runs jobs, and measures the lag of the event loop."""

    def __init__(self, jobs: list[Job]) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs = jobs
        now = self._loop.time()
        self._due = {job.name: now + job.interval_ms() / 1000 for job in jobs}
        self._running: dict[str, asyncio.Future[None]] = {}
        self._executor = started(ThreadPoolExecutor(WORKER_THREADS, "background"), WORKER_THREADS)
        self._timer: asyncio.TimerHandle | None = None
        self._busy: dict[str, asyncio.TimerHandle] = {}
        """Timers of jobs whose current interval is shorter than `TICK_S`."""
        self._tick_at = 0.0
        self._lags_s = [0.0] * LAG_WINDOW_TICKS
        self._ticks = 0
        self._stopped = False

    @property
    def lag_s(self) -> float:
        """Maximum delay of a timer in the last ten seconds."""
        return max(self._lags_s)

    def start(self) -> None:
        """Start; each job runs for the first time after its interval."""
        self._tick_at = self._loop.time() + TICK_S
        self._timer = self._loop.call_at(self._tick_at, self._tick)

    async def stop(self) -> None:
        """Stop, after the running tasks."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for timer in self._busy.values():
            timer.cancel()
        if self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._executor.shutdown(wait=True)

    def _tick(self) -> None:
        now = self._loop.time()
        self._lags_s[self._ticks % LAG_WINDOW_TICKS] = max(now - self._tick_at, 0.0)
        self._ticks += 1
        for job in self._jobs:
            if self._due[job.name] <= now:
                self._begin(job)
        if not self._stopped:
            self.start()

    def _begin(self, job: Job) -> None:
        """Run a job unless its task is still running, and let it wait for its interval, which the run may change."""
        if job.name in self._running:
            return
        now = self._loop.time()
        self._run(job)
        interval_s = job.interval_ms() / 1000
        self._due[job.name] = now + interval_s
        timer = self._busy.pop(job.name, None)
        if timer is not None:
            timer.cancel()
        if interval_s < TICK_S and not self._stopped:
            self._busy[job.name] = self._loop.call_later(interval_s, self._begin, job)

    def _run(self, job: Job) -> None:
        try:
            task = job.run()
        except Exception as error:
            _throttled.warning(f"background job ({job.name}) failed: %s", error, error=error)
            return
        if task is None:
            return
        running = self._loop.run_in_executor(self._executor, task.run)
        done = self._loop.create_future()
        self._running[job.name] = done

        def ended(future: "asyncio.Future[None]", task: Task = task) -> None:
            del self._running[job.name]
            error: object = future.exception()
            try:
                error = error or task.finish()
            except Exception as failure:
                error = failure
            if error is not None:
                _throttled.warning(f"background job ({job.name}) failed: %s", error)
            done.set_result(None)

        running.add_done_callback(ended)
