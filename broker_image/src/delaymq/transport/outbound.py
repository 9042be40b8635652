"""The outgoing half of a connection: what goes out together, and what becomes of a peer that does not take it.

A peer is behind while more than `write_pause_bytes` wait for it in this process. It is cut off when that lasts too
long, when the bytes get too many, or when the memory for all connections is full and it has been behind the longest.
"""

import asyncio
import logging
from typing import Final, cast

from delaymq.clock import now_ms
from delaymq.throttled_log import ThrottledLogger
from delaymq.transport.buffer_budget import BufferBudget
from delaymq.transport.limits import ConnectionLimits
from delaymq.transport.states import ENDED, PHASES, TRANSFERRING, Peer, Phase, PhaseEvent
from delaymq.transport.tcp_socket import descriptor_of, reset_at_close, unsent_in_kernel

GATHERED_BYTES: Final = 64 * 1024
"""Requests of ours that go out together at most; more is written at once."""

_slow_peers = ThrottledLogger(logging.getLogger(__name__), now_ms)


class _Gone(asyncio.Transport):
    """In the place of a transport that ended: takes what is still asked of it."""

    def abort(self) -> None: ...
    def close(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


_GONE: Final = _Gone()


class SendingProtocol(asyncio.BufferedProtocol):
    """The half that writes. The whole connection extends it: so no message costs a call from one half to the other.

    Whoever sets `_corked` flushes when it is done.
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
        """Set by every whole request or answer and every write, cleared by whoever looks for idle connections."""
        self._limits = limits
        self._budget = budget
        self._below: asyncio.Transport | None = None
        """With TLS: the socket's own transport."""
        self._pieces: list[bytes] = []
        self._gathered_bytes = 0
        self._corked = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None
        """Only while the peer is BEHIND."""

    # What asyncio calls.

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
        """The last thing to do in `connection_lost`."""
        # With TLS both know each other for ever, and only the garbage collector would free the 70 KB of both.
        self._transport = _GONE
        self._below = None

    # What the owner calls.

    @property
    def phase(self) -> Phase:
        """Whether bytes pass, and how."""
        return self._phase

    @property
    def peer(self) -> Peer:
        """Whether the peer takes what it is sent as fast as it is sent."""
        return Peer.KEEPING_UP if self._drained is None else Peer.BEHIND

    @property
    def is_behind(self) -> bool:
        """Whether the peer does not take what it is sent as fast as it is sent."""
        return self._drained is not None

    def send(self, data: bytes) -> None:
        """Sends whole frames. Dropped without a word when the connection is closing: nobody could be told."""
        if self._corked:
            self._pieces.append(data)
        elif not self.closing:
            self._flush()  # what was gathered before goes first
            self._write(data)

    async def drain(self) -> None:
        """Waits until the peer is no longer behind."""
        while self._drained is not None and not self.closing:
            await self._drained.wait()

    def unsent_bytes(self) -> int:
        """What was written and the peer's kernel has not taken yet; 0 once the connection is closing."""
        if self.closing:
            return 0
        return unsent_in_kernel(self._transport) + self.unwritten_bytes()

    def unwritten_bytes(self) -> int:
        """What waits in this process for the peer to read, also while the connection is closing."""
        below = 0 if self._below is None else self._below.get_write_buffer_size()
        return below + self._transport.get_write_buffer_size()

    @property
    def descriptor(self) -> int:
        """The socket's descriptor; -1 when it is closed."""
        return descriptor_of(self._transport)

    def abort_for_memory(self, why: str) -> None:
        """Ends the connection at once: others need its memory."""
        self._drop(why)

    def close(self) -> None:
        """Ends the connection after what was written has gone out, within a time limit."""
        if self.closing:
            return
        self._flush()
        self._enter(PhaseEvent.CLOSE)
        # With a linger time of 0 the kernel would discard what it has not sent yet.
        self.reset_at_close(False)
        is_unwritten = self._transport.get_write_buffer_size()  # asked now: a closed one may not know it any more
        self._transport.close()
        if is_unwritten:
            timeout_s = self._limits.close_timeout_ms / 1000
            self._close_timer = self._loop.call_later(timeout_s, self._transport.abort)

    def reset_at_close(self, reset: bool) -> None:
        """Whether the socket's end, also by the process's, resets the connection and drops what is unsent."""
        reset_at_close(self._transport, reset)

    def abort(self) -> None:
        """Ends the connection at once; unsent bytes are lost."""
        self._enter(PhaseEvent.CLOSE)
        if self._budget is not None:
            self._budget.drained(self)
        self._transport.abort()

    # Inside.

    def _enter(self, event: PhaseEvent) -> None:
        self._phase = PHASES.after(self._phase, event)
        self._transfers = self._phase in TRANSFERRING
        if self._phase in ENDED:
            self.closing = True
            # Nobody will flush what a handshake kept waiting.
            self._corked = False

    def _gather(self, data: bytes) -> None:
        """Sends what all tasks that run now ask in one write: a system call costs more than a small request's bytes."""
        self._pieces.append(data)
        self._gathered_bytes += len(data)
        if self._corked:
            return
        if self._gathered_bytes >= GATHERED_BYTES:
            self._flush()
        elif len(self._pieces) == 1:
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
            self._drop(f"it does not read what it is sent (more than {self._limits.write_max_bytes} bytes are unsent)")
        elif self._budget is not None:
            self._budget.sends(self, len(data))

    def _stalled(self) -> None:
        self._stall_timer = None
        self._drop(f"it does not read what it is sent (nothing for {self._limits.write_stall_ms} ms)")

    def _drop(self, why: str) -> None:
        peer = self.remote_address
        _slow_peers.warning("%s is cut off: %s", peer, why, peer=peer)
        self.abort()
