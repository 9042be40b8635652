"""Servers as child processes: log files, time limits for start and stop, termination with the parent."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.errors import HarnessError

PR_SET_PDEATHSIG = 1
POLL_INTERVAL_S = 0.02
LOG_TAIL_BYTES = 4000
"""Long enough for a stack trace, short enough for a test report."""

_libc = ctypes.CDLL(None)


class ServerProcess:
    """One program that can be started again after a stop or a kill.

    The kernel kills it when the thread that started it ends, so start it from a thread that lives long enough.
    """

    def __init__(self, name: str, command: Sequence[str], log_path: Path, *, environment: Mapping[str, str]) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = log_path
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id; HarnessError if it is not running."""
        if self._process is None:
            raise HarnessError(f"{self.name} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it without waiting until it is ready."""
        if self.is_running:
            raise HarnessError(f"{self.name} is already running")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until ``is_ready()``; HarnessError with the end of the log if it exits first or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running:
                code = self._process.returncode if self._process else None
                raise HarnessError(f"{self.name} exited with code {code} before it was ready\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise HarnessError(f"{self.name} was not ready within {timeout_s:g} s\n{self.log_tail()}")
            time.sleep(POLL_INTERVAL_S)

    def stop(self, *, timeout_s: float) -> int:
        """Send SIGTERM and return the exit code; after the timeout, kill it and raise HarnessError."""
        process = self._process
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as e:
            self.kill()
            raise HarnessError(f"{self.name} did not stop within {timeout_s:g} s of SIGTERM\n{self.log_tail()}") from e
        self._process = None
        return code

    def kill(self) -> None:
        """Send SIGKILL, as in a crash, and wait for the process to end. No error if it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send any signal (SIGSTOP to suspend it, SIGCONT to resume it)."""
        os.kill(self.pid, number)

    def suspend(self, *, timeout_s: float = 10.0) -> None:
        """Send SIGSTOP and wait until every thread has stopped; SIGCONT resumes the process."""
        self.signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")
        self.wait_until(lambda: all(map(_is_stopped, threads.glob("*/stat"))), timeout_s=timeout_s)

    def log_size_bytes(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log_since(self, offset_bytes: int) -> str:
        """Return the log after a previously observed size."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(offset_bytes)
            return log.read().decode(errors="replace")

    def log_tail(self) -> str:
        """Return the end of its output, for error messages."""
        tail = self.log_since(max(0, self.log_size_bytes() - LOG_TAIL_BYTES))
        return f"--- end of {self.log_path} ---\n{tail}"


def _is_stopped(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(") ")[2].startswith("T")
    except OSError:  # the thread has ended
        return True


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
