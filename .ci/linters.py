"""Linters from other registries than Python's: pinned, and fetched into the cache once.

A linter that cannot run on a machine is skipped, with a line that states the reason; with ``CI=true`` the check fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.caching import cache_root

ROOT = Path(__file__).resolve().parent.parent
SHOWN_LINES = 5


class UnavailableError(Exception):
    """The linter cannot run on this machine; the message is a sentence without its full stop."""


def cached(place: str, program: str, fetch: Callable[[Path], None]) -> Path:
    """Return the path of ``program`` in the folder ``place`` of the cache, and fetch that folder if it is missing.

    ``fetch`` fills the empty folder that it is given. Raises UnavailableError.
    """
    folder = cache_root() / place
    if not (folder / program).exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                installed = Path(name) / "installed"
                installed.mkdir()
                fetch(installed)
                if not (installed / program).exists():
                    raise UnavailableError(f"{program} is not among what was fetched")
                installed.rename(folder)
        except OSError as error:
            # A concurrent run may have been faster: its folder is then in the way.
            if not (folder / program).exists():
                raise UnavailableError(f"{folder.parent} cannot be written: {error.strerror}") from error
    return folder / program


def fetch_with(command: Sequence[str | Path], folder: Path, timeout_s: float, **environment: str) -> None:
    """Run ``command`` in ``folder``. Raises UnavailableError with the first lines of its output when it fails."""
    exit_code, output = run(command, folder, timeout_s, **environment)
    if exit_code != 0:
        first_lines = "\n  ".join(output.strip().splitlines()[:SHOWN_LINES])
        raise UnavailableError(f"{command[0]} cannot fetch it (exit code {exit_code}):\n  {first_lines}")


def run(command: Sequence[str | Path], folder: Path, timeout_s: float, **environment: str) -> tuple[int, str]:
    """Return exit code and output of ``command``.

    After ``timeout_s``, kill its process group and raise UnavailableError.
    """
    # A file instead of a pipe: children of a killed command that keep it open delay nothing.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            exit_code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"{Path(command[0]).name} did not end within {timeout_s:g} s") from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return exit_code, output.read()


def report(subject: str, lint: Callable[[], tuple[int, str]]) -> int:
    """Print what ``lint`` finds in ``subject``, and return the exit code of the check."""
    try:
        exit_code, output = lint()
    except UnavailableError as error:
        if os.environ.get("CI") == "true":
            print(f"{subject} cannot be linted: {error}", file=sys.stderr)
            return 1
        print(f"Skipped linting {subject[0].lower()}{subject[1:]}: {error}")
        return 0
    print(output, end="")
    return exit_code
