"""A NameServer and a broker under test, RocketMQ's or DelayMQ's, with a common interface.

Both use RocketMQ's configuration keys. The harness chooses names, ports and paths, and small files by default, because
RocketMQ's broker allocates its gigabyte segments immediately. RocketMQ's programs start only in an isolated network.
"""

import json
import shutil
import struct
import sys
import tempfile
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from harness import isolation, java, ports
from harness.errors import HarnessError
from harness.processes import ServerProcess

HOST = "127.0.0.1"
BROKER_NAME = "broker-a"
CLUSTER_NAME = "DefaultCluster"

START_TIMEOUT_S = 60.0
"""RocketMQ's broker takes 3 s on an idle machine; the rest is for two cores shared with other programs."""
STOP_TIMEOUT_S = 40.0
HTTP_TIMEOUT_S = 20.0

SMALL_FILES: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 5000),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
}
PATIENT: Mapping[str, str] = {"brokerFastFailureEnable": "false"}
"""Test machines occasionally stall for seconds; only tests of flow control should notice."""
VERSION_5: Mapping[str, str] = {
    "timerWheelEnable": "true",
    "timerMaxDelaySec": str(366 * 86_400),
    "mappedFileSizeTimerLog": str(1 << 20),
    "fileReservedTime": str(10 * 365 * 24),
}
"""Settings of RocketMQ 5: timers with small files and a limit above the default of three days, and no deletion of old
files."""
OF_PLAIN_SLAVES = frozenset({"haPlainSlaves", "haPlainSlaveAddresses", "haListenPort"})
"""DelayMQ's keys for its slaves."""
TIMER_CHECK_BYTES = 4096
"""Size of RocketMQ 5's file ``config/timercheck``."""
SMALL_HEAP = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
ANY_DISK = (
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
)
"""Options of RocketMQ's broker that let it use a disk that is nearly full."""
HOME_PATH = Path(__file__).resolve().parent / "rocketmq_home"


class Cluster(ABC):
    """One NameServer and one broker with a store; a context manager that starts them and removes its folder.

    ``config`` are broker.conf keys that override SMALL_FILES and PATIENT. A ``store_path`` outside the cluster's folder
    is kept at the end. ``rules`` is the text of a plain_acl.yml, which enables access control.
    """

    def __init__(
        self, *, config: Mapping[str, str] | None = None, store_path: Path | None = None, rules: str | None = None
    ) -> None:
        self.base_path = Path(tempfile.mkdtemp(prefix="delaymq-e2e-"))
        self.store_path = store_path or self.base_path / "store"
        self.config = {**SMALL_FILES, **PATIENT, **(config or {})}
        self.listen_port = ports.free_broker_port()
        self.namesrv_port = ports.free_port()
        self.config_path = self.base_path / "broker.conf"
        self.home_path = HOME_PATH
        """ROCKETMQ_HOME of servers and tools; with ``rules``, a home of this cluster only."""
        self.rules_path = self.base_path / "conf" / "plain_acl.yml"
        if rules is not None:
            self.config_path = self.base_path / "conf" / "broker.conf"
            self.home_path = self.base_path
            shutil.copytree(HOME_PATH / "conf", self.base_path / "conf")
            self.rules_path.write_text(rules)
            self.config["aclEnable"] = "true"

    @property
    def broker_address(self) -> str:
        return f"{HOST}:{self.listen_port}"

    @property
    def namesrv_address(self) -> str:
        return f"{HOST}:{self.namesrv_port}"

    @property
    @abstractmethod
    def broker(self) -> ServerProcess:
        """Process that uses the store."""

    @abstractmethod
    def start(self) -> None:
        """Start processes that are not running, and wait until clients can use them."""

    @abstractmethod
    def close(self) -> None:
        """Kill all processes and remove the private directory."""

    def stop(self) -> None:
        """Stop the broker cleanly (SIGTERM); HarnessError if it hangs or fails."""
        code = self.broker.stop(timeout_s=STOP_TIMEOUT_S)
        # A JVM that handles SIGTERM exits with 128 + 15.
        if code not in (0, 143):
            raise HarnessError(f"{self.broker.name} stopped with exit code {code}\n{self.broker.log_tail()}")

    def kill(self) -> None:
        """Kill the broker as a crash does (SIGKILL)."""
        self.broker.kill()

    def end(self, *, clean: bool) -> None:
        """Stop or kill the broker."""
        if clean:
            self.stop()
        else:
            self.kill()

    def restart(self, *, clean: bool) -> None:
        """Stop or kill the broker and start it on the same store and ports."""
        self.end(clean=clean)
        self.start()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_config(self, own_keys: Mapping[str, str]) -> Path:
        self.store_path.mkdir(parents=True, exist_ok=True)
        return write_properties(self.config_path, {**self.config, **own_keys})


