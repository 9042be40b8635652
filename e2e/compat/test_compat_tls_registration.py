"""DelayMQ's broker with RocketMQ's NameServer, and RocketMQ's broker with DelayMQ's, over TLS."""

# ruff: noqa: F811 - imported fixtures are requested by name

import sys
from pathlib import Path

from compat.tls_clusters import (  # noqa: F401
    HEAP,
    Files,
    enforcing,
    files,
    jvm_options,
    real_cluster,
    start,
    verifying,
    workbench,
)
from harness.brokers import (
    HOST,
    START_TIMEOUT_S,
    OurCluster,
    RealNameServer,
    write_properties,
)
from harness.driver import Driver
from harness.processes import ServerProcess


def our_namesrv(folder: Path, port: int, keys: dict[str, str]) -> ServerProcess:
    conf = write_properties(folder / "our-namesrv.conf", keys)
    command = [sys.executable, "-m", "delaymq", "namesrv", "--host", HOST, "--namesrv-port", str(port)]
    return ServerProcess(
        "our NameServer",
        [*command, "-c", str(conf), "--store-path", str(folder)],
        folder / "namesrv.log",
        environment={},
    )


class OurNameServer:
    """DelayMQ's NameServer for RocketMQ's broker, in place of RealNameServer."""

    def __init__(self, folder: Path, port: int, keys: dict[str, str]) -> None:
        self.process = our_namesrv(folder, port, keys)

    def start(self) -> None:
        self.process.start()
        self.process.wait_until(lambda: "NameServer listens" in self.process.log_since(0), timeout_s=START_TIMEOUT_S)


def test_delaymq_broker_registers_with_rocketmq_name_server_over_tls(
    files: Files, tmp_path: Path, verifying: Driver
) -> None:
    keys = files.server_keys() | files.client_keys()
    path = write_properties(tmp_path / "tls.properties", keys)
    cluster = OurCluster(config={"tls.server.mode": "enforcing", "tls.config.file": str(path)}, real_namesrv=True)
    options = jvm_options("enforcing", path, *HEAP)
    cluster.namesrv = RealNameServer(cluster.base_path, cluster.namesrv_port, jvm_options=options)
    with cluster, workbench(verifying, cluster) as clients:
        topic = clients.topic()
        assert clients.producer.send(topic, b"x").status == "SEND_OK"


def test_rocketmq_broker_registers_with_delaymq_name_server_over_tls(
    files: Files, tmp_path: Path, verifying: Driver
) -> None:
    keys = files.server_keys() | files.client_keys()
    cluster = real_cluster("enforcing", write_properties(tmp_path / "tls.properties", keys))
    of_namesrv = files.server_keys() | {"tls.server.mode": "enforcing"}
    cluster.namesrv = OurNameServer(tmp_path, cluster.namesrv_port, of_namesrv)  # type: ignore[assignment]
    with cluster, workbench(verifying, cluster) as clients:
        topic = clients.topic()
        assert clients.producer.send(topic, b"x").status == "SEND_OK"
        shown = verifying.mqadmin("clusterList", "-n", cluster.namesrv_address)
        assert cluster.broker_address in shown
