"""RocketMQ's master and slave in namespaces. The slave is promoted by hand, as RocketMQ 4.9 requires."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from harness import java
from harness.brokers import (
    ANY_DISK,
    HOME_PATH,
    PATIENT,
    SMALL_FILES,
    SMALL_HEAP,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    write_properties,
)
from harness.processes import ServerProcess
from replication.namespaces import Network, Node

MASTER, SLAVE, NAMESRV = "master", "slave", "namesrv"
PORT, HA_PORT, NAMESRV_PORT = 10_911, 10_912, 9_876


class RocketMqPair:
    """The three programs, as a context manager."""

    def __init__(self, network: Network, folder: Path, level_table: str) -> None:
        self._network = network
        self._folder = folder
        self._level_table = level_table
        self.addresses = [(network[name].address, PORT) for name in (MASTER, SLAVE)]
        namesrv = write_properties(folder / "namesrv.conf", {"listenPort": str(NAMESRV_PORT)})
        self._namesrv = self._program(NAMESRV, "namesrv.NamesrvStartup", namesrv)
        self.processes = {
            name: self._program(name, "broker.BrokerStartup", folder / f"{name}.conf") for name in (MASTER, SLAVE)
        }

    def _program(self, name: str, main_class: str, config: Path) -> ServerProcess:
        home = self._folder / f"home-{name}"
        options = [*SMALL_HEAP, *ANY_DISK, f"-Drocketmq.home.dir={HOME_PATH}", f"-Duser.home={home}"]
        main_class = f"org.apache.rocketmq.{main_class}"
        command = java.command(java.class_path("broker"), main_class, "-c", str(config), options=options)
        return ServerProcess(name, [*self._node(name).launcher, *command], self._folder / f"{name}.log", environment={})

    def _node(self, name: str) -> Node:
        return self._network[name]

    def __enter__(self) -> Self:
        try:
            self._start(self._namesrv)
            self._configure(MASTER, "SYNC_MASTER")
            self._start(self.processes[MASTER])
            self._configure(SLAVE, "SLAVE")
            self._start(self.processes[SLAVE])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.processes.values(), self._namesrv):
            process.kill()

    def store(self, name: str) -> Path:
        return self._folder / name

    def promote(self) -> None:
        """Kill the master, and start the slave as one."""
        self.processes[MASTER].kill()
        self.processes[SLAVE].stop(timeout_s=STOP_TIMEOUT_S)
        self._configure(SLAVE, "ASYNC_MASTER")
        self._start(self.processes[SLAVE])

    def _configure(self, name: str, role: str) -> None:
        address = self._node(name).address
        settings = {
            **SMALL_FILES,
            **PATIENT,
            "brokerName": "broker-a",
            "brokerId": "1" if role == "SLAVE" else "0",
            "brokerRole": role,
            "brokerIP1": address,
            "brokerIP2": address,
            "listenPort": str(PORT),
            "haListenPort": str(HA_PORT),
            "namesrvAddr": f"{self._node(NAMESRV).address}:{NAMESRV_PORT}",
            "storePathRootDir": str(self.store(name)),
            "storePathCommitLog": str(self.store(name) / "commitlog"),
            "messageDelayLevel": self._level_table,
        }
        write_properties(self._folder / f"{name}.conf", settings)

    def _start(self, process: ServerProcess) -> None:
        seen_bytes = process.log_size_bytes()
        process.start()
        process.wait_until(lambda: "boot success" in process.log_since(seen_bytes), timeout_s=START_TIMEOUT_S)
