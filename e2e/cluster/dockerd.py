"""A private Docker daemon for machines without a running one; requires root on Linux.

It has its own data, socket and containerd, no default bridge, and one network (``kind``) whose packets cannot leave
the machine. `down` restores the machine, also after a killed run. Users of the daemon hold a lease (a shared lock that
ends with the process), so the end of one run does not stop the daemon while another run uses it.
"""

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cluster import firewall, machine, requirements
from cluster.artifacts import locked
from cluster.commands import Log, output_of
from cluster.daemon import Daemon, ordinary
from cluster.errors import ClusterError
from cluster.paths import DAEMON_RUN_PATH, FILES_PATH, docker_data_path, log_path

SOCKET_PATH = DAEMON_RUN_PATH / "docker.sock"
PID_PATH = DAEMON_RUN_PATH / "docker.pid"
EXEC_ROOT_PATH = DAEMON_RUN_PATH / "exec"
BIN_PATH = DAEMON_RUN_PATH / "bin"
CONFIGURATION_PATH = DAEMON_RUN_PATH / "daemon.json"
RUNC_PATH = DAEMON_RUN_PATH / "runc-without-sys-resource"
LOCK_PATH = Path("/run/delaymq-e2e.lock")
LEASE_PATH = Path("/run/delaymq-e2e.users")

NETWORK = "kind"

BUILD_CACHE = "4GB"
"""Cache of unchanged build steps; every change of the sources adds 100 MB, and Spark alone takes 1 GB."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOCK_TIMEOUT_S = 900.0
"""Longer than removing the nodes of a killed run and restarting the daemon take on a slow machine."""
ANOTHER_RUN = "another run that starts or stops Docker"
CAP_SYS_RESOURCE = 24

_leases: list[IO[str]] = []


def current() -> Daemon | None:
    """Return the running daemon: the machine's if there is one, otherwise ours; None if none responds."""
    return ordinary() or (_own() if _answers() else None)


def up(log: Log = print) -> Daemon:
    """Return a running daemon, starting ours if there is no other; this process holds a lease until it exits or `down`.

    Raises ClusterError if the daemon cannot be started.
    """
    if daemon := ordinary():
        return daemon
    if reason := why_not():
        raise ClusterError(reason)
    if not _answers():
        # Before locking: others should wait for the start of a daemon, not for a download.
        requirements.install(requirements.DAEMON_PROGRAMS, log)
    with locked(LOCK_PATH, log, what=ANOTHER_RUN, timeout_s=LOCK_TIMEOUT_S):
        if not _answers():
            _remove_remains(log)
            _start(log)
        daemon = _own()
        _make_network(daemon)
        firewall.guard()
        lease = LEASE_PATH.open("w")
        fcntl.flock(lease, fcntl.LOCK_SH)
        _leases.append(lease)
    return daemon


def down(log: Log = print, *, force: bool = False) -> bool:
    """Stop our daemon and restore the machine; also after a killed run, and without effect if there is nothing to do.

    Return False if another process still uses the daemon: it keeps running then, unless ``force``.
    """
    while _leases:
        _leases.pop().close()
    if os.geteuid() != 0 or machine.recall() is None:
        return True
    with locked(LOCK_PATH, log, what=ANOTHER_RUN, timeout_s=LOCK_TIMEOUT_S):
        with LEASE_PATH.open("w") as lease:
            try:
                fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not force:
                    log("another run still uses Docker: it keeps running")
                    return False
        started = time.monotonic()
        _remove_remains(log)
        log(f"Docker stopped and the machine restored in {time.monotonic() - started:.1f} s")
    return True


@contextmanager
def session(log: Log = print) -> Iterator[Daemon]:
    """Provide a daemon for the block; ours is stopped at its end unless others use it."""
    try:
        yield up(log)
    finally:
        down(log)


def why_not() -> str | None:
    """Return the reason if no daemon responds and none can be started here, otherwise None."""
    if _answers() or ordinary():
        return None
    if os.uname().sysname != "Linux":
        return "no Docker daemon is running: start Docker"
    if os.geteuid() != 0:
        return "no Docker daemon is running, and only root can start one: start Docker, or run this as root"
    missing = requirements.missing_packages(requirements.DAEMON_PROGRAMS)
    if missing and shutil.which("apt-get") is None:
        return f"no Docker daemon is running, and these are missing to start one: {', '.join(missing)}; install Docker"
    return None


def _own() -> Daemon:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DOCKER_CONTEXT", "DOCKER_TLS_VERIFY")
    }
    # A user's configuration may name credential helpers and other daemons.
    environment |= {"DOCKER_HOST": f"unix://{SOCKET_PATH}", "DOCKER_CONFIG": str(DAEMON_RUN_PATH / "client")}
    environment["PATH"] = f"{BIN_PATH}{os.pathsep}{environment.get('PATH', os.defpath)}"
    if (BIN_PATH / "docker").exists():
        # This client builds with the daemon's own BuildKit; a client of another version would require a plugin.
        environment["DOCKER_BUILDKIT"] = "1"
    return Daemon(environment, own=True)


def _answers() -> bool:
    # The folder of root's daemon is closed to other users; for them no daemon of these tests responds.
    return os.path.exists(SOCKET_PATH) and bool(
        output_of(["docker", "-H", f"unix://{SOCKET_PATH}", "version", "-f", "{{.Server.Version}}"])
    )


