"""Changes that a daemon and its nodes make on the machine itself, recorded before they are made and reverted
afterwards.

They are recorded in a file in DAEMON_RUN_PATH, so the next run can restore the machine after a killed run.
"""

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster import firewall
from cluster.commands import Log, kill_group, run
from cluster.errors import ClusterError
from cluster.paths import DAEMON_RUN_PATH

STATE_PATH = DAEMON_RUN_PATH / "before.json"
SYSTEMD_HIERARCHY = Path("/sys/fs/cgroup/systemd")
MOUNTS_PATH = Path("/proc/self/mounts")

SYSCTLS = (
    "net.ipv4.ip_forward",
    "net.ipv6.conf.all.forwarding",
    "fs.inotify.max_user_instances",
    "vm.overcommit_memory",
    "kernel.panic",
    "kernel.panic_on_oops",
)
"""The daemon enables forwarding; kubelet in a node sets the other three for the whole machine."""
INOTIFY_INSTANCES = 1024
"""Every node's systemd, containerd and kubelet use some; 128, a common default, suffices for only one node."""
CONTAINERS_CPU_PATH = Path("/sys/fs/cgroup/cpu/docker")
CONTAINERS_CPU_SHARES = 2 * 1024
"""Linux gives each session of processes as much processor time as all containers together. A test's server is a
session, but a whole cluster is not: while other tests run, it starves unless its share is increased.
"""


@dataclass(frozen=True)
class Before:
    """State of the machine before the changes."""

    boot_id: str
    sysctls: dict[str, str]
    rules: list[str]
    mounted_systemd_hierarchy: bool
    """Whether the hierarchy was missing and will be mounted by us."""


def remember() -> Before:
    """Record the machine's state, unless the file of an earlier run still exists, which has the original state."""
    if before := recall():
        return before
    before = Before(
        boot_id=_boot_id(),
        sysctls={name: value for name in SYSCTLS if (value := _sysctl(name)) is not None},
        rules=firewall.snapshot(),
        mounted_systemd_hierarchy=_needs_systemd_hierarchy(),
    )
    DAEMON_RUN_PATH.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = STATE_PATH.with_suffix(".new")
    draft.write_text(json.dumps(asdict(before)))
    draft.rename(STATE_PATH)
    return before


def recall() -> Before | None:
    """Return the state recorded since the last boot; None if this user has nothing to restore."""
    try:
        before = Before(**json.loads(STATE_PATH.read_text()))
    except (FileNotFoundError, PermissionError):
        return None
    except (ValueError, TypeError) as e:
        raise ClusterError(f"{STATE_PATH} cannot be read ({e}); stop remaining test daemons, then delete it") from e
    return before if before.boot_id == _boot_id() else None


def prepare(before: Before) -> None:
    """Change the machine as nodes require."""
    if before.mounted_systemd_hierarchy and not os.path.ismount(SYSTEMD_HIERARCHY):
        # systemd in a node requires this hierarchy; Docker passes every mounted one to containers.
        SYSTEMD_HIERARCHY.mkdir(exist_ok=True)
        run(["mount", "-t", "cgroup", "-o", "none,name=systemd", "cgroup", SYSTEMD_HIERARCHY], timeout_s=10)
    instances = _sysctl("fs.inotify.max_user_instances")
    if instances is not None and int(instances) < INOTIFY_INSTANCES:
        _set_sysctl("fs.inotify.max_user_instances", str(INOTIFY_INSTANCES))
    if CONTAINERS_CPU_PATH.parent.is_dir():  # control groups of version 1; with version 2, sessions are in groups too
        CONTAINERS_CPU_PATH.mkdir(exist_ok=True)
        (CONTAINERS_CPU_PATH / "cpu.shares").write_text(str(CONTAINERS_CPU_SHARES))