class RealNameServer:
    """RocketMQ's NameServer, for RocketMQ's cluster or for DelayMQ's broker."""

    def __init__(
        self,
        base_path: Path,
        port: int,
        *,
        jvm_options: Sequence[str] = SMALL_HEAP,
        profile: java.BrokerProfile = "broker",
    ) -> None:
        _require_isolation()
        config_path = write_properties(base_path / "namesrv.conf", {"listenPort": str(port)})
        options = [*jvm_options, *_directories(base_path)]
        main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"
        command = java.command(java.class_path(profile), main_class, "-c", str(config_path), options=options)
        self.process = ServerProcess("the real NameServer", command, base_path / "namesrv.log", environment={})

    def start(self) -> None:
        seen_bytes = self.process.log_size_bytes()
        self.process.start()
        self.process.wait_until(lambda: "boot success" in self.process.log_since(seen_bytes), timeout_s=START_TIMEOUT_S)


class RealCluster(Cluster):
    """RocketMQ's NameServer and broker; ``jvm_options`` replace the small heap."""

    profile: java.BrokerProfile = "broker"

    def __init__(
        self,
        *,
        config: Mapping[str, str] | None = None,
        store_path: Path | None = None,
        rules: str | None = None,
        jvm_options: Sequence[str] = SMALL_HEAP,
    ) -> None:
        super().__init__(config=config, store_path=store_path, rules=rules)
        self.namesrv = RealNameServer(self.base_path, self.namesrv_port, profile=self.profile)
        options = [*jvm_options, *ANY_DISK, *_directories(self.base_path, self.home_path)]
        main_class = "org.apache.rocketmq.broker.BrokerStartup"
        arguments = ("-c", str(self.config_path))
        command = java.command(java.class_path(self.profile), main_class, *arguments, options=options)
        self._broker = ServerProcess("the real broker", command, self.base_path / "broker.log", environment={})

    @property
    def broker(self) -> ServerProcess:
        return self._broker

    def start(self) -> None:
        self._write_config(
            {
                "brokerName": BROKER_NAME,
                "brokerClusterName": CLUSTER_NAME,
                "brokerIP1": HOST,
                "brokerIP2": HOST,
                "listenPort": str(self.listen_port),
                "haListenPort": str(self.listen_port + 1),
                "namesrvAddr": self.namesrv_address,
                "storePathRootDir": str(self.store_path),
                "storePathCommitLog": str(self.store_path / "commitlog"),
            }
        )
        self._start_namesrv()
        seen_bytes = self._broker.log_size_bytes()
        self._broker.start()
        self._broker.wait_until(lambda: "boot success" in self._broker.log_since(seen_bytes), timeout_s=START_TIMEOUT_S)

    def _start_namesrv(self) -> None:
        if not self.namesrv.process.is_running:
            self.namesrv.start()

    def close(self) -> None:
        self._broker.kill()
        self.namesrv.process.kill()
        shutil.rmtree(self.base_path, ignore_errors=True)


