"""A NATS server with JetStream, with the interface of the other measured brokers."""

from __future__ import annotations

import shutil

from harness.brokers import HOST, START_TIMEOUT_S, Cluster
from harness.processes import ServerProcess

from nats import programs

SYNC_INTERVAL_MS = 500
"""Time between syncs to disk of all measured brokers: DelayMQ's and RocketMQ's default. That of NATS is 2 minutes."""
READY = "Server is ready"


def configuration(port: int, store: str) -> str:
    """Return the text of a server's configuration file. It listens on loopback only."""
    return (
        f'listen: "{HOST}:{port}"\n'
        'server_name: "bench"\n'
        f'jetstream {{ store_dir: "{store}", sync_interval: "{SYNC_INTERVAL_MS}ms" }}\n'
    )


class NatsCluster(Cluster):
    """One server without replicas and with an empty store."""

    def __init__(self) -> None:
        super().__init__()
        self.config_path = self.base_path / "nats.conf"
        command = [str(programs.server_path()), "-c", str(self.config_path)]
        self._server = ServerProcess("the NATS server", command, self.base_path / "nats.log", environment={})

    @property
    def namesrv_address(self) -> str:
        """Address of the server itself, for the load program."""
        return self.broker_address

    @property
    def broker(self) -> ServerProcess:
        return self._server

    def start(self) -> None:
        self.config_path.write_text(configuration(self.listen_port, str(self.store_path)))
        seen_bytes = self._server.log_size_bytes()
        self._server.start()
        self._server.wait_until(lambda: READY in self._server.log_since(seen_bytes), timeout_s=START_TIMEOUT_S)

    def close(self) -> None:
        self._server.kill()
        shutil.rmtree(self.base_path, ignore_errors=True)
