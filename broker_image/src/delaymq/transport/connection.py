"""The connection: bytes to commands and back, with limits in both directions."""

import asyncio
import itertools
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from delaymq.clock import now_ms
from delaymq.message.ids import pack_host
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, Response, encode_command, encode_response
from delaymq.protocol.errors import ProtocolError, TlsHandshakeError
from delaymq.protocol.frame import FrameReceiver
from delaymq.quiet_log import QuietLog
from delaymq.transport.budget import BufferBudget
from delaymq.transport.errors import ConnectionClosedError, TooManyRequestsError
from delaymq.transport.kernel import last_bytes_age_s, reset_at_close, unsent_in_kernel
from delaymq.transport.requests import OpenRequests
from delaymq.transport.tls_accepting import HandshakeReceiver, TlsAccepting
from delaymq.transport.tls_errors import sentence
from delaymq.transport.turns import SLICE_S, Turns

DEFAULT_TIMEOUT_MS: Final = 3_000
"""RocketMQ's clients give an ordinary request this long."""

TAKEN_AT_ONCE: Final = 4
"""Pipelined requests that are handled before it is looked how much the peer has been sent. One read holds hundreds of
pulls, each with an answer of up to 4 MiB: all at once they would take gigabytes and seconds."""

BELOW_TLS_BYTES: Final = 64 * 1024
"""Encrypted bytes that wait for the socket before those above count as unsent."""
GATHERED_BYTES: Final = 64 * 1024
"""Requests of ours that go out together at most; more is written at once."""

_logger = logging.getLogger(__name__)
_bad_peers = QuietLog(_logger, now_ms)
_ids = itertools.count(1)

OnCommands = Callable[["RemotingConnection", list[Command]], None]
OnClosed = Callable[["RemotingConnection", Exception | None], None]
OnOpened = Callable[["RemotingConnection"], None]


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """What one connection may cost."""

    max_open_requests: int = 10_000
    """Requests of ours that wait for answers; more would only fill the peer's queue."""
    write_pause_bytes: int = 1 << 20
    """Unsent bytes above which the peer counts as behind."""
    write_max_bytes: int = 64 << 20
    """Unsent bytes at which the peer is cut off: a few of the largest frames."""
    write_stall_ms: int = 30_000
    """How long a peer may stay behind before it is cut off."""
    close_timeout_ms: int = 5_000
    """How long a close waits for the peer to take what was written."""
    read_while_behind: bool = True
    """Whether a peer that does not read its answers is still read from. Off for servers: no new work for it."""


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


