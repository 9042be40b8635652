"""Cache of expensive artifacts, each built once and stored under a hash of its inputs.

An artifact is a folder. It is built in a draft folder, which is then renamed, so an interrupted run leaves no partial
artifact. A lock file prevents two runs from building the same artifact. A changed input changes the key of the artifact
and of its dependents, and only these are rebuilt.

Builds hold a shared lock. Files that they share (Go's caches, artifacts of other checkouts) are removed only under the
exclusive lock.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness import locks

from cluster import machine
from cluster.commands import Log
from cluster.errors import ClusterError
from cluster.paths import artifacts_path, cache_path

UNUSED_AFTER_S = 14 * 24 * 3600
"""Another checkout may still use an outdated artifact, so it is removed only if it was unused for this time."""
LOCK_TIMEOUT_S = 6 * 3600
"""A run that ended holds no lock, and every program of a run has a time limit. Six hours exceed the sum of the limits
of all parts of a node image: a longer wait means that the other run is suspended.
"""

DRAFT = ".draft-"
REMOVED = ".removed-"


@dataclass(frozen=True)
class Artifact:
    """An artifact; ``make(draft, log)`` fills the empty folder ``draft``."""

    name: str
    inputs: tuple["str | Path | Artifact", ...]
    """Inputs: text (versions, options), files and directories (their content), other artifacts."""
    make: Callable[[Path, Log], None]

    @cached_property
    def key(self) -> str:
        digest = hashlib.sha256(f"{self.name}\0{platform.machine()}\0".encode())
        for item in self.inputs:
            if isinstance(item, Artifact):
                digest.update(f"artifact {item.name} {item.key}\0".encode())
            elif isinstance(item, Path):
                digest.update(content_digest(item))
            else:
                digest.update(f"text {item}\0".encode())
        return digest.hexdigest()[:12]

    @property
    def path(self) -> Path:
        return artifacts_path() / f"{self.name}-{self.key}"

    @property
    def made(self) -> bool:
        return self.path.is_dir()

    def obtain(self, log: Log = print) -> Path:
        """Return the artifact's directory, built if it is missing. Raises ClusterError on failure."""
        if not self.made:
            with building(log), locked(lock_path(self.name), log, what=f"another run that builds {self.name}"):
                if not self.made:
                    self._make(log)
        with contextlib.suppress(PermissionError):  # another user's cache: only the owner removes unused artifacts
            os.utime(self.path)
        return self.path

    def _make(self, log: Log) -> None:
        log(f"{self.name}: building")
        started = time.monotonic()
        remove_drafts(self.name)
        draft = Path(tempfile.mkdtemp(prefix=f"{DRAFT}{self.name}-", dir=artifacts_path()))
        try:
            draft.chmod(0o755)
            self.make(draft, log)
            draft.rename(self.path)
        except OSError as e:  # the disk is full, or the cache belongs to another user
            raise ClusterError(f"{self.name} cannot be built: {e}") from e
        finally:
            remove_draft(draft)
        log(f"{self.name}: built in {time.monotonic() - started:.0f} s, {megabytes(self.path)} MB")


def content_digest(path: Path, *, leave_out: tuple[str, ...] = ()) -> bytes:
    """Return a digest of names, modes and contents of a file or of all files below a folder.

    Paths with a part that ends in one of ``leave_out`` are ignored.
    """
    if not path.exists():
        raise ClusterError(f"{path} is missing: the checkout is incomplete")
    digest = hashlib.sha256()
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    files = [
        file
        for file in found
        if (file.is_file() or file.is_symlink())
        and not any(part.endswith(leave_out) for part in file.relative_to(path.parent).parts if leave_out)
    ]
    for file in files:
        executable = bool(file.lstat().st_mode & 0o100)
        digest.update(f"{file.relative_to(path.parent)}\0{executable}\0".encode())
        digest.update(os.readlink(file).encode() if file.is_symlink() else file.read_bytes())
        digest.update(b"\0")
    return digest.digest()


