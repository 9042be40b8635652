"""Two copies of a broker: DelayMQ's members with a register in etcd, or RocketMQ's master and slave."""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from delaymq_operator_testing.api_server import find_programs
from registers.etcd_processes import EtcdCluster

from harness import ports
from harness.brokers import (
    HOST,
    HTTP_TIMEOUT_S,
    SMALL_HEAP,
    START_TIMEOUT_S,
    Cluster,
    RealCluster,
    RealCluster5,
    RealSlave,
    RealSlave5,
    write_properties,
)
from harness.errors import HarnessError
from harness.members import member_settings
from harness.processes import ServerProcess

POLL_S = 0.05


class Pair(Cluster, ABC):
    """A cluster whose broker has one replica. `broker` and `store_path` are those of the master."""

    replica: ServerProcess
    replica_path: Path

    @abstractmethod
    def start_replica(self) -> None:
        """Start the replica, if it is not running, without waiting until it has the log."""

    def empty_replica(self) -> None:
        """Kill the replica, and remove its store."""
        self.replica.kill()
        shutil.rmtree(self.replica_path)


class OurPair(Pair):
    """A NameServer, etcd, and two members, of which the first one is the master."""

    def __init__(
        self,
        *,
        config: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (sys.executable, "-m", "delaymq"),
    ) -> None:
        super().__init__(config=config)
        self.replica_path = self.base_path / "replica"
        self._etcd = EtcdCluster(find_programs().etcd, self.base_path)
        command = [*launcher, "namesrv", "--listen-port", str(self.namesrv_port)]
        command += ["--store-path", str(self.base_path / "namesrv")]
        self._namesrv = ServerProcess("namesrv", command, self.base_path / "namesrv.log", environment={})
        self._ports = {"a": self.listen_port, "b": ports.free_broker_port()}
        self._http_ports = {name: ports.free_port() for name in self._ports}
        self._members = {name: self._member(name, launcher) for name in self._ports}
        self.replica = self._members["b"]

    def _member(self, name: str, launcher: Sequence[str]) -> ServerProcess:
        store = self.store_path if name == "a" else self.replica_path
        own = member_settings(
            name,
            {each: (HOST, port) for each, port in self._ports.items()},
            self._etcd.urls,
            store_path=store,
            http_port=self._http_ports[name],
            secret_path=self.base_path / "secret",
        )
        keys = {**self.config, **own, "namesrvAddr": self.namesrv_address}
        file = write_properties(self.base_path / f"{name}.conf", keys)
        command = [*launcher, "broker", "-c", str(file)]
        return ServerProcess(f"member {name}", command, self.base_path / f"{name}.log", environment={})

    @property
    def broker(self) -> ServerProcess:
        return self._members["a"]

    @property
    def http_address(self) -> str:
        """HTTP address of the first master."""
        return f"{HOST}:{self._http_ports['a']}"

    @property
    def replica_http_address(self) -> str:
        """HTTP address of the replica."""
        return f"{HOST}:{self._http_ports['b']}"

    @property
    def replica_port(self) -> int:
        """Broker port of the replica."""
        return self._ports["b"]

    def start(self) -> None:
        if not self._namesrv.is_running:
            self._namesrv.start()
            self._etcd.__enter__()
        for process in self._members.values():
            if not process.is_running:
                process.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            master, replica = self.state("a"), self.state("b")
            if len(master.get("inSync", ())) == 2 and replica.get("role") == "Replica":
                break
            if replica.get("role") == "Master" and len(replica["inSync"]) == 2:
                # It restarts its process afterwards.
                self._switch_over(replica["epoch"])
            if time.monotonic() > deadline:
                raise HarnessError(f"the group is not in sync: {master}\n{self.broker.log_tail()}")
            time.sleep(POLL_S)

    def start_replica(self) -> None:
        if not self.replica.is_running:
            self.replica.start()

    def state(self, name: str) -> dict[str, Any]:
        """Return what a member states about the group; nothing if it does not respond."""
        url = f"http://{HOST}:{self._http_ports[name]}/api/v1/replication"
        try:
            with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except (urllib.error.URLError, OSError, ValueError):
            return {}

    def _switch_over(self, epoch: int) -> None:
        body = json.dumps({"target": "a", "epoch": epoch}).encode()
        url = f"http://{HOST}:{self._http_ports['b']}/api/v1/replication/switchover"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S).close()
        except (urllib.error.URLError, OSError):
            return

    def close(self) -> None:
        for process in (*self._members.values(), self._namesrv):
            process.kill()
        self._etcd.__exit__()
        shutil.rmtree(self.base_path, ignore_errors=True)


class RealPair(RealCluster, Pair):
    """RocketMQ's NameServer, master and slave."""

    slave_type: type[RealSlave] = RealSlave

    def __init__(self, *, config: Mapping[str, str] | None = None, jvm_options: Sequence[str] = SMALL_HEAP) -> None:
        super().__init__(config=config, jvm_options=jvm_options)
        self._slave = self.slave_type(self, jvm_options=jvm_options)
        self.replica, self.replica_path = self._slave.broker, self._slave.store_path

    def start(self) -> None:
        super().start()
        self.start_replica()

    def start_replica(self) -> None:
        if not self.replica.is_running:
            self._slave.start()

    def close(self) -> None:
        self._slave.close()
        super().close()


class RealPair5(RealPair, RealCluster5):
    """The same of RocketMQ 5.3."""

    slave_type = RealSlave5
