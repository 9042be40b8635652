"""Scheduling of reconciliations by key, independent of kopf and Kubernetes.

A key is run by one task at a time. Wakes while it waits or runs cause a single further run. Failures are retried with
exponential backoff; a wake shortens the wait, but never removes it, so that nothing spins.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from delaymq_operator.reconcile.context import Key, Outcome, Waiting
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable, KubeError

MIN_GAP_S: Final = 0.2
"""Minimum time from the end of a run to the next one caused by a wake, since events come in bursts."""
FIRST_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 300.0
JITTER: Final = 0.2
"""Relative jitter of times, so that simultaneous failures are not retried simultaneously."""
CONFLICT_BACKOFF_S: Final = 0.3
QUICK_CONFLICTS: Final = 5
WOKEN_BACKOFF_S: Final = 5.0
"""Maximum time from a failure to the retry if the key is woken."""
RUN_TIMEOUT_S: Final = 300.0
"""Time limit of a run; everything that it waits for has a shorter timeout."""

_logger = logging.getLogger(__name__)

Reconcile = Callable[[Key], Awaitable[Outcome]]
Release = Callable[[Key], Awaitable[Waiting | None]]
"""Work before the finalizer of a deleted resource is removed; returns what it is waiting for, or None."""


class Result(enum.Enum):
    """Result of a run, for metrics."""

    DONE = "done"
    CONFLICT = "conflict"
    TRANSIENT = "transient"
    """The API server or a broker failed; not a bug."""
    ERROR = "error"


class Watcher(Protocol):
    """Called for every run, for metrics."""

    def ran(self, key: Key, result: Result, seconds: float) -> None: ...


@dataclass
class _State:
    queued: bool = False
    running_since_s: float | None = None
    woken: bool = False
    """Whether the key was woken while it ran."""
    failures: int = 0
    ended_s: float = float("-inf")
    timer: asyncio.TimerHandle | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    holders: int = 0
    """Number of tasks in `alone` or waiting for it."""


class Controller:
    """Runs `reconcile` for keys that are woken, `workers` at a time."""

    def __init__(
        self,
        reconcile: Reconcile,
        watcher: Watcher,
        *,
        workers: int,
        resync_s: float,
        known: Callable[[], Iterable[Key]],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._reconcile = reconcile
        self._watcher = watcher
        self._workers = workers
        self._resync_s = resync_s
        self._known = known
        self._chance = chance
        self._states: dict[Key, _State] = {}
        self._ready: deque[Key] = deque()
        self._has_ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    # Interface.

    def start(self) -> None:
        """Start running woken keys, if not started yet. Requires a running loop."""
        if self._tasks:
            return
        self._tasks = [asyncio.create_task(self._work(), name=f"reconcile {n}") for n in range(self._workers)]
        self._tasks.append(asyncio.create_task(self._resync(), name="resync"))

    async def stop(self, grace_s: float) -> None:
        """Start no more runs; current runs get `grace_s` to finish, then they are cancelled."""
        self._stopping = True
        for state in self._states.values():
            _cancel_timer(state)
        self._ready.clear()
        self._has_ready.set()
        workers, resync = self._tasks[:-1], self._tasks[-1:]
        for task in resync:
            task.cancel()
        if workers:
            _, late = await asyncio.wait(workers, timeout=grace_s)
            for task in late:
                _logger.info("%s did not finish in time and is being cancelled", task.get_name())
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def enqueue(self, key: Key) -> None:
        """Run `key` soon, since something about it changed."""
        if self._stopping:
            return
        state = self._states.setdefault(key, _State())
        if state.running_since_s is not None:
            state.woken = True
        elif not state.queued:
            gap_s = WOKEN_BACKOFF_S if state.failures else MIN_GAP_S
            self._schedule(key, state, state.ended_s + gap_s - self._now(), only_sooner=True)

    @asynccontextmanager
    async def alone(self, key: Key) -> AsyncIterator[None]:
        """Prevent reconciliation of `key` within the context, for work that kopf runs itself, such as releasing a
        deleted resource.
        """
        state = self._states.setdefault(key, _State())
        state.holders += 1
        try:
            async with state.lock:
                yield
        finally:
            state.holders -= 1
            self._forget_if_idle(key, state)

    @property
    def queue_depth(self) -> int:
        """The number of keys waiting for a worker."""
        return len(self._ready)

    def longest_run_s(self) -> float:
        """Return the duration of the longest current run; 0: there is none."""
        now_s = self._now()
        started = [state.running_since_s for state in self._states.values() if state.running_since_s is not None]
        return max((now_s - one for one in started), default=0.0)

    # Implementation.

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _schedule(self, key: Key, state: _State, after_s: float, *, only_sooner: bool = False) -> None:
        loop = asyncio.get_running_loop()
        when_s = loop.time() + max(0.0, after_s)
        if state.timer is not None:
            if only_sooner and state.timer.when() <= when_s:
                return
            _cancel_timer(state)
        if after_s <= 0:
            self._enqueue(key, state)
        else:
            state.timer = loop.call_at(when_s, self._enqueue, key, state)

    def _enqueue(self, key: Key, state: _State) -> None:
        _cancel_timer(state)
        if not state.queued and not self._stopping:
            state.queued = True
            self._ready.append(key)
            self._has_ready.set()

    async def _work(self) -> None:
        while not self._stopping:
            if not self._ready:
                self._has_ready.clear()
                await self._has_ready.wait()
                continue
            key = self._ready.popleft()
            state = self._states[key]
            state.queued = False
            if state.running_since_s is not None:
                state.woken = True
                continue
            await self._run(key, state)

    async def _run(self, key: Key, state: _State) -> None:
        started_s = state.running_since_s = self._now()
        state.woken = False
        again_s: float | None = None
        result = Result.ERROR
        try:
            async with state.lock, asyncio.timeout(RUN_TIMEOUT_S):
                outcome = await self._reconcile(key)
            result, state.failures, again_s = Result.DONE, 0, outcome.requeue_after_s
            for other in outcome.enqueue:
                self.enqueue(other)
        except Exception as error:
            result = _result_of(error)
            state.failures += 1
            again_s = self._backoff_s(result, state.failures)
            self._complain(key, result, error, again_s)
        finally:
            state.ended_s, state.running_since_s = self._now(), None
            self._watcher.ran(key, result, state.ended_s - started_s)
        self._after(key, state, again_s)

    def _after(self, key: Key, state: _State, again_s: float | None) -> None:
        if self._stopping:
            return
        if state.woken:
            soon_s = WOKEN_BACKOFF_S if state.failures else MIN_GAP_S
            again_s = soon_s if again_s is None else min(again_s, soon_s)
        if again_s is not None:
            self._schedule(key, state, max(again_s, MIN_GAP_S))
        else:
            self._forget_if_idle(key, state)

    def _forget_if_idle(self, key: Key, state: _State) -> None:
        """Forget an idle key, so that keys of deleted resources do not accumulate."""
        busy = state.queued or state.timer is not None or state.running_since_s is not None or state.holders
        if not busy and not state.failures and self._states.get(key) is state:
            del self._states[key]

    def _backoff_s(self, result: Result, failures: int) -> float:
        if result is Result.CONFLICT and failures <= QUICK_CONFLICTS:
            base_s = CONFLICT_BACKOFF_S
        else:
            base_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failures - 1, 20))
        return base_s * (1 - JITTER + 2 * JITTER * self._chance())

    def _complain(self, key: Key, result: Result, error: Exception, again_s: float) -> None:
        if result is Result.CONFLICT:
            _logger.debug("%s: %s; retrying in %.1f s", key, error, again_s)
        elif result is Result.TRANSIENT:
            _logger.warning("%s: %s; retrying in %.0f s", key, str(error) or "it timed out", again_s)
        else:
            _logger.error(
                ("%s: unexpected error, a bug in the operator; retrying in %.0f s"), key, again_s, exc_info=error
            )

    async def _resync(self) -> None:
        while True:
            for key in list(self._known()):
                state = self._states.setdefault(key, _State())
                if not state.queued and state.running_since_s is None:
                    # Spread over time: a change that a user is waiting for must not queue behind a thousand resyncs.
                    self._schedule(key, state, self._resync_s * self._chance(), only_sooner=True)
            await asyncio.sleep(self._resync_s)


def _cancel_timer(state: _State) -> None:
    if state.timer is not None:
        state.timer.cancel()
        state.timer = None


def _result_of(error: Exception) -> Result:
    if isinstance(error, KubeError) and error.conflict:
        return Result.CONFLICT
    if isinstance(error, KubeError | BrokerUnreachable | BrokerRefused | TimeoutError):
        return Result.TRANSIENT
    return Result.ERROR
