"""Outgoing half of a connection: combined writes and the handling of slow peers.

A peer is behind while more than `write_pause_bytes` are queued for it in this process. It is disconnected if that lasts
too long, if the bytes exceed a limit, or if the memory for all connections is full and it has been behind the longest.
"""

import asyncio
import logging
from typing import Final, cast

from delaymq.clock import now_ms
from delaymq.throttled_log import ThrottledLogger
from delaymq.transport.buffer_budget import BufferBudget
from delaymq.transport.limits import ConnectionLimits
from delaymq.transport.states import ENDED, PHASES, TRANSFERRING, Peer, Phase, PhaseEvent
from delaymq.transport.tcp_socket import descriptor_of, end_if_peer_vanishes, reset_at_close, unsent_in_kernel

GATHERED_BYTES: Final = 64 * 1024
"""Number of bytes of requests up to which they are gathered for one write; more is written immediately."""

_throttled = ThrottledLogger(logging.getLogger(__name__), now_ms)


class _Gone(asyncio.Transport):
    """Replacement of a closed transport; ignores all calls."""

    def abort(self) -> None: ...
    def close(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


_GONE: Final = _Gone()


class SendingProtocol(asyncio.BufferedProtocol):
    """Half that writes. The whole connection extends it, which saves calls between the halves.

    Code that sets `_corked` must flush when it is done.
    """

    __slots__ = (
        "_below",
        "_budget",
        "_close_timer",
        "_corked",
        "_drained",
        "_gathered_bytes",
        "_limits",
        "_loop",
        "_phase",
        "_pieces",
        "_stall_timer",
        "_transfers",
        "_transport",
        "closing",
        "is_active",
        "remote_address",
    )

    def __init__(self, limits: ConnectionLimits, budget: BufferBudget | None) -> None:
        self.remote_address = "not connected"
        self._phase = Phase.PLAIN
        self.closing = False
        """Whether its phase is one of ENDED."""
        self._transfers = True
        """Whether its phase is one of TRANSFERRING."""
        self.is_active = True
        """Set by every complete request or response and every write; cleared by the check for idle connections."""
        self._limits = limits
        self._budget = budget
        self._below: asyncio.Transport | None = None
        """With TLS: the transport of the socket."""
        self._pieces: list[bytes] = []
        self._gathered_bytes = 0
        self._corked = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None
        """Set only while the peer is BEHIND."""

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has all its methods but is not a subclass
        self._loop = asyncio.get_running_loop()
        self._transport.set_write_buffer_limits(high=self._limits.write_pause_bytes)

    def pause_writing(self) -> None:
        if self._drained is not None:
            return
        self._drained = asyncio.Event()
        if self._budget is not None:
            self._budget.sends(self, self.unwritten_bytes())
        self._stall_timer = self._loop.call_later(self._limits.write_stall_ms / 1000, self._stalled)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._budget is not None:
            self._budget.drained(self)
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(PhaseEvent.LOSE)
        for timer in (self._stall_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self._stall_timer = self._close_timer = None
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set()
        if self._budget is not None:
            self._budget.forget(self)
        self._pieces.clear()

    def _released(self) -> None:
        """Release resources; the last call in `connection_lost`."""
        # With TLS, both transports refer to each other; only the garbage collector would free their 70 KB.
        self._transport = _GONE
        self._below = None

    # Called by the owner.

    @property
    def phase(self) -> Phase:
        """State of the connection, such as plain, TLS or closing."""
        return self._phase

    @property
    def peer(self) -> Peer:
        """Whether the peer reads as fast as this side writes, as a state."""
        return Peer.KEEPING_UP if self._drained is None else Peer.BEHIND

    @property
    def is_behind(self) -> bool:
        """Whether the peer does not read as fast as this side writes."""
        return self._drained is not None

    def send(self, data: bytes) -> None:
        """Send complete frames. They are silently dropped if the connection is closing."""
        if self._corked:
            self._pieces.append(data)
        elif not self.closing:
            self._flush()  # preserve the order: gathered data precedes
            self._write(data)

    def cork(self) -> bool:
        """Keep what is sent for one write; return whether this call began that, so that `uncork` must follow."""
        if self._corked or self.closing:
            return False
        self._corked = True
        return True

    def uncork(self) -> None:
        """Write what was sent since `cork`."""
        self._corked = False
        self._flush()

    async def drain(self) -> None:
        """Wait until the peer is no longer behind."""
        while self._drained is not None and not self.closing:
            await self._drained.wait()

    def unsent_bytes(self) -> int:
        """Return the number of written bytes that the peer's kernel has not received; 0 while closing."""
        if self.closing:
            return 0
        return unsent_in_kernel(self._transport) + self.unwritten_bytes()

    def unwritten_bytes(self) -> int:
        """Return the number of bytes in this process that the peer has not read, even while closing."""
        below = 0 if self._below is None else self._below.get_write_buffer_size()
        return below + self._transport.get_write_buffer_size()

    @property
    def descriptor(self) -> int:
        """Return the socket's descriptor; -1 if it is closed."""
        return descriptor_of(self._transport)

    def abort_for_memory(self, why: str) -> None:
        """Abort the connection immediately to free its memory."""
        self._drop(why)

    def close(self) -> None:
        """Close the connection after written data has been sent, within a time limit."""
        if self.closing:
            return
        self._flush()
        self._enter(PhaseEvent.CLOSE)
        # With a linger time of 0, the kernel would discard unsent data.
        self.reset_at_close(False)
        is_unwritten = self._transport.get_write_buffer_size()  # before the close, after which it may be unknown
        self._transport.close()
        if is_unwritten:
            timeout_s = self._limits.close_timeout_ms / 1000
            self._close_timer = self._loop.call_later(timeout_s, self._transport.abort)

    def reset_at_close(self, reset: bool) -> None:
        """Set whether closing the socket, or the end of the process, resets the connection and drops unsent data."""
        reset_at_close(self._transport, reset)

    def end_if_peer_vanishes(self, within_s: int) -> None:
        """End the connection after about `within_s` seconds if the peer's host does not respond, or does not read."""
        end_if_peer_vanishes(self._transport, within_s)

    def abort(self) -> None:
        """Abort the connection immediately; unsent bytes are lost."""
        self._enter(PhaseEvent.CLOSE)
        if self._budget is not None:
            self._budget.drained(self)
        self._transport.abort()

    # Internals.

    def _enter(self, event: PhaseEvent) -> None:
        self._phase = PHASES.after(self._phase, event)
        self._transfers = self._phase in TRANSFERRING
        if self._phase in ENDED:
            self.closing = True
            # Data that a handshake delayed will not be flushed any more.
            self._corked = False

    def _gather(self, data: bytes, open_requests: int) -> None:
        """Combine requests of one loop iteration in one write: a system call costs more than a small request.

        As soon as they are half of the open requests, they are written: the peer handles them while this side prepares
        the others.
        """
        self._pieces.append(data)
        self._gathered_bytes += len(data)
        if self._corked:
            return
        count = len(self._pieces)
        if self._gathered_bytes >= GATHERED_BYTES or (count > 1 and 2 * count >= open_requests):
            self._flush()
        elif count == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        pieces = self._pieces
        if pieces:
            if self._transfers:
                self._pieces = []
                self._gathered_bytes = 0
                self._write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            elif self.closing:
                self._pieces = []

    def _write(self, data: bytes) -> None:
        self.is_active = True
        self._transport.write(data)
        if self._drained is None or self.closing:
            return
        if self._transport.get_write_buffer_size() > self._limits.write_max_bytes:
            self._drop(f"it does not read what is sent to it ({self._limits.write_max_bytes} bytes are unsent)")
        elif self._budget is not None:
            self._budget.sends(self, len(data))

    def _stalled(self) -> None:
        self._stall_timer = None
        self._drop(f"it does not read what is sent to it (nothing for {self._limits.write_stall_ms} ms)")

    def _drop(self, why: str) -> None:
        peer = self.remote_address
        _throttled.warning("%s disconnected: %s", peer, why, peer=peer)
        self.abort()
