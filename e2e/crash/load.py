"""Interface to the load program of bench/java: a JVM with RocketMQ's client that sends and receives on command.

Commands run concurrently in it; each has one response. The program exits when its input closes, so also with this
process.
"""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness import driver, java
from harness.errors import HarnessError

SOURCES_PATH = Path(__file__).resolve().parents[2] / "bench" / "java"
MAIN_CLASS = "delaymq.load.Main"
JVM_OPTIONS = ("-Xms256m", "-Xmx1g", "-XX:+UseParallelGC", "-Drocketmq.client.logLevel=WARN")
"""Equal for every broker; enough for a window of asynchronous sends, small enough for a shared machine."""
SHORT_LIVED = (*driver.JVM_OPTIONS, "-Drocketmq.client.logLevel=WARN")
"""For runs without measurements: a JVM that compiles little needs half of the processor time."""
DEFAULT_TIMEOUT_S = 180.0
EXIT_TIMEOUT_S = 10.0

Result = dict[str, Any]


class LoadError(HarnessError):
    """A command of the load program failed or timed out, or the program exited."""


class Pending:
    """A running command; ``result()`` waits for its response."""

    def __init__(self, line: str, answers: queue.SimpleQueue[Result], log_path: Path) -> None:
        self._line = line
        self._answers = answers
        self._log_path = log_path

    @property
    def is_done(self) -> bool:
        """Whether `result` returns without waiting."""
        return not self._answers.empty()

    def result(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Result:
        """Return the command's result; LoadError if it failed or timed out."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise LoadError(f"no response to `{self._line}` within {timeout_s:g} s (log: {self._log_path})") from None
        if not answer.get("ok"):
            raise LoadError(f"`{self._line}` failed: {answer.get('error')} (log: {self._log_path})")
        result: Result = answer["result"]
        return result


class LoadProgram:
    """One JVM, here or where ``command`` starts it; a context manager. The client logs to ``log_path``."""

    def __init__(
        self, folder: Path, *, jvm_options: Sequence[str] = JVM_OPTIONS, command: Sequence[str] | None = None
    ) -> None:
        self.log_path = folder / "load-program.log"
        if command is None:
            options = [*jvm_options, f"-Drocketmq.client.logRoot={folder}/client-logs", f"-Duser.home={folder}"]
            class_path = java.client_class_path(sources_path=SOURCES_PATH)
            command = java.command(class_path, MAIN_CLASS, options=options)
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[str, queue.SimpleQueue[Result]] = {}
        self._guard = threading.Lock()
        self._reader = threading.Thread(target=self._read_answers, name="load-program", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, command: str, **options: object) -> Pending:
        """Start a command; values must not contain spaces."""
        number = str(next(self._numbers))
        words = [f"{name}={value}" for name, value in options.items()]
        if any(" " in word or "\n" in word for word in words):
            raise ValueError(f"a value contains a space: {words}")
        line = " ".join([number, command, *words])
        answers: queue.SimpleQueue[Result] = queue.SimpleQueue()
        with self._guard:
            self._waiting[number] = answers
        if self._process.stdin is None or self._process.poll() is not None:
            raise LoadError(f"the load program exited with code {self._process.returncode} (log: {self.log_path})")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return Pending(line, answers, self.log_path)

    def call(self, command: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, **options: object) -> Result:
        """Run a command and wait for its result."""
        return self.start(command, **options).result(timeout_s)

    def close(self) -> None:
        """Stop the program; it is killed if it does not exit on request."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(EXIT_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer: Result = json.loads(line)
            with self._guard:
                waiting = self._waiting.pop(str(answer["id"]), None)
            if waiting is not None:
                waiting.put(answer)
        with self._guard:
            for waiting in self._waiting.values():
                waiting.put({"ok": False, "error": "the load program ended"})
            self._waiting.clear()
