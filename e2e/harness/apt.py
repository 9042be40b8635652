"""Debian packages, installed by apt-get while other processes may use it, or unpacked without being installed.

apt-get can wait only for dpkg's locks; it fails immediately if another process holds the locks of the package lists or
archives. This module waits for all of them, and logs the holder.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import locks

LOCK_PATH = Path("/run/delaymq-e2e-apt.lock")
"""Held by the run that installs. A machine has one set of packages, so all checkouts and caches share this lock."""

PROGRAM_TIMEOUT_S = 900.0
"""A first download takes a minute; a mirror that does not respond must not block a build."""
HELD_TIMEOUT_S = 600.0
"""An unattended upgrade takes minutes."""
INSTALL_TIMEOUT_S = 3600.0
"""Longer than another run may take: two programs, each with its wait for locks."""
PAUSE_S = 1.0
SHOWN_CHARS = 4000
"""Long enough to show why an installation failed, short enough to keep the reason visible."""

HELD = tuple(
    re.compile(pattern)
    for pattern in (
        r"Could not get lock (?P<lock>\S+)\. It is held by process (?P<pid>\d+)(?: \((?P<name>.+)\))?",
        r"Could not get lock (?P<lock>\S+) - open \(11: ",
        r"dpkg: error: (?P<lock>dpkg \w+ lock) was locked by another process with pid (?P<pid>\d+)",
        r"dpkg: error: (?P<lock>dpkg [\w ]+) is locked by another process",
    )
)
"""Two messages of apt-get (the second one of Debian 10), then two of dpkg (likewise)."""
INTERRUPTED = "dpkg was interrupted, you must manually run 'dpkg --configure -a'"


def possible() -> bool:
    """Return whether packages can be installed without asking anyone: as root on Debian."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(missing: Callable[[], Sequence[str]], *, error: type[Exception], log: locks.Log = locks.say) -> None:
    """Install the packages that ``missing`` returns, which is called once no other run is installing.

    Raises ``error`` if a lock is held for longer than HELD_TIMEOUT_S, or immediately if apt-get fails otherwise.
    """
    what = "another run that installs packages"
    with locks.locked(LOCK_PATH, log, what=what, timeout_s=INSTALL_TIMEOUT_S, error=error):
        packages = missing()
        if not packages:
            return
        log(f"installing {' '.join(packages)}")
        # An unneeded mirror may fail: the installation shows whether something is missing.
        updated = _apt_get(["update", "-q"], error, log)
        installed = _apt_get(["install", "-y", "-q", "--no-install-recommends", *packages], error, log)
    if installed.returncode != 0:
        failed = [done for done in (updated, installed) if done.returncode != 0]
        raise error("\n".join(_failure(done) for done in failed))


def unpack(package: str, folder: Path, *, error: type[Exception], log: locks.Log = locks.say) -> Path:
    """Return ``folder`` with the files of a package, downloaded on the first call; nothing is installed, without root.

    Raises ``error`` if the package is unavailable: no Debian, no mirror.
    """
    if folder.is_dir():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise error(f"apt-get cannot be found, so the Debian package {package} cannot be downloaded")
    lock = folder.with_name(f".{folder.name}.lock")
    what = f"another run that unpacks {package}"
    with locks.locked(lock, log, what=what, timeout_s=INSTALL_TIMEOUT_S, error=error):
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            log(f"downloading {package}")
            archive = _download(package, Path(scratch), error, log)
            unpacked = _run(["dpkg-deb", "--extract", str(archive), f"{scratch}/files"], error)
            if unpacked.returncode != 0:
                raise error(_failure(unpacked))
            (Path(scratch) / "files").rename(folder)
    return folder


def _download(package: str, folder: Path, error: type[Exception], log: locks.Log) -> Path:
    command = ["apt-get", "download", "-q", package]
    done = _run(command, error, folder=folder)
    if done.returncode != 0 and possible():
        # A machine may have no package lists yet, or outdated ones whose versions no longer exist.
        with locks.locked(LOCK_PATH, log, what="another run", timeout_s=INSTALL_TIMEOUT_S, error=error):
            _apt_get(["update", "-q"], error, log)
        done = _run(command, error, folder=folder)
    archives = list(folder.glob("*.deb"))
    if done.returncode != 0 or not archives:
        raise error(_failure(done))
    return archives[0]


def _apt_get(arguments: Sequence[str], error: type[Exception], log: locks.Log) -> "subprocess.CompletedProcess[str]":
    # apt-get would wait silently: its output is shown only when it fails.
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=0", *arguments]
    done = _past_locks(command, error, log)
    if done.returncode != 0 and INTERRUPTED in done.stdout:
        log("completing an interrupted installation")
        _past_locks(["dpkg", "--configure", "-a"], error, log)
        done = _past_locks(command, error, log)
    return done


def _past_locks(command: Sequence[str], error: type[Exception], log: locks.Log) -> "subprocess.CompletedProcess[str]":
    """Run a program, and repeat it as long as it fails because another process holds a lock."""
    deadline = time.monotonic() + HELD_TIMEOUT_S
    waiting_for = ""
    while True:
        done = _run(command, error)
        holder = _holder(done.stdout) if done.returncode != 0 else None
        if holder is None:
            return done
        if time.monotonic() > deadline:
            raise error(f"waited {HELD_TIMEOUT_S:.0f} s for {holder}; it is needed for: {shlex.join(command)}")
        if holder != waiting_for:
            log(f"waiting for {holder}")
            waiting_for = holder
        time.sleep(PAUSE_S)


def _holder(output: str) -> str | None:
    """Return the holder and the lock; None if the output mentions no held lock."""
    for pattern in HELD:
        if (found := pattern.search(output)) is None:
            continue
        told = found.groupdict()
        # A process outside this container is shown with the id 0.
        process = f"process {told['pid']}" if told.get("pid", "0") != "0" else "another process"
        name = f" ({told['name']})" if told.get("name") else ""
        return f"{process}{name}, which holds {told['lock']}"
    return None


def _run(
    command: Sequence[str], error: type[Exception], *, folder: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "LANGUAGE": ""}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=PROGRAM_TIMEOUT_S)
        except BaseException as e:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(e, subprocess.TimeoutExpired):
                raise error(f"timed out after {PROGRAM_TIMEOUT_S:.0f} s, killed: {shlex.join(command)}") from e
            raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def _failure(done: "subprocess.CompletedProcess[str]") -> str:
    return f"exit code {done.returncode} of: {shlex.join(done.args)}\n{done.stdout.strip()[-SHOWN_CHARS:]}"
