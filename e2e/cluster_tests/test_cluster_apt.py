import fcntl
import io
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from cluster import requirements
from cluster.errors import ClusterError
from console import chromium
from harness import apt, java, locks
from harness.errors import HarnessError

APT_GET = """\
import fcntl, os, sys
from pathlib import Path

folder = Path(__file__).parent.parent
action, *packages = [word for word in sys.argv[1:] if not word.startswith("-") and "=" not in word]
with (folder / "calls").open("a") as calls:
    print(action, *packages, os.environ["DEBIAN_FRONTEND"], file=calls)
for name in {"update": ["lists"], "install": ["dpkg", "archives"], "download": []}[action]:
    lock = os.open(folder / name, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pid = (folder / "holder").read_text()
        sys.exit(f"E: Could not get lock {folder / name}. It is held by process {pid} (unattended-upgr)")
if (folder / "interrupted").exists() and action == "install":
    sys.exit("E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem. ")
if (folder / f"{action}-fails").exists():
    sys.exit((folder / f"{action}-fails").read_text())
if action == "download":
    if (folder / "unknown").exists():
        sys.exit(f"E: Unable to locate package {packages[0]}")
    Path(f"{packages[0]}_1_amd64.deb").touch()
elif action == "update":
    (folder / "unknown").unlink(missing_ok=True)
else:
    for package in packages:
        (folder / "bin" / package).symlink_to(sys.executable)
"""
"""Prints the messages of apt-get 2.6 and takes its locks, below a private folder."""
DPKG_DEB = """\
import sys
from pathlib import Path

extract, archive, target = sys.argv[1:]
assert extract == "--extract" and Path(archive).exists()
Path(target).mkdir()
(Path(target) / "unpacked").write_text(Path(archive).name)
"""
DPKG = """\
import sys
from pathlib import Path

assert sys.argv[1:] == ["--configure", "-a"]
(Path(__file__).parent.parent / "interrupted").unlink()
"""
HOLDER = """\
import fcntl, os, sys

lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class Machine:
    """A machine with fake Debian programs only, and root's permissions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.on_wait: Callable[[], None] = lambda: None
        (folder / "bin").mkdir(parents=True)
        for name, source in (("apt-get", APT_GET), ("dpkg", DPKG), ("dpkg-deb", DPKG_DEB)):
            path = folder / "bin" / name
            path.write_text(f"#!{sys.executable}\n{source}")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def log(self, line: str) -> None:
        self.said.append(line)
        if line.startswith("waiting for"):
            self.on_wait()

    def hold(self, lock: str) -> "subprocess.Popen[str]":
        """Lock one of apt's files in another process, which releases it at the end of its input."""
        command = [sys.executable, "-c", HOLDER, str(self.folder / lock)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        (self.folder / "holder").write_text(str(holder.pid))
        return holder

    def calls(self, action: str) -> list[str]:
        calls = self.folder / "calls"
        return [line for line in calls.read_text().splitlines() if line.startswith(action)] if calls.exists() else []

    def missing(self) -> list[str]:
        return [] if (self.folder / "bin" / "zstd").exists() else ["zstd"]

    def install(self) -> None:
        apt.install(self.missing, error=ClusterError, log=self.log)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "machine")
    monkeypatch.setenv("PATH", str(machine.folder / "bin"))
    monkeypatch.setenv("DELAYMQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(chromium.VARIABLE, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(apt, "LOCK_PATH", tmp_path / "apt.lock")
    monkeypatch.setattr(apt, "PAUSE_S", 0.05)
    return machine


@pytest.fixture
def holding(machine: Machine) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Hold one of apt's locks until another process reports that it waits."""
    started: list[subprocess.Popen[str]] = []

    def release() -> None:
        for holder in started:
            holder.communicate()

    def hold(lock: str) -> "subprocess.Popen[str]":
        started.append(machine.hold(lock))
        machine.on_wait = release
        return started[-1]

    yield hold
    release()


@pytest.mark.parametrize("lock", ["lists", "archives", "dpkg"])
def test_install_waits_for_apt_lock_and_logs_its_holder_once(
    machine: Machine, holding: Callable[[str], "subprocess.Popen[str]"], lock: str
) -> None:
    holder = holding(lock)
    machine.install()
    assert not machine.missing()
    waits = [line for line in machine.said if line.startswith("waiting")]
    assert waits == [f"waiting for process {holder.pid} (unattended-upgr), which holds {machine.folder / lock}"]


class Listened(io.StringIO):
    """Substitute for standard error whose lines go to a log."""

    def __init__(self, log: locks.Log) -> None:
        super().__init__()
        self.log = log

    def write(self, text: str) -> int:
        if text.strip():
            self.log(text.strip())
        return len(text)


def install_java(machine: Machine) -> None:
    java.install_missing()


def install_chromium(machine: Machine) -> None:
    chromium.prepare()


def install_requirements(machine: Machine) -> None:
    requirements.install({"zstd": "zstd"}, machine.log)


CALLERS = {
    "java": (install_java, HarnessError),
    "chromium": (install_chromium, HarnessError),
    "requirements": (install_requirements, ClusterError),
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("lock", ["lists", "archives"])
def test_every_installer_waits_for_locks_that_apt_itself_does_not_wait_for(
    machine: Machine,
    holding: Callable[[str], "subprocess.Popen[str]"],
    monkeypatch: pytest.MonkeyPatch,
    caller: str,
    lock: str,
) -> None:
    monkeypatch.setattr(sys, "stderr", Listened(machine.log))
    holding(lock)
    CALLERS[caller][0](machine)
    assert any(line.startswith("waiting for process") for line in machine.said)
    assert all(line.endswith(" noninteractive") for line in machine.calls("install"))


@pytest.mark.parametrize("caller", CALLERS)
def test_lock_held_too_long_raises_callers_error_with_lock_and_holder(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caller: str
) -> None:
    monkeypatch.setattr(apt, "HELD_TIMEOUT_S", 0.2)
    install, error = CALLERS[caller]
    holder = machine.hold("archives")
    try:
        with pytest.raises(error, match=rf"process {holder.pid} \(unattended-upgr\), which holds \S+/archives"):
            install(machine)
    finally:
        holder.communicate()


def test_failure_other_than_a_lock_is_raised_immediately_with_output_of_apt(machine: Machine) -> None:
    (machine.folder / "update-fails").write_text("E: The mirror does not answer")
    (machine.folder / "install-fails").write_text("E: Unable to locate package zstd")
    with pytest.raises(ClusterError, match=r"(?s)mirror does not answer.*Unable to locate package zstd"):
        machine.install()
    assert len(machine.calls("install")) == 1


def test_failed_update_of_lists_does_not_prevent_installation(machine: Machine) -> None:
    (machine.folder / "update-fails").write_text("E: The mirror does not answer")
    machine.install()
    assert not machine.missing()


def test_concurrent_runs_install_once(machine: Machine) -> None:
    """The second waits for the first, which waits for apt's lock, and finds everything installed."""
    first_waits = threading.Event()
    said: list[str] = []
    holder = machine.hold("lists")
    machine.on_wait = first_waits.set

    def log(line: str) -> None:
        said.append(line)
        holder.communicate()

    first = threading.Thread(target=machine.install)
    first.start()
    assert first_waits.wait(30)
    apt.install(machine.missing, error=ClusterError, log=log)
    first.join(30)
    assert said == ["waiting for another run that installs packages"]
    assert machine.calls("install") == ["install zstd noninteractive"]


def test_interrupted_installation_is_completed_first(machine: Machine) -> None:
    (machine.folder / "interrupted").write_text("")
    machine.install()
    assert not machine.missing()
    assert "completing an interrupted installation" in machine.said


@pytest.mark.parametrize(
    ("output", "holder"),
    [
        (
            "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 12 (apt-get)\n"
            "E: Unable to lock directory /var/lib/apt/lists/",
            "process 12 (apt-get), which holds /var/lib/apt/lists/lock",
        ),
        (
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 12",
            "process 12, which holds /var/lib/dpkg/lock-frontend",
        ),
        (
            "E: Could not get lock /var/cache/apt/archives/lock. It is held by process 0",
            "another process, which holds /var/cache/apt/archives/lock",
        ),
        (
            "E: Could not get lock /var/lib/dpkg/lock - open (11: Resource temporarily unavailable)",
            "another process, which holds /var/lib/dpkg/lock",
        ),
        (
            "dpkg: error: dpkg database lock was locked by another process with pid 12\nNote: removing the lock file",
            "process 12, which holds dpkg database lock",
        ),
        (
            "dpkg: error: dpkg status database is locked by another process",
            "another process, which holds dpkg status database",
        ),
        (
            "E: Could not open lock file /var/lib/apt/lists/lock - open (13: Permission denied)\n"
            "E: Unable to lock directory /var/lib/apt/lists/",
            None,
        ),
        ("E: Could not get lock /var/lib/dpkg/lock - open (28: No space left on device)", None),
        ("E: Unable to locate package zstd", None),
    ],
)
def test_lock_holder_is_parsed_from_output_of_apt_and_dpkg(output: str, holder: str | None) -> None:
    assert apt._holder(output) == holder


def test_lock_file_removed_between_opening_and_locking_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two runs would hold the lock: one that of the removed file, one that of the current file."""
    path = tmp_path / "lock"
    flock = fcntl.flock
    removed: list[Path] = []

    def remove_first(file: IO[str], mode: int) -> None:
        if not removed:
            path.unlink()
            removed.append(path)
        flock(file, mode)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    lock = locks.take(path)
    assert lock is not None
    with lock:
        assert locks.take(path) is None


def test_lock_file_that_cannot_be_opened_raises_callers_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "lock"
    with (
        pytest.raises(HarnessError, match=re.escape(f"the lock file {path} cannot be opened")),
        locks.locked(path, lambda _: None, what="another run", timeout_s=1, error=HarnessError),
    ):
        pass


def test_package_is_unpacked_once_without_being_installed(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "prometheus"
    for _ in range(2):
        assert apt.unpack("prometheus", folder, error=ClusterError, log=machine.log) == folder
    assert (folder / "unpacked").read_text() == "prometheus_1_amd64.deb"
    assert machine.calls("download") == ["download prometheus noninteractive"]
    assert machine.calls("install") == []
    assert [path.name for path in folder.parent.iterdir() if path != folder] == [".prometheus.lock"]


def test_lists_are_updated_before_a_package_is_reported_as_unknown(machine: Machine, tmp_path: Path) -> None:
    (machine.folder / "unknown").touch()
    apt.unpack("prometheus", tmp_path / "cache" / "prometheus", error=ClusterError, log=machine.log)
    assert machine.calls("update") == ["update noninteractive"]


def test_unknown_package_is_named_for_users_other_than_root(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (machine.folder / "unknown").touch()
    with pytest.raises(ClusterError, match="Unable to locate package prometheus"):
        apt.unpack("prometheus", tmp_path / "cache" / "prometheus", error=ClusterError, log=machine.log)
    assert not (tmp_path / "cache" / "prometheus").exists()


def test_machine_without_apt_is_reported(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="apt-get cannot be found, so the Debian package prometheus"):
        apt.unpack("prometheus", tmp_path / "cache" / "prometheus", error=ClusterError, log=machine.log)
