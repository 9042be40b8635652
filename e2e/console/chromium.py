"""The machine's Chromium, controlled by playwright; installed automatically if that requires no permission."""

import os
import shutil
from pathlib import Path

from harness import apt
from harness.errors import HarnessError

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VARIABLE = "DELAYMQ_CHROMIUM"
"""Environment variable with a program to use if none of these is on the path."""
PACKAGE = "chromium"


def executable() -> Path:
    """Return the path of Chromium. Raises HarnessError, which states how to install it."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise HarnessError(f"{VARIABLE} names {named}, which cannot be run")
        return Path(named)
    if (found := _on_path()) is not None:
        return found
    raise HarnessError(f"Chromium cannot be found: apt-get install {PACKAGE}, or name it with {VARIABLE}")


def prepare() -> Path:
    """Return `executable`, installing it first as root on Debian; call it while the machine can reach its mirror."""
    try:
        return executable()
    except HarnessError:
        if VARIABLE in os.environ or not apt.possible():
            raise
    apt.install(lambda: [PACKAGE] if _on_path() is None else [], error=HarnessError)
    return executable()


def options() -> list[str]:
    """Return arguments: Chromium's sandbox refuses to run as root, and small machines have little /dev/shm."""
    return ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]


def _on_path() -> Path | None:
    found = (shutil.which(program) for program in PROGRAMS)
    return next((Path(path) for path in found if path is not None), None)
