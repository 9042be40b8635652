"""NameServers and brokers of either implementation in any combination, each a separate process."""

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from harness import java, ports
from harness.brokers import (
    ANY_DISK,
    CLUSTER_NAME,
    HOME_PATH,
    HOST,
    SMALL_FILES,
    SMALL_HEAP,
    START_TIMEOUT_S,
    write_properties,
)
from harness.processes import ServerProcess

Kind = Literal["ours", "real"]
OURS = (sys.executable, "-m", "delaymq")


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Implementations of both sides of a test; the side that is not tested is RocketMQ's."""

    broker: Kind
    namesrv: Kind

    @classmethod
    def of(cls, tested: str, against: str) -> Self:
        """``tested`` is broker or namesrv, ``against`` its implementation."""
        kind: Kind = "ours" if against == "ours" else "real"
        return cls(broker=kind, namesrv="real") if tested == "broker" else cls(broker="real", namesrv=kind)


class Node:
    """A program with its own directory and port, as a context manager that starts and stops it."""

    def __init__(self, kind: Kind, role: str, port: int) -> None:
        self.kind = kind
        self.port = port
        self.address = f"{HOST}:{port}"
        self.base_path = Path(tempfile.mkdtemp(prefix=f"delaymq-{role}-"))
        self._ready_text = "boot success" if kind == "real" else "listens on"
        command = self._real(role) if kind == "real" else self._ours(role)
        self.process = ServerProcess(f"{kind} {role}", command, self.base_path / "log.txt", environment={})

    def start(self) -> None:
        """Start it and wait until it reports that it is ready."""
        seen_bytes = self.process.log_size_bytes()
        self.process.start()
        self.process.wait_until(
            lambda: self._ready_text in self.process.log_since(seen_bytes), timeout_s=START_TIMEOUT_S
        )

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self.process.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        shutil.rmtree(self.base_path, ignore_errors=True)

    def _real(self, role: str) -> list[str]:
        main_class = {"namesrv": "namesrv.NamesrvStartup", "broker": "broker.BrokerStartup"}[role]
        crash = f"-XX:ErrorFile={self.base_path}/jvm-crash.log"
        options = [*SMALL_HEAP, *ANY_DISK, f"-Drocketmq.home.dir={HOME_PATH}"]
        options += [f"-Duser.home={self.base_path}", crash]
        arguments = ("-c", str(self._config_path))
        class_path = java.class_path("broker")
        return java.command(class_path, f"org.apache.rocketmq.{main_class}", *arguments, options=options)

    def _ours(self, role: str) -> list[str]:
        command = [*OURS, role, "--host", HOST, "--listen-port", str(self.port), "-c", str(self._config_path)]
        return [*command, "--store-path", str(self.base_path / "store")]

    @property
    def _config_path(self) -> Path:
        return self.base_path / "node.conf"


class NameServerNode(Node):
    """A NameServer; ``config`` are its configuration keys."""

    def __init__(self, kind: Kind, *, config: Mapping[str, str] | None = None) -> None:
        super().__init__(kind, "namesrv", ports.free_port())
        listen = {"listenPort": str(self.port)} if kind == "real" else {}
        write_properties(self._config_path, {**listen, **(config or {})})


class BrokerNode(Node):
    """A broker that registers with the given addresses; ``config`` are keys that override SMALL_FILES."""

    def __init__(
        self, kind: Kind, namesrvs: Sequence[str], *, name: str = "broker-a", config: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(kind, "broker", ports.free_broker_port())
        self.name = name
        self.store_path = self.base_path / "store"
        own = {"brokerName": name, "brokerClusterName": CLUSTER_NAME, "brokerIP1": HOST, "brokerIP2": HOST}
        own["namesrvAddr"] = ";".join(namesrvs)
        own["haListenPort"] = str(self.port + 1)
        if kind == "real":
            own["listenPort"] = str(self.port)
            own["storePathRootDir"] = str(self.store_path)
            own["storePathCommitLog"] = str(self.store_path / "commitlog")
        else:
            own["httpPort"] = "0"
        self.store_path.mkdir()
        write_properties(self._config_path, {**SMALL_FILES, **own, **(config or {})})

    @property
    def ha_address(self) -> str:
        """Replication address for its slaves."""
        return f"{HOST}:{self.port + 1}"
