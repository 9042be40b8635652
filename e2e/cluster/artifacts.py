"""Things that are expensive to make, each made once and kept under a name that is a hash of what it was made from.

An artifact is a folder. It is made in a draft folder and renamed, so an interrupted run leaves none that is half
done; a lock file keeps two runs from making the same one. A changed input gives another name, and only what depends on
it is made again.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cluster.commands import Log
from cluster.errors import ClusterError
from cluster.paths import artifacts_path

# Another checkout may still use a former recipe's result: it goes only when nobody took it for so long.
UNUSED_AFTER_S = 14 * 24 * 3600
# A cold build of Kubernetes takes 25 minutes on a slow machine; who waits longer waits for something stuck.
LOCK_TIMEOUT_S = 3600


@dataclass(frozen=True)
class Artifact:
    """``make(draft, log)`` fills the empty folder ``draft``."""

    name: str
    inputs: tuple["str | Path | Artifact", ...]
    """What the result depends on: text (versions, options), files and folders (their content), other artifacts."""
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
        """The artifact's folder, made now if it is missing. Raises ClusterError when it cannot be made."""
        if not self.made:
            with locked(artifacts_path() / f".{self.name}.lock", log, what=f"another run that builds {self.name}"):
                if not self.made:
                    self._make(log)
        os.utime(self.path)
        return self.path

    def _make(self, log: Log) -> None:
        log(f"{self.name}: building")
        started = time.monotonic()
        remove_drafts(self.name)
        draft = Path(tempfile.mkdtemp(prefix=f".draft-{self.name}-", dir=artifacts_path()))
        try:
            draft.chmod(0o755)
            self.make(draft, log)
            draft.rename(self.path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        log(f"{self.name}: built in {time.monotonic() - started:.0f} s, {megabytes(self.path)} MB")


def content_digest(path: Path, *, leave_out: tuple[str, ...] = ()) -> bytes:
    """Digest over names, modes and contents of a file or of all files below a folder.

    A path with a part that ends in one of ``leave_out`` does not count.
    """
    if not path.exists():
        raise ClusterError(f"{path} is missing: the checkout is not complete")
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


@contextmanager
def locked(path: Path, log: Log, *, what: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold a lock file; who has to wait says so once. Raises ClusterError when it takes longer than ``timeout_s``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    waiting = False
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as e:
                if time.monotonic() > deadline:
                    raise ClusterError(f"waited {timeout_s:.0f} s for {what} ({path} is locked)") from e
                if not waiting:
                    log(f"waiting for {what}")
                    waiting = True
                time.sleep(0.2)
        yield


def remove_drafts(name: str) -> None:
    """Remove what killed builds left; call it with the lock of ``name`` held."""
    for draft in artifacts_path().glob(f".draft-{name}-*"):
        shutil.rmtree(draft, ignore_errors=True)


def remove_unused(wanted: set[str], *, unused_after_s: float = UNUSED_AFTER_S) -> list[str]:
    """Remove artifacts that are not in ``wanted`` (folder names) and that nobody took for long; gives their names."""
    removed = []
    for folder in artifacts_path().glob("*-*"):
        if folder.name in wanted or folder.name.startswith("."):
            continue
        if time.time() - folder.stat().st_mtime >= unused_after_s:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return sorted(removed)


def megabytes(path: Path) -> int:
    return (
        sum(item.lstat().st_size for item in path.rglob("*") if item.is_file() and not item.is_symlink()) // 1_000_000
    )