def locked(
    path: Path, log: Log, *, what: str, timeout_s: float = LOCK_TIMEOUT_S, shared: bool = False
) -> AbstractContextManager[None]:
    """Hold a lock file; a process that has to wait logs it once. Raises ClusterError after ``timeout_s``."""
    return locks.locked(path, log, what=what, timeout_s=timeout_s, error=ClusterError, shared=shared)


def lock_path(name: str) -> Path:
    return artifacts_path() / f".{name}.lock"


def builds_lock_path() -> Path:
    return cache_path() / ".builds.lock"


def building(log: Log) -> AbstractContextManager[None]:
    """Protect files shared by builds from removal during the block."""
    return locked(builds_lock_path(), log, what="another run that removes shared files of builds", shared=True)


@contextmanager
def nobody_builds() -> Iterator[bool]:
    """Return whether no run is building; if so, builds wait for the end of the block."""
    lock = locks.take(builds_lock_path())
    if lock is None:
        yield False
        return
    with lock:
        yield True


@contextmanager
def scratch_folder(draft: Path) -> Iterator[Path]:
    """Provide a directory within the draft for temporary files, which is removed with the draft if a build is
    killed.
    """
    folder = Path(tempfile.mkdtemp(prefix=".scratch-", dir=draft))
    try:
        yield folder
    finally:
        remove_draft(folder)
    if folder.exists():
        raise ClusterError(f"{folder} cannot be removed")


def remove_drafts(name: str) -> None:
    """Remove leftovers of killed builds; requires the lock of ``name``."""
    for draft in artifacts_path().glob(f"{DRAFT}{name}-*"):
        remove_draft(draft)


def remove_all_drafts() -> None:
    """Remove drafts of killed builds, of any name; drafts of running builds are locked and kept."""
    names = {draft.name.removeprefix(DRAFT).rpartition("-")[0] for draft in artifacts_path().glob(f"{DRAFT}*-*")}
    for name in sorted(names):
        if (lock := locks.take(lock_path(name))) is not None:
            with lock:
                remove_drafts(name)


def remove_draft(folder: Path) -> None:
    """Remove a draft. Programs of a killed build may still run in it, and file systems may still be mounted.

    Raises ClusterError if one cannot be unmounted: removing files below it would remove them from the machine.
    """
    if not folder.exists():
        return
    machine.end_processes_in(folder)
    if left := machine.unmount_below(folder):
        raise ClusterError(f"{', '.join(left)} cannot be unmounted; unmount it, then remove {folder}")
    shutil.rmtree(folder, ignore_errors=True)


def remove_at_once(path: Path) -> None:
    """Rename a folder, then remove it: an interrupted removal leaves no folder that looks complete."""
    remains = path.with_name(f"{REMOVED}{path.name}-{os.getpid()}")
    path.rename(remains)
    shutil.rmtree(remains, ignore_errors=True)


def remove_remains(folder: Path) -> None:
    """Remove leftovers of an interrupted `remove_at_once` in ``folder``."""
    for remains in folder.glob(f"{REMOVED}*"):
        shutil.rmtree(remains, ignore_errors=True)


def remove_unused(wanted: set[str], *, unused_after_s: float = UNUSED_AFTER_S) -> list[str]:
    """Remove artifacts that are not in ``wanted`` (folder names) and long unused; return their names."""
    removed = []
    for folder in artifacts_path().glob("*-*"):
        if folder.name in wanted or folder.name.startswith("."):
            continue
        if time.time() - folder.stat().st_mtime >= unused_after_s:
            remove_at_once(folder)
            removed.append(folder.name)
    return sorted(removed)


def megabytes(path: Path) -> int:
    return (
        sum(item.lstat().st_size for item in path.rglob("*") if item.is_file() and not item.is_symlink()) // 1_000_000
    )
