"""A standalone broker as a process for the tests of the commands, and a way to run a command as a user does."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from delaymq.cli.main import SERVERS, main
from harness.ports import free_broker_port, free_port

START_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 60.0
SMALL_FILES = "mappedFileSizeCommitLog=4194304\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"
SMALL = f"{SMALL_FILES}messageDelayLevel=1s 2s 5s 1h\n"


def command(
    *words: str, environment: dict[str, str] | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs `delaymq WORDS`; what it prints must never be a stack trace."""
    done = subprocess.run(
        [sys.executable, "-m", "delaymq", *words],
        env={**os.environ, "COLUMNS": "200", **(environment or {})},
        input=given,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout
    return done


@dataclass(frozen=True)
class Done:
    """How a command ended that ran in the test's own process."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def called(*words: str, environment: dict[str, str] | None = None, given: str = "") -> Done:
    """As `command`, without the half second that a process takes to load."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    given_in = io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8")
    known = {**os.environ, "COLUMNS": "200", **(environment or {})}
    code: object = None
    with (
        mock.patch.dict(os.environ, known, clear=True),
        mock.patch.object(sys, "stdin", given_in),
        logging_left_alone(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(words)
        except SystemExit as end:
            code = end.code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    assert isinstance(code, int), code
    return Done(code, *texts)


@contextlib.contextmanager
def logging_left_alone() -> Iterator[None]:
    """A command sets the log up as its process wants it; the tests after it want theirs."""
    root = logging.getLogger()
    loggers = [root, *(logging.getLogger(name) for name in [*root.manager.loggerDict] if name.startswith("delaymq"))]
    levels = [(logger, logger.level) for logger in loggers]
    handlers = list(root.handlers)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        for logger, level in levels:
            logger.setLevel(level)
        for name in [*root.manager.loggerDict]:
            if name.startswith("delaymq") and logging.getLogger(name) not in loggers:
                logging.getLogger(name).setLevel(logging.NOTSET)


def ended(*words: str, **options: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command: servers as a process, all others here."""
    if words and words[0] in SERVERS:
        run = command(*words, **options)
        return run.returncode, run.stdout, run.stderr
    done = called(*words, **options)
    return done.code, done.out, done.err


class Standalone:
    """`delaymq standalone` on free ports, with a few levels of short delays unless `settings` say otherwise."""

    scheme = "http"

    def __init__(self, folder: Path, settings: str = SMALL) -> None:
        self.store_path = folder / "store"
        self.listen_port, self.namesrv_port, self.http_port = free_broker_port(), free_port(), free_port()
        self.config_path = folder / "broker.conf"
        self.config_path.write_text(settings)
        self.log_path = folder / "log"

    @property
    def arguments(self) -> list[str]:
        return [
            "standalone", "--host", "127.0.0.1", "-c", str(self.config_path), "--store-path", str(self.store_path),
            "--listen-port", str(self.listen_port), "--namesrv-port", str(self.namesrv_port),
            "--http-port", str(self.http_port),
        ]  # fmt: skip

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.http_port}"

    @property
    def environment(self) -> dict[str, str]:
        """For commands that are to find it."""
        return {
            "DELAYMQ_NAMESRV": f"127.0.0.1:{self.namesrv_port}",
            "DELAYMQ_HTTP": self.url,
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with self.log_path.open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "delaymq", *self.arguments], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not self._is_ready():
                assert process.poll() is None, self.log_path.read_text()
                assert time.monotonic() < deadline, self.log_path.read_text()
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
            process.wait()

    def _is_ready(self) -> bool:
        try:
            anybody = ssl._create_unverified_context()
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2, context=anybody) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


class SecondBroker(Standalone):
    """`delaymq broker` of another name that registers with the NameServer of `first`."""

    def __init__(self, folder: Path, first: Standalone) -> None:
        super().__init__(folder, f"{SMALL}brokerName=broker-b\n")
        self._namesrv = first.environment["DELAYMQ_NAMESRV"]

    @property
    def arguments(self) -> list[str]:
        return [
            "broker", "--host", "127.0.0.1", "-c", str(self.config_path), "--store-path", str(self.store_path),
            "--listen-port", str(self.listen_port), "--http-port", str(self.http_port), "--namesrv", self._namesrv,
        ]  # fmt: skip
