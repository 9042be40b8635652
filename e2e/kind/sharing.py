"""One cluster for all processes of a test run (pytest-xdist), and turns for the tests that need it alone.

The first process that needs the cluster makes it and keeps it until no other one uses it. Without pytest-xdist there is
one process, which does the same.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import IO, Any

from cluster.errors import ClusterError
from cluster.paths import run_path
from harness import locks

# What is waited for has limits of its own: building images, making a cluster, the tests of the other processes.
TIMEOUT_S = 3600.0
USERS_LOCK = ".lab.users.lock"

Facts = dict[str, Any]


class Run:
    """The processes of one run of pytest, and what they know together.

    This process is a user of the cluster until `leave`.
    """

    def __init__(self) -> None:
        self._name = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()} {time.time_ns()}"
        self._path = run_path() / "lab.json"
        self._use: IO[str] | None = locks.take(run_path() / USERS_LOCK, shared=True)

    @contextmanager
    def preparing(self) -> Iterator[Facts]:
        """One process at a time. What it adds to the facts is known to the next one, unless the block raises."""
        with _locked(".lab.preparing.lock", "another process that prepares the cluster"):
            facts = self._read()
            yield facts
            self._path.write_text(json.dumps({"run": self._name, "facts": facts}))

    def leave(self) -> None:
        """The cluster may be deleted as far as this process is concerned; harmless when repeated."""
        if self._use is not None:
            self._use.close()
            self._use = None

    def wait_for_others(self) -> None:
        """Returns once all other processes have left. Raises ClusterError after an hour."""
        self.leave()
        with _locked(USERS_LOCK, "the other processes of this run"):
            self._path.unlink(missing_ok=True)

    def _read(self) -> Facts:
        if not self._path.exists():
            return {}
        written = json.loads(self._path.read_text())
        facts: Facts = written["facts"] if written["run"] == self._name else {}
        return facts


def turn(*, alone: bool) -> ExitStack:
    """Wait for the turn of a test; held until it is closed.

    It runs beside tests of other processes, or ``alone``: those who need that wait until no other test runs.
    """
    held = ExitStack()
    held.enter_context(_locked(".lab.turn.lock", "other tests", shared=not alone))
    return held


def loading(tag: str) -> AbstractContextManager[None]:
    """One process at a time loads an image into nodes."""
    return _locked(f".lab.{tag.replace('/', '_').replace(':', '_')}.load.lock", f"another process that loads {tag}")


def _locked(name: str, what: str, *, shared: bool = False) -> AbstractContextManager[None]:
    # Waiting is ordinary here, so nothing is said of it.
    return locks.locked(
        run_path() / name, lambda _: None, what=what, timeout_s=TIMEOUT_S, error=ClusterError, shared=shared
    )
