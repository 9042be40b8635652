"""Commits of DelayMQ: which one is measured, and environments of any of them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import HarnessError
from subjects import Contender

ROOT = Path(__file__).resolve().parents[2]
HISTORY_PATH = ROOT / "docs" / "performance-history.md"
GIT_TIMEOUT_S = 60.0
INSTALL_TIMEOUT_S = 600.0
"""A download of all packages takes less than a minute; a registry that does not respond must not block a run."""
PINS, PACKAGE = "requirements/run.txt", "broker_image"
KERNELS = "broker_image/kernels/install.sh"
"""Program that builds and installs the compiled kernels, in commits that have them."""
_PIP = ("-m", "pip", "install", "-q", "--disable-pip-version-check")

State = dict[str, object]
"""``hash`` of the commit, and ``is_dirty``: whether files differ from it."""


def of_packages(taking_part: Sequence[Contender]) -> dict[str, State | None]:
    """Return the state of each contender's checkout, by label; None if DelayMQ is not installed from a checkout."""
    return {each.label: state(Path(each.source)) for each in taking_part if each.source}


def during(before: Mapping[str, State | None], after: Mapping[str, State | None]) -> dict[str, State | None]:
    """Return the states of a run. A checkout that was changed during the run counts as dirty."""
    return {
        label: None if found is None else {**found, "is_dirty": bool(found["is_dirty"]) or after.get(label) != found}
        for label, found in before.items()
    }


def state(package: Path) -> State | None:
    """Return the state of the checkout that contains this package; None if no checkout does.

    The page of the history does not count as a difference, since recording results changes it.
    """
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        root = Path(_git(package, "rev-parse", "--show-toplevel"))
        changed = _git(root, "status", "--porcelain", "--", ".", f":(exclude){HISTORY_PATH.relative_to(ROOT)}")
        return {"hash": _git(root, "rev-parse", "HEAD"), "is_dirty": bool(changed)}
    except HarnessError:
        return None


def resolve(name: str, root: Path = ROOT) -> str:
    """Return the hash of a commit; HarnessError if the name is not that of a commit with a broker."""
    try:
        found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except HarnessError as e:
        raise HarnessError(
            f"{name!r} is not a commit of {root}: use a hash, a branch or a tag that `git rev-parse` finds"
        ) from e
    for path in (PINS, f"{PACKAGE}/pyproject.toml"):
        try:
            _git(root, "cat-file", "-e", f"{found}:{path}")
        except HarnessError as e:
            raise HarnessError(f"commit {name} has no {path}: choose a newer commit") from e
    return found


def subject_line(commit: str, root: Path = ROOT) -> str:
    """Return the abbreviated hash and the subject of a commit."""
    return _git(root, "log", "-1", "--abbrev=12", "--format=%h %s", commit)


def install(commit: str, folder: Path, python: str, root: Path = ROOT) -> str:
    """Install a commit with its own pinned packages into a new environment in this folder.

    It gets its compiled kernels if it has any and they can be built here. Return the path of its interpreter.
    HarnessError if a step fails. The files are taken from Git's objects, so there is no worktree to remove afterwards.
    """
    tree, environment = folder / "tree", folder / "venv"
    tree.mkdir(parents=True)
    archive = folder / "tree.tar"
    _git(root, "archive", f"--output={archive}", commit, str(Path(PINS).parent), PACKAGE)
    _run(["tar", "-xf", str(archive), "-C", str(tree)], "cannot extract the commit")
    _run([python, "-m", "venv", str(environment)], f"{python} cannot create an environment")
    installed = str(environment / "bin" / "python")
    _run([installed, *_PIP, "--require-hashes", "-r", str(tree / PINS)], "cannot install the pinned packages")
    _run(
        [installed, *_PIP, "--no-deps", "--no-build-isolation", str(tree / PACKAGE)],
        f"cannot install {PACKAGE} of commit {commit[:12]}",
    )
    if (tree / KERNELS).exists():
        build = ["env", f"BUILD_FOLDER={folder / 'kernels'}", "sh", str(tree / KERNELS)]
        _run([*build, str(environment / "bin"), str(folder / "stamp")], "cannot build the compiled kernels")
    return installed


def _git(folder: Path, *arguments: str) -> str:
    return _run(["git", "-C", str(folder), *arguments], f"git {arguments[0]} failed", GIT_TIMEOUT_S)


def _run(command: Sequence[str], problem: str, timeout_s: float = INSTALL_TIMEOUT_S) -> str:
    """Return the output without surrounding spaces; HarnessError with the last line of its errors if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise HarnessError(f"{problem}: {e}") from e
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise HarnessError(f"{problem}: {reason}")
    return done.stdout.strip()
