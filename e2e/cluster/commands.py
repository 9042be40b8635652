"""Execution of programs, always with a time limit, and with errors that contain the program's output.

``beside`` runs several jobs concurrently; if one fails or this process is stopped, so are the other jobs' programs.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from cluster.errors import ClusterError

Log = Callable[[str], None]

SHOWN_CHARS = 4000
"""Long enough to show why a build failed, short enough to keep the reason visible."""

# For concurrent jobs: the process groups of their programs, and whether all of them are to stop.
_groups: set[int] = set()
_ending = threading.Event()


def run(
    arguments: Sequence[str | Path],
    *,
    timeout_s: float,
    stdin_text: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    check: bool = True,
    cleans_up: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program until it exits and capture its output; ``environment`` replaces this process's environment.

    A program that ``cleans_up`` runs even if another job of ``beside`` has failed.

    Raises ClusterError if the program is missing, exceeds ``timeout_s`` (it is then killed with its children) or,
    unless ``check`` is false, exits with a non-zero code.
    """
    command = [str(argument) for argument in arguments]
    shown = shlex.join(command)
    if len(shown) > 200:
        shown = shown[:200] + "…"
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if stdin_text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=None if environment is None else dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    except FileNotFoundError as e:
        raise ClusterError(f"{command[0]} cannot be found; it is needed for: {shown}") from e
    with process:
        if not cleans_up:
            _groups.add(process.pid)
        try:
            if _ending.is_set() and not cleans_up:
                raise ClusterError(f"stopped because another part failed: {shown}")
            output, errors = process.communicate(stdin_text, timeout=timeout_s)
        except BaseException as e:
            kill_group(process.pid)
            if isinstance(e, subprocess.TimeoutExpired):
                raise ClusterError(f"timed out after {timeout_s:.0f} s, killed: {shown}") from e
            raise
        finally:
            _groups.discard(process.pid)
    if check and process.returncode != 0:
        said = "\n".join(part.strip() for part in (output, errors) if part.strip())
        raise ClusterError(f"exit code {process.returncode} of: {shown}\n{said[-SHOWN_CHARS:]}")
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def beside(*jobs: Callable[[], None]) -> None:
    """Run jobs concurrently, each in a thread, and wait for all of them.

    The first error stops the other jobs: their programs are killed, and they can start programs only to clean up.
    """
    try:
        with ThreadPoolExecutor(len(jobs)) as threads:
            try:
                for done in as_completed([threads.submit(job) for job in jobs]):
                    done.result()
            except BaseException:
                _ending.set()
                for group in tuple(_groups):
                    kill_group(group)
                raise
    finally:
        _ending.clear()


def output_of(arguments: Sequence[str | Path], *, timeout_s: float = 30) -> str | None:
    """Return a program's stripped output; None if it is missing, fails or times out."""
    try:
        return run(arguments, timeout_s=timeout_s).stdout.strip()
    except ClusterError:
        return None


def kill_group(process_group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_group, signal.SIGKILL)