class RealSlave(RealCluster):
    """RocketMQ's broker as a slave of another cluster's broker, with that cluster's NameServer."""

    def __init__(
        self,
        master: Cluster,
        *,
        config: Mapping[str, str] | None = None,
        store_path: Path | None = None,
        jvm_options: Sequence[str] = SMALL_HEAP,
    ) -> None:
        common = {key: value for key, value in master.config.items() if key not in OF_PLAIN_SLAVES}
        settings = {**common, **(config or {}), "brokerRole": "SLAVE", "brokerId": "1"}
        super().__init__(config=settings, store_path=store_path, jvm_options=jvm_options)
        self.namesrv_port = master.namesrv_port

    def become_master(self, listen_port: int) -> None:
        """Let the next start be that of a master, on this port."""
        self.config |= {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
        self.listen_port = listen_port

    def _start_namesrv(self) -> None:
        """Use the NameServer of the master's cluster."""


class RealCluster5(RealCluster):
    """NameServer and broker of RocketMQ 5.3, with its timer wheel."""

    profile = "broker5"

    def __init__(
        self,
        *,
        config: Mapping[str, str] | None = None,
        store_path: Path | None = None,
        jvm_options: Sequence[str] = SMALL_HEAP,
    ) -> None:
        log = f"-Drmq.logback.configurationFile=file:{HOME_PATH / 'conf' / 'logback_broker5.xml'}"
        settings = {**VERSION_5, **(config or {})}
        super().__init__(config=settings, store_path=store_path, jvm_options=(*jvm_options, log))

    def start_timers_at(self, queue_offset: int) -> None:
        """Let the next start read the timer topic from an offset, like a broker that processed all earlier records.

        Call it while the broker is stopped.
        """
        path = self.store_path / "config" / "timercheck"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Last read time, flushed position in the timer log, queue offset, and queue offset of the master.
        path.write_bytes(struct.pack(">4q", 0, 0, queue_offset, queue_offset).ljust(TIMER_CHECK_BYTES, b"\0"))


class RealSlave5(RealSlave, RealCluster5):
    """RocketMQ 5.3's broker as a slave."""


class OurCluster(Cluster):
    """``delaymq standalone``; with ``real_namesrv``, ``delaymq broker`` registered with RocketMQ's NameServer.

    ``launcher`` precedes the role on the command line, for a program that starts DelayMQ with changes, and
    ``arguments`` follow the other ones.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, str] | None = None,
        store_path: Path | None = None,
        rules: str | None = None,
        real_namesrv: bool = False,
        launcher: Sequence[str] = (sys.executable, "-m", "delaymq"),
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(config=config, store_path=store_path, rules=rules)
        if "--groups" in arguments:
            self.listen_port = ports.free_broker_port(int(arguments[arguments.index("--groups") + 1]))
        self.http_port = ports.free_port()
        self.namesrv = RealNameServer(self.base_path, self.namesrv_port) if real_namesrv else None
        command = [*launcher, "broker" if real_namesrv else "standalone", "--host", HOST]
        if not real_namesrv:
            command += ["--namesrv-port", str(self.namesrv_port)]
        command += ["--listen-port", str(self.listen_port), "--http-port", str(self.http_port)]
        command += ["--store-path", str(self.store_path), "-c", str(self.config_path), *arguments]
        log_path = self.base_path / "delaymq.log"
        self._broker = ServerProcess("delaymq", command, log_path, environment=environment or {})

    @property
    def broker(self) -> ServerProcess:
        return self._broker

    @property
    def http_address(self) -> str:
        return f"{HOST}:{self.http_port}"

    def start(self) -> None:
        own_keys = {"brokerName": BROKER_NAME, "brokerClusterName": CLUSTER_NAME, "brokerIP1": HOST}
        if self.namesrv is not None:
            own_keys["namesrvAddr"] = self.namesrv_address
            self._start_namesrv(self.namesrv)
        self._write_config(own_keys)
        self._broker.start()
        self._broker.wait_until(self.is_ready, timeout_s=START_TIMEOUT_S)

    def _start_namesrv(self, namesrv: RealNameServer) -> None:
        if not namesrv.process.is_running:
            namesrv.start()

    def ask(self, path: str) -> dict[str, Any]:
        """Return the response of the HTTP API."""
        url = f"http://{self.http_address}/api/v1/{path}"
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def is_ready(self) -> bool:
        """Return whether ``/readyz`` responds with 200."""
        try:
            with urllib.request.urlopen(f"http://{self.http_address}/readyz", timeout=HTTP_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def close(self) -> None:
        self._broker.kill()
        if self.namesrv is not None:
            self.namesrv.process.kill()
        shutil.rmtree(self.base_path, ignore_errors=True)


class OurSlave(OurCluster):
    """``delaymq broker`` as a plain slave of RocketMQ's broker, with that broker's NameServer.

    ``start`` waits until it has the master's log.
    """

    def __init__(self, master: RealCluster) -> None:
        following = {
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "haMasterAddress": f"{HOST}:{master.listen_port + 1}",
            "haMasterBrokerAddress": master.broker_address,
        }
        super().__init__(config={**master.config, **following}, real_namesrv=True)
        self.namesrv_port = master.namesrv_port

    def become_master(self, **keys: str) -> None:
        """Let the next start be that of a master."""
        self.config |= {"brokerRole": "ASYNC_MASTER", "brokerId": "0", **keys}

    def _start_namesrv(self, namesrv: RealNameServer) -> None:
        """Use the NameServer of the master's cluster."""


def write_properties(path: Path, values: Mapping[str, str]) -> Path:
    """Write a Java properties file (values here need no escaping)."""
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def _directories(base_path: Path, home_path: Path = HOME_PATH) -> list[str]:
    """Return options that keep files which the programs write to a user's home (the NameServer's KV file, JVM crash
    files) in the private directory.
    """
    return [f"-Drocketmq.home.dir={home_path}", f"-Duser.home={base_path}", f"-XX:ErrorFile={base_path}/jvm-crash.log"]


def _require_isolation() -> None:
    if not isolation.is_isolated():
        raise HarnessError(
            "RocketMQ's servers bind all interfaces: call harness.isolation.enter() first,"
            " or run this under `python -m harness.isolated -- …`"
        )
