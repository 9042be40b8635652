"""The machine's Chromium, driven by playwright; installed where that needs nobody's leave."""

import os
import shutil
import subprocess
from pathlib import Path

from harness.errors import HarnessError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VARIABLE = "DELAYMQ_CHROMIUM"
"""Names a program where none of these is on the path."""
PACKAGE = "chromium"
# A first download takes a minute; a mirror that does not answer must not hang a build.
APT_TIMEOUT_S = 600.0


def executable() -> Path:
    """Where Chromium is. Raises HarnessError, which says how to get it."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise HarnessError(f"{VARIABLE} names {named}, which cannot be run")
        return Path(named)
    for program in PROGRAMS:
        found = shutil.which(program)
        if found is not None:
            return Path(found)
    raise HarnessError(f"Chromium cannot be found: apt-get install {PACKAGE}, or name it with {VARIABLE}")


def prepare() -> Path:
    """The same, after installing it as root on Debian; call it while the machine can reach its mirror."""
    try:
        return executable()
    except HarnessError:
        if VARIABLE in os.environ or os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise
    _run(["apt-get", "update", "-q"])
    _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", PACKAGE])
    return executable()


def options() -> list[str]:
    """Arguments: Chromium's sandbox refuses to run as root, and small machines have little /dev/shm."""
    return ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=APT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{' '.join(command)} took longer than {APT_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()[-2000:]
        raise HarnessError(f"{' '.join(command)} failed with exit code {done.returncode}:\n{output}")
