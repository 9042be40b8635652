"""Lint prose with Vale and the rules of .vale.ini: pages, and the comments, docstrings and messages in Python code.

Go compiles Vale from modules whose checksums are in vale/go.sum. With ``--build``, Vale is only compiled.
"""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
import tempfile
from pathlib import Path

from cluster.programs import why_no_go
from linters import ROOT, UnavailableError, cached, fetch_with, report, run

PINS_PATH = Path(__file__).resolve().with_name("vale")
VALE = "github.com/vale-cli/vale/v3/cmd/vale"
PROSE = ("*.md", "*.txt", "*.py", "*.yaml", "*.tpl")
"""Patterns of the files in Git that are linted."""
NOT_PROSE = (":!requirements", ":!*/golden/*.txt", ":!.ci/vale", ":!e2e/cluster/addons")
# Limits that only detect hangs; compiling takes two minutes of processor time and linting ten seconds:
BUILD_TIMEOUT_S = 1200.0
LINT_TIMEOUT_S = 300.0


def program() -> Path:
    """Return the path of Vale, and compile it if it is missing. Raises UnavailableError."""
    pins = b"".join((PINS_PATH / name).read_bytes() for name in ("go.mod", "go.sum"))
    folder = f"vale/{hashlib.sha256(pins).hexdigest()[:12]}-{sysconfig.get_platform()}"
    return cached(folder, "vale", build)


def build(folder: Path) -> None:
    """Compile Vale into ``folder``; Go's caches for it (a gigabyte) are deleted afterwards."""
    needed = re.search(r"^go (\d+)\.(\d+)", (PINS_PATH / "go.mod").read_text(), re.MULTILINE)
    assert needed is not None
    if reason := why_no_go((int(needed[1]), int(needed[2]))):
        raise UnavailableError(reason)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        fetch_with(
            ["go", "build", "-mod=readonly", "-modcacherw", "-trimpath", "-ldflags=-s -w", "-o", folder / "vale", VALE],
            PINS_PATH,
            BUILD_TIMEOUT_S,
            GOMODCACHE=f"{name}/modules",
            GOCACHE=f"{name}/build",
            GOFLAGS="",
            GOTOOLCHAIN="local",
        )


def lint() -> tuple[int, str]:
    """Return exit code and output of Vale. Raises UnavailableError."""
    vale = program()
    exit_code, output = run(["git", "ls-files", "--", *PROSE, *NOT_PROSE], ROOT, LINT_TIMEOUT_S)
    if exit_code != 0:
        raise UnavailableError(f"git cannot list the files: {output.strip()}")
    names = [name for name in output.splitlines() if (ROOT / name).is_file()]
    return run([vale, "--no-global", "--output=line", *names], ROOT, LINT_TIMEOUT_S)


def main(arguments: list[str]) -> int:
    return report("Prose", lint if arguments != ["--build"] else lambda: (0, f"{program()}\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
