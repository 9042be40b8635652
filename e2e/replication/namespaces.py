"""Network namespaces of one test, connected by a bridge, and faults of the network between them.

A sleeping process holds each namespace, so that a namespace ends with its processes, however the test ends. Each one
also has its own mounts. A thread can enter the network of a namespace: its sockets are then those of a host there.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from harness import apt
from harness.errors import HarnessError
from harness.processes import ServerProcess

CLONE_NEWNET = 0x40000000
START_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 30.0
# Program → Debian package that contains it:
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "iptables": "iptables", "unshare": "util-linux", "mount": "mount"}
SUBNET = "10.77.0"
CHANCE = ("--match", "statistic", "--mode", "random", "--probability")
LIMIT = ("burst", "16kb", "latency", "400ms")
TRIAL = f"""
mount -t tmpfs tmpfs /mnt
ip link add trial type bridge
ip link add trial0 type veth peer name trial1
iptables --wait --append INPUT {" ".join(CHANCE)} 0.5 --jump DROP
tc qdisc replace dev trial0 root tbf rate 1mbit {" ".join(LIMIT)}
"""
"""What a namespace needs; fails if a program or the kernel lacks it."""

ResultT = TypeVar("ResultT")


class NamespaceError(HarnessError):
    """Namespaces or their programs are not available; the message states the reason."""


def prepare() -> None:
    """Install missing programs if that requires no permission: as root on Debian, and try all that is needed.

    Raises NamespaceError if something is missing or not permitted.
    """
    if os.geteuid() != 0:
        raise NamespaceError("network namespaces with faults require root")
    if _missing():
        if not apt.possible():
            raise NamespaceError(f"missing: {', '.join(_missing())}; install these packages")
        apt.install(_missing, error=NamespaceError)
    _run(["unshare", "--net", "--mount", "--", "sh", "-e", "-c", TRIAL])


def _missing() -> list[str]:
    return sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})


class Node:
    """A namespace with one address. `index` is the last number of the address; 0: without one."""

    def __init__(self, name: str, index: int, folder: Path) -> None:
        self.name = name
        self.address = f"{SUBNET}.{index}" if index else ""
        command = ["unshare", "--net", "--mount", "--", "sleep", "infinity"]
        self._holder = ServerProcess(f"namespace {name}", command, folder / f"namespace-{name}.log", environment={})

    @property
    def pid(self) -> int:
        return self._holder.pid

    @property
    def launcher(self) -> list[str]:
        """Beginning of a command that runs in this namespace, with the process id of the command."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--"]

    def path(self, path: Path) -> Path:
        """Return a path outside by which a path within this namespace can be accessed."""
        return Path(f"/proc/{self.pid}/root{path}")

    def start(self) -> None:
        """Create the namespace."""
        self._holder.start()
        outside = os.readlink("/proc/self/ns/net")
        self._holder.wait_until(
            lambda: outside != os.readlink(f"/proc/{self.pid}/ns/net") and _program(self.pid) == "sleep",
            timeout_s=START_TIMEOUT_S,
        )

    def stop(self) -> None:
        """Remove the namespace."""
        self._holder.kill()

    def run(self, *command: str) -> None:
        """Run a command within. HarnessError if it fails."""
        _run([*self.launcher, *command])

    def enter(self) -> None:
        """Let the calling thread, and threads that it starts, use the network of this namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/{self.pid}/ns/net") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise NamespaceError(f"cannot enter {self.name}: {os.strerror(ctypes.get_errno())}")

    def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function in a thread with the network of this namespace, and return its result."""
        results: list[ResultT] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                self.enter()
                results.append(function())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, name=f"in {self.name}")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    # Faults. Each is ended by `heal`.

    def drop_from(self, others: Sequence[Node], share: float = 1.0) -> None:
        """Lose all packets from others, or a share of them at random."""
        self._drop("INPUT", "--source", others, share)

    def drop_to(self, others: Sequence[Node], share: float = 1.0) -> None:
        """Lose all packets to others, or a share of them at random."""
        self._drop("OUTPUT", "--destination", others, share)

    def _drop(self, chain: str, end: str, others: Sequence[Node], share: float) -> None:
        chance = [*CHANCE, f"{share:.4f}"] if share < 1 else []
        for other in others:
            self.run("iptables", "--wait", "--append", chain, end, other.address, *chance, "--jump", "DROP")

    def limit_bandwidth(self, bits_per_second: int) -> None:
        """Limit what this namespace sends."""
        rate = ("rate", f"{bits_per_second}bit")
        self.run("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate, *LIMIT)

    def heal(self) -> None:
        """End all faults of this namespace."""
        self.run("iptables", "--wait", "--flush")
        self.run("tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo_fast")


class Network:
    """Namespaces by name, as a context manager. Start it from a thread that lives as long: the kernel ends the
    namespaces with the thread.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._hub = Node("hub", 0, folder)
        self.nodes = {name: Node(name, index, folder) for index, name in enumerate(names, 1)}

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __enter__(self) -> Self:
        try:
            for node in (self._hub, *self.nodes.values()):
                node.start()
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in (*self.nodes.values(), self._hub):
            node.stop()

    def _connect(self) -> None:
        hub = self._hub
        ports = {name: f"port{index}" for index, name in enumerate(self.nodes)}
        _batch(hub, ["link add bridge type bridge", "link set bridge up"])
        for name, node in self.nodes.items():
            _run(["ip", "link", "add", ports[name], "netns", str(hub.pid), "type", "veth", "peer", "name", "eth0",
                  "netns", str(node.pid)])  # fmt: skip
            _batch(node, [f"address add {node.address}/24 dev eth0", "link set eth0 up", "link set lo up"])
        _batch(hub, [f"link set {port} master bridge up" for port in ports.values()])


def _batch(node: Node, lines: Sequence[str]) -> None:
    _run([*node.launcher, "ip", "-batch", "-"], "\n".join(lines))


def _run(command: Sequence[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise NamespaceError(f"exit code {done.returncode} of {' '.join(command)}: {done.stderr.strip()}")


def _program(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
