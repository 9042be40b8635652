"""Lints the console's JavaScript with Biome, by the rules of biome.json.

npm fetches Biome once, as pinned by biome/package-lock.json, into ``$DELAYMQ_CACHE`` or ``~/.cache/delaymq``. Where
that is impossible (no Node, no registry) the check is skipped with a line that says why; with ``CI=true`` it fails.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.caching import cache_root

ROOT = Path(__file__).resolve().parent.parent
PINS_PATH = Path(__file__).resolve().with_name("biome")
PINS = ("package.json", "package-lock.json")
PROGRAM = "node_modules/.bin/biome"
# Installing takes a second, linting half of one: these bound a hang, not the work.
FETCH_TIMEOUT_S = 120.0
LINT_TIMEOUT_S = 60.0
FETCH = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000")
SHOWN_LINES = 5


class UnavailableError(Exception):
    """The linter cannot run on this machine; the message is a sentence without its full stop."""


def fetched_program(cache: Path, timeout_s: float = FETCH_TIMEOUT_S) -> Path:
    """Biome's launcher in ``cache``, fetched if it is missing. Raises UnavailableError."""
    for needed in ("node", "npm"):
        if shutil.which(needed) is None:
            raise UnavailableError(f"{needed} is not on the PATH; install Node.js 20 or newer")
    digest = hashlib.sha256((PINS_PATH / "package-lock.json").read_bytes()).hexdigest()[:12]
    folder = cache / "biome" / f"{digest}-{sysconfig.get_platform()}"
    if not (folder / PROGRAM).exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                _fetch(Path(name), timeout_s)
                (Path(name) / "installed").rename(folder)
        except OSError as error:
            # A run beside this one may have been faster; then its folder is in the way of ours.
            if not (folder / PROGRAM).exists():
                raise UnavailableError(f"{folder.parent} cannot be written: {error.strerror}") from error
    return folder / PROGRAM


def _fetch(folder: Path, timeout_s: float) -> None:
    """Leaves the packages in ``folder``/installed."""
    installed = folder / "installed"
    installed.mkdir()
    for name in PINS:
        shutil.copy2(PINS_PATH / name, installed)
    exit_code, output = run(FETCH, installed, timeout_s)
    if exit_code != 0:
        end = "\n  ".join(output.strip().splitlines()[:SHOWN_LINES])
        raise UnavailableError(f"npm cannot fetch it (exit code {exit_code}):\n  {end}")
    if not (installed / PROGRAM).exists():
        raise UnavailableError(f"npm fetched no {PROGRAM}")


def run(command: Sequence[str | Path], folder: Path, timeout_s: float) -> tuple[int, str]:
    """Exit code and output of ``command``. Raises UnavailableError after ``timeout_s``, when all of it is killed."""
    # A file, not a pipe: nobody waits for what a killed command's children still hold open.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
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


def main() -> int:
    try:
        program = fetched_program(cache_root())
        exit_code, output = run([program, "lint", "--error-on-warnings"], ROOT, LINT_TIMEOUT_S)
    except UnavailableError as error:
        if os.environ.get("CI") == "true":
            print(f"The console's JavaScript cannot be linted: {error}", file=sys.stderr)
            return 1
        print(f"Skipped linting the console's JavaScript: {error}")
        return 0
    print(output, end="")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
