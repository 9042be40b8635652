"""Process of one broker group: started, observed, and started again when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from delaymq.server.groups.handoff import MAX_BYTES, Handoff, Report, report_of

FIRST_DELAY_S: Final = 1.0
"""Time after which a process that ended is started again; doubled each time, up to MAX_DELAY_S."""
MAX_DELAY_S: Final = 30.0
STEADY_S: Final = 60.0
"""Time for which a broker must have run for the next delay to be the first one again."""

_logger = logging.getLogger(__name__)


class GroupProcess:
    """One group. Call `run`, and `stop` to end it."""

    def __init__(
        self, name: str, command: Sequence[str], handoff: Callable[[], Handoff], on_started: Callable[[], None]
    ) -> None:
        self.name = name
        self.report: Report | None = None
        """Report of the running broker; None while it does not run or is being started."""
        self.restarts = 0
        self.state = "starting"
        """For people: what the process does at the moment."""
        self._command = command
        self._handoff = handoff
        self._on_started = on_started
        self._process: Process | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Keep the broker running until `stop`; return early if its first start fails. Returns its last exit code.

        Exit codes of processes that a signal ended are negative.
        """
        delay_s = FIRST_DELAY_S
        has_started = False
        while True:
            began = monotonic()
            code = await self._run_once()
            has_started = has_started or self.report is not None
            self.report = None
            if self._stopping.is_set() or not has_started:
                self.state = "stopped"
                return code
            if monotonic() - began >= STEADY_S:
                delay_s = FIRST_DELAY_S
            self.state = f"{ended_text(code)}, to be started again"
            _logger.error("broker %s %s: starting it again in %g s", self.name, ended_text(code), delay_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
                self.state = "stopped"
                return code
            delay_s = min(delay_s * 2, MAX_DELAY_S)
            self.restarts += 1
            self.state = "starting"

    def stop(self) -> None:
        """Have the broker stop, as on SIGTERM; `run` returns when it has."""
        self._stopping.set()
        if self._process is not None:
            self.state = "stopping"
            self._terminate(self._process)

    async def _run_once(self) -> int:
        """Run the process to its end and return its exit code."""
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE, limit=MAX_BYTES)
        except OSError as error:
            _logger.error("cannot start the process of broker %s: %s", self.name, error)
            return 1
        self._process = process
        try:
            if self._stopping.is_set():
                self._terminate(process)
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(ConnectionError):  # it has ended
                process.stdin.write(self._handoff().encode())
                await process.stdin.drain()
            process.stdin.close()
            await self._take_report(process.stdout)
            return await process.wait()
        finally:
            self._process = None

    async def _take_report(self, output: asyncio.StreamReader) -> None:
        with contextlib.suppress(ValueError):  # a line beyond the limit
            report = report_of(await output.readline())
            if report is not None:
                self.report, self.state = report, "running"
                self._on_started()
        while await output.read(MAX_BYTES):
            pass

    @staticmethod
    def _terminate(process: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()


def ended_text(code: int) -> str:
    """Return how a process with an exit code ended, as a predicate."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
