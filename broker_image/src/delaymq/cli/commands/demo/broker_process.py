"""Broker process of the demo, on free ports and with its store in the demo's folder."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

from delaymq.cli.errors import CommandError
from delaymq.client import Admin, Client, ClientError

HOST = "127.0.0.1"
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
PORT_ATTEMPTS = 50
LOG_TAIL_BYTES = 2_000
CONFIGURATION = """\
mappedFileSizeCommitLog=4194304
mappedFileSizeConsumeQueue=200000
maxHashSlotNum=5000
maxIndexNum=20000
"""
"""The demo needs little disk space: small files instead of RocketMQ's default of 1 GiB."""


class BrokerProcess:
    """A `delaymq standalone` process that can be killed and restarted on the same store."""

    def __init__(self, folder: Path) -> None:
        self.store_path = folder / "store"
        self.log_path = folder / "broker.log"
        self._config_path = folder / "broker.conf"
        self._config_path.write_text(CONFIGURATION)
        self.listen_port, self.namesrv_port, self.http_port = _free_ports()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def namesrv_address(self) -> str:
        return f"{HOST}:{self.namesrv_port}"

    @property
    def broker_address(self) -> str:
        return f"{HOST}:{self.listen_port}"

    async def start(self) -> None:
        """Start the process, without waiting until it is ready."""
        arguments = ["standalone", "--host", HOST, "-c", str(self._config_path), "--store-path", str(self.store_path)]
        arguments += ["--listen-port", str(self.listen_port), "--namesrv-port", str(self.namesrv_port)]
        arguments += ["--http-port", str(self.http_port)]
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "delaymq", *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def wait_until_ready(self, client: Client) -> None:
        """Wait until the broker is registered and responds; raise CommandError with its log otherwise."""
        admin = Admin(client)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    if self._process is None or self._process.returncode is not None:
                        raise CommandError(f"the demo's broker exited during startup:\n{self.log_tail()}")
                    with contextlib.suppress(ClientError):
                        for address in (await admin.masters()).values():
                            await admin.broker_config(address)
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            text = f"the demo's broker was not ready within {START_TIMEOUT_S:g} s:\n{self.log_tail()}"
            raise CommandError(text) from error

    async def kill(self) -> int:
        """Kill the process with SIGKILL and return its process id."""
        process = self._process
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        self._process = None
        return process.pid

    async def stop(self) -> None:
        """Stop the process cleanly; kill it if that takes too long."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            await self.kill()

    def log_tail(self) -> str:
        """Return the end of the broker's log."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


def _free_ports() -> tuple[int, int, int]:
    """Return a free broker port whose fast port (port - 2) is free, too, and two more free ports."""
    for _ in range(PORT_ATTEMPTS):
        with contextlib.ExitStack() as held:
            ports = []
            for _ in range(3):
                probe = held.enter_context(socket.socket())
                probe.bind((HOST, 0))
                ports.append(int(probe.getsockname()[1]))
            if ports[0] - 2 in ports:
                continue
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind((HOST, ports[0] - 2))
                return ports[0], ports[1], ports[2]
    raise CommandError("found no free ports on 127.0.0.1: try again")