class RemotingConnection(asyncio.BufferedProtocol):
    """One connection. `on_commands` gets the requests of each read as a list; what it sends goes out in one write."""

    __slots__ = (
        "_below",
        "_budget",
        "_corked",
        "_deaf",
        "_drained",
        "_gathered_bytes",
        "_limits",
        "_loop",
        "_on_closed",
        "_on_commands",
        "_on_opened",
        "_pieces",
        "_put_off",
        "_receiver",
        "_requests",
        "_stall_timer",
        "_tls",
        "_transport",
        "_turns",
        "closing",
        "id",
        "is_active",
        "is_waiting",
        "local_address",
        "put_off_at",
        "remote_address",
        "remote_host",
        "session",
        "sign",
    )

    def __init__(
        self,
        on_commands: OnCommands | None = None,
        *,
        on_opened: OnOpened | None = None,
        on_closed: OnClosed | None = None,
        limits: ConnectionLimits | None = None,
        budget: BufferBudget | None = None,
        turns: Turns | None = None,
        tls: TlsAccepting | None = None,
    ) -> None:
        self.id = next(_ids)
        self.remote_host = b""
        self.remote_address = "not connected"
        self.local_address = ""
        self.closing = False
        self.is_active = True
        """Set by every whole request or answer and every write, cleared by whoever looks for idle connections."""
        self.put_off_at = 0.0
        """Since when requests that were read wait: for their turn, or for the peer to take answers; 0.0: none do."""
        self.session: object = None
        """For the owner of the connection."""
        self.sign: Callable[[Command], None] | None = None
        """Signs each request of ours, if the peer asks for that."""
        self._on_commands = on_commands or refuse_all
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._limits = limits or ConnectionLimits()
        self._budget = budget
        self._turns = turns
        self.is_waiting = False
        """Whether it stands in the row of `turns`."""
        self._tls = tls
        self._below: asyncio.Transport | None = None
        """With TLS: the socket's own transport."""
        self._receiver = self._first_receiver()
        self._pieces: list[bytes] = []
        self._put_off: list[Command] = []
        self._gathered_bytes = 0
        self._corked = False
        self._deaf = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None

    def _first_receiver(self) -> FrameReceiver:
        kind = HandshakeReceiver if self._tls is not None and self._tls.enforcing else FrameReceiver
        return kind(None if self._budget is None else self)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast(asyncio.Transport, transport)  # uvloop's has all its methods but is not a subclass
        self._transport = opened
        self._loop = asyncio.get_running_loop()
        opened.set_write_buffer_limits(high=self._limits.write_pause_bytes)
        self._set_addresses(opened)
        self._requests = OpenRequests(self._loop, self.remote_address, self._limits.max_open_requests)
        if self._on_opened is not None:
            self._on_opened(self)

    def _set_addresses(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        own = transport.get_extra_info("sockname") or ("0.0.0.0", 0)
        address = str(peer[0]).removeprefix("::ffff:")  # IPv4 over a socket that takes both
        self.remote_host = pack_host(address, peer[1])
        self.remote_address = host_and_port(address, peer[1])
        self.local_address = host_and_port(str(own[0]).removeprefix("::ffff:"), own[1])

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        receiver = self._receiver
        try:
            commands = receiver.received(nbytes)
        except ProtocolError as error:
            self._cut_off(error)
            return
        if commands:
            # A byte now and then keeps no connection alive, only whole frames do.
            self.is_active = True
            self._take(commands)
        if receiver.error is not None:
            self._cut_off(receiver.error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._drained = self._drained or asyncio.Event()
        if self._budget is not None:
            self._budget.sends(self, self.unwritten_bytes())
        if not self._limits.read_while_behind and not self.closing:
            self._transport.pause_reading()
        self._stall_timer = self._loop.call_later(self._limits.write_stall_ms / 1000, self._stalled)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._budget is not None:
            self._budget.caught_up(self)
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set()
        if not self._limits.read_while_behind and not self.closing:
            if self._put_off:
                self._wait_for_turn()
            elif not self._deaf:
                self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._drained is not None:
            self._drained.set()
        if self._budget is not None:
            self._budget.forget(self)
        self._pieces.clear()
        self._put_off.clear()
        self._receiver.drop()
        if self._below is not None and self._tls is not None:
            self._tls.closed()
        self._requests.fail_all(self._why_lost(exc))
        if self._on_closed is not None:
            self._on_closed(self, exc)
        # With TLS both know each other for ever, and only the garbage collector would free the 70 KB of both.
        self._transport = _GONE
        self._below = None

    def _why_lost(self, exc: Exception | None) -> str:
        if isinstance(exc, ssl.SSLError):
            return f"the connection was lost: {sentence(exc)}"
        text = "the connection was closed" if exc is None else f"the connection was lost ({exc})"
        if self._receiver.began or not len(self._requests):
            return text
        wanted = "does not accept this side's certificate" if self._below else "takes only TLS"
        return f"{text} before any answer, as by a peer that {wanted}"

    # TLS on a connection that is there already: see tls_upgrade.

    def begin_upgrade(self) -> asyncio.Transport:
        """Nothing is read or written from now on, until the connection is secured; the transport below TLS."""
        self._corked = True
        self._transport.pause_reading()
        return self._transport

    def secured(self, transport: asyncio.Transport, early: list[bytes]) -> None:
        """Goes on with TLS by `transport`; `early` is what the peer has sent behind the handshake."""
        self._below, self._transport = self._transport, transport
        self._below.set_write_buffer_limits(high=BELOW_TLS_BYTES)
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=self._limits.write_pause_bytes)
        self._receiver = FrameReceiver(None if self._budget is None else self)
        self._corked = False
        self.is_active = True
        if self._deaf:
            transport.pause_reading()
        for data in early:
            self._take_early(memoryview(data))
        self._flush()

    def _take_early(self, rest: memoryview) -> None:
        while rest and not self.closing:
            buffer = self._receiver.get_buffer(len(rest))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            self.buffer_updated(count)
            rest = rest[count:]

    def lost_in_upgrade(self, exc: Exception | None) -> None:
        """The handshake failed, and the socket is closed."""
        self.connection_lost(exc)

    # What the owner calls.

    @property
    def is_behind(self) -> bool:
        """Whether the peer does not take what it is sent as fast as it is sent."""
        return self._drained is not None

    @property
    def open_requests(self) -> int:
        """How many requests of ours wait for their answers."""
        return len(self._requests)

    def send(self, data: bytes) -> None:
        """Sends whole frames. Dropped without a word when the connection is closing: nobody could be told."""
        if self._corked:
            self._pieces.append(data)
        elif not self.closing:
            self._flush()  # what was gathered before goes first
            self._write(data)

    def start_request(self, command: Command, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> asyncio.Future[Command]:
        """Numbers and sends `command` and returns the future of its answer (errors as in `request`)."""
        if self.closing:
            raise ConnectionClosedError(self.remote_address, "the connection is closed")
        requests = self._requests
        command.opaque = requests.next_opaque()
        if self.sign is not None:
            self.sign(command)
        data = encode_command(command)
        future = requests.add(command.opaque, command.code, timeout_ms)
        if len(requests) == 1:
            self.send(data)  # nobody to share a write with: the answer is not made to wait
        else:
            self._gather(data)
        return future

    async def request(self, command: Command, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> Command:
        """The peer's answer, whatever its code; sets the command's opaque.

        Raises RequestTimeoutError, ConnectionClosedError, and TooManyRequestsError when nothing was sent.
        """
        future = self.start_request(command, timeout_ms)
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self._requests.forget(command.opaque)

    def send_oneway(self, command: Command) -> None:
        """Sends `command` and expects nothing. ConnectionClosedError; TooManyRequestsError when the peer is behind."""
        if self.closing:
            raise ConnectionClosedError(self.remote_address, "the connection is closed")
        if self._drained is not None:
            raise TooManyRequestsError(self.remote_address, "it does not read what it is sent")
        command.opaque = self._requests.next_opaque()
        command.flag |= FLAG_ONEWAY
        if self.sign is not None:
            self.sign(command)
        self.send(encode_command(command))

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

    def last_bytes_age_s(self) -> float:
        """Seconds since the peer's last bytes came to this machine; 0 where the kernel does not tell."""
        return last_bytes_age_s(self._transport)

    def cut_off_for_memory(self, why: str) -> None:
        """Ends the connection at once: others need its memory."""
        self._drop(why)

    @property
    def trusts_peers(self) -> bool:
        """Whether an announced request gets its whole buffer before it is here."""
        return self._budget is None or self._budget.trusts_peers

    def resized(self, buffer_bytes: int) -> None:
        """The receiver's buffer is this large now; 0: as small as anyone's."""
        if self._budget is not None:
            self._budget.receives(self, buffer_bytes)

    def hear_no_more(self) -> None:
        """Takes no further requests: before the end, so that no answer is written any more while others go out."""
        self._deaf = True
        self._put_off = []
        if not self.closing:
            self._transport.pause_reading()

    def close(self) -> None:
        """Ends the connection after what was written has gone out, within a time limit."""
        if self.closing:
            return
        self._flush()
        self.closing = True
        # With a linger time of 0 the kernel would discard what it has not sent yet.
        self.reset_at_close(False)
        is_unwritten = self._transport.get_write_buffer_size()  # asked now: a closed one may not know it any more
        self._transport.close()
        if is_unwritten:
            self._loop.call_later(self._limits.close_timeout_ms / 1000, self._transport.abort)

    def reset_at_close(self, reset: bool) -> None:
        """Whether the socket's end, also by the process's, resets the connection and drops what is unsent."""
        reset_at_close(self._transport, reset)

    def abort(self) -> None:
        """Ends the connection at once; unsent bytes are lost."""
        self.closing = True
        if self._budget is not None:
            self._budget.caught_up(self)
        self._transport.abort()

    # Inside.

    def _take(self, commands: list[Command]) -> None:
        # Nearly always all are requests (a server) or all are responses (a client).
        requests: list[Command] = []
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                self._requests.answer(command)
            else:
                requests.append(command)
        if self._put_off:
            self._put_off += requests
        elif len(requests) > 1 and self._turns is not None and self._turns.is_over():
            self._put_off_rest(requests)
            self._wait_for_turn()
        elif requests:
            self._handle(requests)
            if self._put_off and self._drained is None:
                self._wait_for_turn()

    def _handle(self, requests: list[Command]) -> None:
        """Has `requests` handled; a server puts off what exceeds a slice, or when the peer does not take answers."""
        self._corked = True
        try:
            if len(requests) <= TAKEN_AT_ONCE or self._limits.read_while_behind:
                self._on_commands(self, requests)
                return
            give_way_at = time.monotonic() + SLICE_S
            for at in range(0, len(requests), TAKEN_AT_ONCE):
                if self.closing:
                    return
                if self._drained is not None or (at and time.monotonic() >= give_way_at):
                    self._put_off_rest(requests[at:])
                    return
                self._on_commands(self, requests[at : at + TAKEN_AT_ONCE])
                if sum(map(len, self._pieces)) > self._limits.write_pause_bytes:
                    self._flush()
        except Exception:
            # The domain answers its own errors; what still gets here is a defect, and costs one connection.
            _logger.exception("a command of %s could not be handled", self.remote_address)
            self.abort()
        finally:
            self._corked = False
            self._flush()

    def _put_off_rest(self, requests: list[Command]) -> None:
        self._put_off = requests
        self.put_off_at = self.put_off_at or time.monotonic()

    def _wait_for_turn(self) -> None:
        """Goes on with what was put off when others have had their turn; until then nothing more is read."""
        if not self.closing:
            self._transport.pause_reading()
        if self._turns is None:
            self._turns = Turns()
        self._turns.wait(self)

    def take_turn(self) -> bool:
        """Handles a slice of what was put off, then reads on; True: more is left, and the peer takes its answers."""
        if self.closing or self._drained is not None:
            return False
        if self._put_off:
            requests, self._put_off = self._put_off, []
            self._handle(requests)
            if self._put_off:
                return self._drained is None
        self.put_off_at = 0.0
        if self._drained is None and not self.closing and not self._deaf:
            self._transport.resume_reading()
        return False

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
            self._pieces = []
            self._gathered_bytes = 0
            if not self.closing:
                self._write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

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
        _bad_peers.warning("%s is cut off: %s", peer, why, peer=peer)
        self.abort()

    def _cut_off(self, error: ProtocolError) -> None:
        error.__traceback__ = None  # the receiver keeps the error, whose frames keep the receiver
        if self.closing:
            return
        if self._tls is not None:
            # Within TLS none begins: a peer could nest it without end.
            if self._below is None and self._tls.take(self, error):
                return
            if isinstance(error, TlsHandshakeError):
                error = ProtocolError("it starts TLS behind other bytes: TLS begins with the connection, or not at all")
        _bad_peers.warning("%s is cut off: %s", self.remote_address, error, peer=self.remote_address)
        self.close()


def refuse_all(connection: RemotingConnection, commands: list[Command]) -> None:
    """For peers that only ask: every request is answered with code 3."""
    for command in commands:
        if not command.flag & FLAG_ONEWAY:
            remark = f" request type {command.code} not supported"
            response = Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            connection.send(encode_response(command, response))


def host_and_port(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
