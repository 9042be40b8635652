"""Sampling of child processes with py-spy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from profiling.errors import ProfileError

POLL_S = 0.02
SETTLE_S = 3.0
"""Time before a step in which py-spy reads symbols. It stops the process meanwhile, so rates would be too low."""
ATTEMPTS = 25
"""py-spy cannot read a process whose interpreter has not been initialised. An attempt takes 0.1 s or more."""
WRITE_TIMEOUT_S = 60.0
NO_SAMPLES = "No stack counts found"
"""Message of py-spy if all threads were idle."""


@dataclass(frozen=True)
class Choices:
    """Options of py-spy."""

    rate: int = 100
    """Samples per second."""
    native: bool = True
    """Whether frames of C code are included."""


@dataclass
class _Sampler:
    """py-spy for one process; it is started again if it fails while the interpreter starts."""

    pid: int
    command: list[str]
    log_path: Path
    attempts: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def keep_running(self) -> None:
        if self.process is not None and self.process.poll() in (None, 0):
            return
        if self.attempts < ATTEMPTS:
            self.attempts += 1
            with self.log_path.open("wb") as log:
                self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        """Let py-spy write its file; ProfileError if it could not read the process."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(WRITE_TIMEOUT_S)
        except subprocess.TimeoutExpired as e:
            self.process.kill()
            self.process.wait()
            raise ProfileError(f"py-spy did not write its profile within {WRITE_TIMEOUT_S:g} s") from e
        text = self.log_path.read_text(errors="replace")
        if code == 0 or NO_SAMPLES in text or not Path(f"/proc/{self.pid}").exists():
            return
        hint = " (run as root, or set kernel.yama.ptrace_scope to 0)" if "ermission" in text else ""
        raise ProfileError(f"py-spy cannot sample process {self.pid}{hint}: {' '.join(text.split())[-500:]}")


class Watch:
    """Samples the child processes whose command line matches, until it is closed; a context manager.

    Processes that start later are included, but not their first tenths of a second: py-spy can read a process only when
    its interpreter runs.
    """

    def __init__(self, matches: Callable[[list[str]], bool], folder: Path, choices: Choices) -> None:
        self._matches = matches
        self._folder = folder
        self._choices = choices
        self._samplers: dict[int, _Sampler] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="profiler", daemon=True)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        self._sample_new()
        if self._samplers:
            time.sleep(SETTLE_S)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        problems = []
        for sampler in self._samplers.values():
            try:
                sampler.stop()
            except ProfileError as e:
                problems.append(e)
        if problems and error is None:
            raise problems[0]

    def profiles(self) -> list[Path]:
        """Return the flame graphs, one for each process with samples, in the order in which the processes started."""
        paths = (self._folder / f"{pid}.svg" for pid in self._samplers)
        return [path for path in paths if path.exists()]

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_S):
            self._sample_new()

    def _sample_new(self) -> None:
        for pid in children():
            if pid not in self._samplers and self._matches(command_line(pid)):
                path = self._folder / f"{pid}.svg"
                command = sampling_command(pid, path, self._choices)
                self._samplers[pid] = _Sampler(pid, command, path.with_suffix(".log"))
            sampler = self._samplers.get(pid)
            if sampler is not None:
                sampler.keep_running()


def program() -> Path:
    """Return the path of py-spy, which is installed next to this interpreter; ProfileError if it is missing."""
    path = Path(sys.executable).with_name("py-spy")
    if not path.exists():
        raise ProfileError(f"{path} does not exist: run `make setup-dev`")
    return path


def sampling_command(pid: int, path: Path, choices: Choices) -> list[str]:
    command = [str(program()), "record", "--pid", str(pid), "--output", str(path), "--format", "flamegraph"]
    return [*command, "--rate", str(choices.rate), "--function", *(["--native"] * choices.native)]


def children() -> list[int]:
    """Return the process ids of the children of this process."""
    found: list[int] = []
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:  # the thread ended
            continue
    return sorted(found)


def command_line(pid: int) -> list[str]:
    """Return the arguments of a process; none if it ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []
