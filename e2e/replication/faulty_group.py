"""A group whose members, etcd and clients are in namespaces of their own, with a relay on the links of each member."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from delaymq.replication import Record
from delaymq.server.registers import RegisterError
from harness.commitlog import log_end
from harness.processes import ServerProcess
from registers.etcd_processes import EtcdCluster
from replication.members import NAMES, member_command, read_record, wait_until
from replication.namespaces import Network, Node
from replication.relay import NONE, Relay

ETCD, CLIENT, TEST = "etcd", "client", "test"
PORT, HTTP_PORT = 10_911, 8_080
HTTP = f"http://127.0.0.1:{HTTP_PORT}"
HTTP_TIMEOUT_S = 30.0
SMALL_DISK = NAMES[-1]
"""Member whose store is on a disk of its own, which the test can fill."""
DISK_BYTES, BALLAST_BYTES = 48 << 20, 1 << 12
CLOCK_PATH = Path(__file__).resolve().parent / "shifted_clock"


@dataclass(frozen=True, kw_only=True)
class Lead:
    """What a member alone may have stored: the others had less of its log when they lost it."""

    host: str
    from_s: float
    until_s: float
    """Monotonic times between which it may have stored something without them."""
    ends: dict[str, int]
    """Ends of the others' logs at the beginning of the fault, or a little earlier."""
    is_killed: bool
    """Whether its process ended then. Otherwise, it may take itself for the master for a while longer."""


class FaultyGroup:
    """The group, as a context manager in a thread that has entered the namespace TEST.

    `disk_bytes` is the size of the disk of SMALL_DISK, in memory.
    """

    def __init__(
        self,
        network: Network,
        etcd_program: Path,
        folder: Path,
        seed: str,
        *,
        clock_shifts_ms: Mapping[str, int] | None = None,
        disk_bytes: int = DISK_BYTES,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.network = network
        self.folder = folder
        self._disk_bytes = disk_bytes
        self.addresses = {name: (network[name].address, PORT) for name in NAMES}
        node = network[ETCD]
        self.etcd = EtcdCluster(etcd_program, folder, host=node.address, launcher=node.launcher)
        self.relays = {
            name: Relay(network[name], {each: at for each, at in self.addresses.items() if each != name}, seed + name)
            for name in NAMES
        }
        shifts = clock_shifts_ms or {}
        self.leads: list[Lead] = []
        self.processes = {name: self._member(name, settings or {}, shifts.get(name, 0)) for name in NAMES}

    def _member(self, name: str, settings: Mapping[str, str], shift_ms: int) -> ServerProcess:
        addresses = {name: self.addresses[name], **self.relays[name].addresses}
        command = member_command(name, self.folder, addresses, self.etcd.urls, HTTP_PORT, settings)
        environment = {"PYTHONPATH": str(CLOCK_PATH), "CLOCK_SHIFT_MS": str(shift_ms)} if shift_ms else {}
        launcher = self.network[name].launcher
        return ServerProcess(name, [*launcher, *command], self.folder / f"{name}.log", environment=environment)

    def __enter__(self) -> Self:
        try:
            for name in NAMES:
                (self.folder / name).mkdir()
            disk = ["-t", "tmpfs", "-o", f"size={self._disk_bytes}", "tmpfs", str(self.folder / SMALL_DISK)]
            self.network[SMALL_DISK].run("mount", *disk)
            self.etcd.__enter__()
            for relay in self.relays.values():
                relay.begin()
            for process in self.processes.values():
                process.start()
            self.wait_until_in_sync("at the start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for relay in self.relays.values():
            relay.stop()
        self.etcd.__exit__()

    def store(self, name: str) -> Path:
        """Return the path by which the store of a member can be read."""
        return self.network[name].path(self.folder / name)

    def node(self, name: str) -> Node:
        return self.network[name]

    def others(self, name: str) -> list[Node]:
        """Return the nodes of the other members."""
        return [self.network[each] for each in NAMES if each != name]

    # Orders and the state of members, over HTTP in their namespaces.

    def get(self, name: str, path: str) -> Any:
        """Return the response of a member to a GET request. OSError."""
        return self.node(name).call(lambda: _answered(urllib.request.Request(f"{HTTP}{path}")))

    def post(self, name: str, path: str, body: object) -> Any:
        """Return the response of a member to a POST request. OSError."""
        request = urllib.request.Request(f"{HTTP}{path}", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        return self.node(name).call(lambda: _answered(request))

    def is_master(self, name: str) -> bool:
        """Return whether a member acts as the master."""
        with contextlib.suppress(OSError):
            return bool(self.get(name, "/api/v1/replication")["role"] == "Master")
        return False

    def switch_over(self, target: str) -> None:
        """Let a member take over by an order, unless it is the master."""
        before = self.record()
        if before.master != target:
            order = {"target": target, "epoch": before.epoch}
            self.post(before.master, "/api/v1/replication/switchover", order)
            wait_until(lambda: self.is_master(target), "the target of a switchover does not take over")
            self.wait_until_in_sync("after a switchover")

    # Register.

    def record(self) -> Record:
        """Return the record of the group. RegisterError."""
        record = read_record(self.etcd.urls)
        assert record is not None, "the register contains no record"
        return record

    def is_in_sync(self) -> bool:
        """Return whether all members are in sync; not if etcd does not respond."""
        with contextlib.suppress(RegisterError):
            record = read_record(self.etcd.urls)
            return record is not None and bool(record.master) and len(record.in_sync) == len(NAMES)
        return False

    def wait_until_in_sync(self, when: str) -> None:
        wait_until(self.is_in_sync, f"not all members are in sync {when}")

    # Faults.

    def heal(self) -> None:
        """End all faults, and start what was killed."""
        for node in self.network.nodes.values():
            node.heal()
        for relay in self.relays.values():
            relay.disturbance = NONE
        self.empty_disk()
        for process in self.processes.values():
            if not process.is_running:
                process.start()

    def kill(self, name: str) -> None:
        """Kill a member."""
        with self.alone(name, is_killed=True):
            self.processes[name].kill()

    @contextlib.contextmanager
    def alone(self, name: str, *, is_killed: bool = False) -> Iterator[None]:
        """Note what a member may store alone in this context. It begins when the fault does."""
        ends = {each: log_end(self.store(each)) for each in NAMES if each != name}
        from_s = time.monotonic()
        yield
        host, until_s = self.addresses[name][0], time.monotonic()
        self.leads.append(Lead(host=host, from_s=from_s, until_s=until_s, ends=ends, is_killed=is_killed))

    def fill_disk(self) -> None:
        """Fill the small disk, to which its member writes meanwhile."""
        with (self.store(SMALL_DISK) / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(BALLAST_BYTES)):
                pass

    def empty_disk(self) -> None:
        """Remove what filled the small disk."""
        (self.store(SMALL_DISK) / "ballast").unlink(missing_ok=True)

    # The end.

    def settle(self) -> None:
        """Wait until all members have the same log, then end them."""
        wait_until(lambda: len({log_end(self.store(name)) for name in NAMES}) == 1, "the logs do not become equal")
        for process in self.processes.values():
            process.kill()  # a master that is stopped would hand over, and begin another epoch

    def differing_segments(self) -> list[str]:
        """Return the names of segments that are not identical in all members that have them, up to the log's end."""
        segments: dict[str, list[bytes]] = {}
        for name in NAMES:
            for path in (self.store(name) / "commitlog").glob("0*"):
                segments.setdefault(path.name, []).append(path.read_bytes())
        return [name for name, contents in segments.items() if len(set(contents)) > 1]


def _answered(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:
        return json.load(answer)
