"""Connection of one plain slave: its reports, and the ranges of the log that wait for the network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, cast

from delaymq.server.ha.slave_state import SlaveState
from delaymq.transport.addresses import end_of, host_and_port
from delaymq.transport.tcp_socket import reset_at_close

if TYPE_CHECKING:
    from delaymq.store.message_store import MessageStore

MAX_BUFFERED_BYTES: Final = 1 << 20
"""Unsent bytes above which nothing more is read for a slave. Frames that have been begun may exceed it."""


class Registry(Protocol):
    """All connections of plain slaves."""

    def opened(self, slave: SlaveConnection) -> str:
        """Add a connection; return why it is refused, or an empty text."""

    def closed(self, slave: SlaveConnection) -> None:
        """Remove a connection."""

    def refuse(self, slave: SlaveConnection, reason: str) -> None:
        """Close a connection for a reason, which is logged."""

    def wake(self) -> None:
        """Continue sending."""


class SlaveConnection(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, store: MessageStore, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.state = SlaveState(self._loop.time())
        self.host = ""
        self.address = ""
        self.is_paused = False
        """Whether the network takes nothing more at the moment."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept or refuse the peer."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop has classes of its own
        self.host, port = end_of(transport, "peername")
        self.address = host_and_port(self.host, port)
        self._transport.set_write_buffer_limits(high=MAX_BUFFERED_BYTES)
        reason = self._registry.opened(self)
        if reason:
            self._registry.refuse(self, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._transport = None
        self._registry.closed(self)

    def data_received(self, data: bytes) -> None:
        """Take note of reports."""
        if self._transport is None or self._transport.is_closing():
            return
        was_started = self.state.is_started
        store = self._store
        problem = self.state.receive(data, store.min_offset, store.end_offset, self._loop.time())
        if problem:
            self._registry.refuse(self, problem)
        elif not was_started and self.state.is_started:
            self._registry.wake()

    def pause_writing(self) -> None:
        """Read nothing more of the log for this slave."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """Continue."""
        self.is_paused = False
        self._registry.wake()

    @property
    def is_open(self) -> bool:
        """Whether bytes can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """Send encoded ranges."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close after what is buffered has been sent."""
        if self._transport is not None:
            reset_at_close(self._transport, False)
            self._transport.close()

    def abort(self) -> None:
        """Close immediately."""
        if self._transport is not None:
            self._transport.abort()
