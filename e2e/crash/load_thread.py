"""Base of the loads: requests to a broker that is killed meanwhile, sent in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod

from delaymq.transport import RemotingConnection, TransportError, connect
from delaymq.transport.connection import OnCommands

RECONNECT_LIMIT_S = 90.0
"""Longer than any restart on a busy machine."""


class LoadThread(threading.Thread, ABC):
    """A thread that runs `_run`; its results may be read when it has ended."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name=name, daemon=True)
        self.filled = threading.Event()
        """Set when the first messages were sent, or the thread has ended."""
        self.error: BaseException | None = None
        self._port = port

    @abstractmethod
    async def _run(self) -> None:
        """Send the requests, and set `filled`."""

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.error = error
        finally:
            self.filled.set()

    async def _connect(self, on_commands: OnCommands | None = None) -> RemotingConnection:
        """Connect to the broker, which may be down for a while. TransportError."""
        deadline = time.monotonic() + RECONNECT_LIMIT_S
        while True:
            try:
                return await connect("127.0.0.1", self._port, on_commands)
            except TransportError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