def put_back(before: Before, log: Log) -> None:
    """Revert all changes; log those that could not be reverted. No process of a cluster may be running any more."""
    # The kernel needs some time to remove the network of a killed container.
    listed = run(["ip", "-o", "link", "show", "master", firewall.BRIDGE], timeout_s=10, check=False).stdout
    ports = [line.split(": ")[1].partition("@")[0] for line in listed.splitlines()]
    for link in (*ports, firewall.BRIDGE):
        run(["ip", "link", "delete", link], timeout_s=10, check=False)
    for command in firewall.restore(before.rules):
        log(f"not reverted, remove it manually: {command}")
    for name, value in before.sysctls.items():
        if _sysctl(name) != value:
            _set_sysctl(name, value)
    remove_control_groups()
    if before.mounted_systemd_hierarchy and os.path.ismount(SYSTEMD_HIERARCHY):
        run(["umount", SYSTEMD_HIERARCHY], timeout_s=10, check=False)
    STATE_PATH.unlink(missing_ok=True)


def unmount_below(folder: Path) -> list[str]:
    """Unmount file systems left by a killed daemon or build below a folder, deepest first; return those that remain."""
    for mount in _mounts_below(folder):
        run(["umount", "-l", mount], timeout_s=10, check=False, cleans_up=True)
    return _mounts_below(folder)


def _mounts_below(folder: Path) -> list[str]:
    if not MOUNTS_PATH.exists():
        return []
    mounts = [line.split(" ")[1].encode().decode("unicode_escape") for line in MOUNTS_PATH.read_text().splitlines()]
    resolved = folder.resolve()  # the kernel names mounts by their real paths
    return sorted((mount for mount in mounts if Path(mount).is_relative_to(resolved)), key=len, reverse=True)


def thaw() -> None:
    """Thaw frozen containers: a node killed while runc sets up a container leaves it frozen and unstoppable."""
    for state in Path("/sys/fs/cgroup/freezer/docker").glob("**/freezer.state"):
        try:
            if state.read_text().strip() != "THAWED":
                state.write_text("THAWED")
        except OSError:
            continue  # it ended meanwhile


def remove_control_groups() -> None:
    """Remove empty groups left by Docker in every hierarchy; the kernel refuses to remove those with processes."""
    for hierarchy in Path("/sys/fs/cgroup").glob("*/docker"):
        for folder, _, _ in os.walk(hierarchy, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                continue


def end_process(pid: int, *, timeout_s: float) -> bool:
    """Send SIGTERM, then SIGKILL if the process has not ended in time; return whether SIGTERM sufficed."""
    for sent, patience_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, 10.0)):
        try:
            os.kill(pid, sent)
        except ProcessLookupError:
            return True
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not running(pid):
                return sent == signal.SIGTERM
            time.sleep(0.05)
    raise ClusterError(f"process {pid} cannot be stopped")


def running(pid: int) -> bool:
    """Return whether the process is alive; zombies are not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def processes_with(argument: str) -> list[int]:
    """Return processes that have a command line argument with this prefix."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(text.startswith(argument) for text in arguments):
            found.append(int(folder.name))
    return found


def end_processes_in(folder: Path) -> None:
    """Stop programs, with their children, that work in a folder, as shown by the start of one of their arguments."""
    for pid in {*processes_with(f"{folder}/"), *_processes_rooted_in(folder)} - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # A program that `run` started leads a group with all its children.
            if os.getpgid(pid) == pid:
                kill_group(pid)
            end_process(pid, timeout_s=0)


def _processes_rooted_in(folder: Path) -> list[int]:
    """Return processes whose root is a folder below this one, such as those of debootstrap."""
    found = []
    resolved = folder.resolve()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "root").readlink().is_relative_to(resolved):
                found.append(int(process.name))
    return found


def _needs_systemd_hierarchy() -> bool:
    version_1 = Path("/sys/fs/cgroup/memory").is_dir() or Path("/sys/fs/cgroup/pids").is_dir()
    return version_1 and "name=systemd" not in Path("/proc/self/cgroup").read_text()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name.replace(".", "/")).read_text().strip()
    except OSError:
        return None


def _set_sysctl(name: str, value: str) -> None:
    try:
        Path("/proc/sys", name.replace(".", "/")).write_text(value)
    except OSError as e:
        raise ClusterError(f"the kernel setting {name} cannot be set to {value}: {e}") from e
