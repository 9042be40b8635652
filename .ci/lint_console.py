"""Lint the console's JavaScript with Biome and the rules of biome.json.

npm fetches Biome in the version pinned by biome/package-lock.json.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import sysconfig
from pathlib import Path

from linters import ROOT, UnavailableError, cached, fetch_with, report, run

PINS_PATH = Path(__file__).resolve().with_name("biome")
PINS = ("package.json", "package-lock.json")
PROGRAM = "node_modules/.bin/biome"
# Limits that only detect hangs; fetching takes a second and linting half a second:
FETCH_TIMEOUT_S = 120.0
LINT_TIMEOUT_S = 60.0

FETCH = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000")


def lint() -> tuple[int, str]:
    """Return exit code and output of Biome. Raises UnavailableError."""
    for needed in ("node", "npm"):
        if shutil.which(needed) is None:
            raise UnavailableError(f"{needed} is not on the PATH; install Node.js 20 or newer")
    digest = hashlib.sha256((PINS_PATH / "package-lock.json").read_bytes()).hexdigest()[:12]
    program = cached(f"biome/{digest}-{sysconfig.get_platform()}", PROGRAM, fetch)
    return run([program, "lint", "--error-on-warnings"], ROOT, LINT_TIMEOUT_S)


def fetch(folder: Path) -> None:
    """Install Biome into ``folder``."""
    for name in PINS:
        shutil.copy2(PINS_PATH / name, folder)
    fetch_with(FETCH, folder, FETCH_TIMEOUT_S)


def main() -> int:
    return report("The console's JavaScript", lint)


if __name__ == "__main__":
    sys.exit(main())