def _start(log: Log) -> None:
    log("starting Docker")
    before = machine.remember()
    for folder in (BIN_PATH, EXEC_ROOT_PATH, DAEMON_RUN_PATH / "client", docker_data_path(), log_path()):
        folder.mkdir(parents=True, exist_ok=True)
    CONFIGURATION_PATH.write_text(json.dumps({"builder": {"gc": {"enabled": True, "defaultKeepStorage": BUILD_CACHE}}}))
    shutil.copy2(FILES_PATH / RUNC_PATH.name, RUNC_PATH)
    _link_client()
    machine.prepare(before)
    command = ["dockerd", "--config-file", CONFIGURATION_PATH, "--data-root", docker_data_path()]
    command += ["--exec-root", EXEC_ROOT_PATH, "--pidfile", PID_PATH, "-H", f"unix://{SOCKET_PATH}", "--bridge", "none"]
    if not _has_sys_resource():
        command += ["--add-runtime", f"reduced={RUNC_PATH}", "--default-runtime", "reduced"]
        if "--oom-score-adjust" in (output_of(["dockerd", "--help"]) or ""):
            command += ["--oom-score-adjust", "0"]
    log_file = log_path() / "dockerd.log"
    with log_file.open("w") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers():
        if process.poll() is not None or time.monotonic() > deadline:
            said = log_file.read_text(errors="replace")[-3000:]
            _remove_remains(log)
            raise ClusterError(f"dockerd does not start; the end of its log:\n{said}")
        time.sleep(0.1)


def _link_client() -> None:
    """Put the client that belongs to the daemon first on the PATH, if there is one: it builds without a plugin."""
    link = BIN_PATH / "docker"
    link.unlink(missing_ok=True)
    daemon = shutil.which("dockerd")
    if daemon is None:
        return
    version = _version(daemon)
    beside = [Path(folder) / "docker" for folder in ("/usr/bin", *os.environ.get("PATH", "").split(os.pathsep))]
    for client in beside:
        if client.exists() and version is not None and _version(client) == version:
            link.symlink_to(client)
            return


def _version(program: str | Path) -> str | None:
    """Extract `20.10.24+dfsg1` from `Docker version 20.10.24+dfsg1, build 297e128`."""
    words = (output_of([program, "--version"]) or "").replace(",", " ").split()
    return words[2] if len(words) > 2 else None


def _make_network(daemon: Daemon) -> None:
    """Create the network of the nodes. kind would use IPv6, for which Docker enables forwarding machine-wide."""
    if daemon.docker("network", "inspect", NETWORK, check=False).returncode == 0:
        return
    options = [
        f"com.docker.network.bridge.name={firewall.BRIDGE}",
        "com.docker.network.bridge.enable_ip_masquerade=false",
    ]
    words = [word for option in options for word in ("-o", option)]
    said = ""
    for subnet in firewall.SUBNETS:
        made = daemon.docker("network", "create", "-d", "bridge", "--subnet", subnet, *words, NETWORK, check=False)
        if made.returncode == 0:
            return
        said = made.stderr.strip()
    raise ClusterError(f"no network for the nodes can be created; the last attempt, {firewall.SUBNETS[-1]}: {said}")


def _remove_remains(log: Log) -> None:
    """Remove our daemon, its containers, mounts and rules, whatever their state."""
    before = machine.recall()
    if _answers():
        daemon = _own()
        machine.thaw()
        containers = daemon.docker("ps", "-aq").stdout.split()
        if containers:
            daemon.docker("rm", "-fv", *containers, timeout_s=180, check=False)
        daemon.docker("network", "rm", NETWORK, check=False)
    if (pid := _daemon_pid()) is not None:
        machine.end_process(pid, timeout_s=STOP_TIMEOUT_S)
    _end_orphans()
    machine.unmount_below(EXEC_ROOT_PATH)
    machine.unmount_below(docker_data_path())
    if before is not None:
        machine.put_back(before, log)
    if os.geteuid() == 0:
        shutil.rmtree(DAEMON_RUN_PATH, ignore_errors=True)


def _daemon_pid() -> int | None:
    """Return the daemon's process id, if that process is a dockerd started by these tests."""
    try:
        pid = int(PID_PATH.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return next(iter(machine.processes_with(f"unix://{SOCKET_PATH}")), None)
    return pid if str(SOCKET_PATH).encode() in command else None


def _end_orphans() -> None:
    """Stop programs that outlive a killed daemon: its containerd, and the containers with their shims."""
    machine.thaw()
    for pid_file in EXEC_ROOT_PATH.glob("containerd/daemon/io.containerd.runtime.v2.task/*/*/init.pid"):
        try:
            pid = int(pid_file.read_text())
            groups = Path(f"/proc/{pid}/cgroup").read_text()
        except (OSError, ValueError):
            continue
        # The process id may have been reused by now.
        if pid_file.parent.name in groups:
            machine.end_process(pid, timeout_s=0)
    for pid in machine.processes_with(str(EXEC_ROOT_PATH)):
        machine.end_process(pid, timeout_s=5)


def _has_sys_resource() -> bool:
    status = Path("/proc/self/status").read_text()
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd"))
    return bool(int(bounding, 16) >> CAP_SYS_RESOURCE & 1)
