"""The connection: bytes to commands and back, with limits in both directions."""

import asyncio
import fcntl
import itertools
import logging
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from delaymq.clock import now_ms
from delaymq.message.ids import pack_host
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, Response, encode_command, encode_response
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.frame import FrameReceiver
from delaymq.quiet_log import QuietLog
from delaymq.transport.errors import ConnectError, ConnectionClosedError, TooManyRequestsError
from delaymq.transport.requests import OpenRequests

DEFAULT_TIMEOUT_MS: Final = 3_000
"""RocketMQ's clients give an ordinary request this long."""
ATTEMPT_MS: Final = 1_200
"""What an attempt to connect gets, long enough for a second SYN. While a pod behind a Service is replaced, an attempt
that began with the old one is sent there to its end: only a new one finds the new pod."""

LINGER_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of accepted sockets: a killed process resets its connections, and its peers notice at once."""
LINGER_OFF: Final = struct.pack("ii", 0, 0)
_INTEGER: Final = struct.Struct("i")
TAKEN_AT_ONCE: Final = 4
"""Pipelined requests that are handled before it is looked how much the peer has been sent. One read holds hundreds of
pulls, each with an answer of up to 4 MiB: all at once they would take gigabytes and seconds."""

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


class RemotingConnection(asyncio.BufferedProtocol):
    """One connection. `on_commands` gets the requests of each read as a list; what it sends goes out in one write."""

    __slots__ = (
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
        "_transport",
        "closing",
        "id",
        "is_active",
        "local_address",
        "remote_address",
        "remote_host",
        "session",
    )

    def __init__(
        self,
        on_commands: OnCommands | None = None,
        *,
        on_opened: OnOpened | None = None,
        on_closed: OnClosed | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.id = next(_ids)
        self.remote_host = b""
        self.remote_address = "not connected"
        self.local_address = ""
        self.closing = False
        self.is_active = True
        """Set by every read and write, cleared by whoever looks for idle connections."""
        self.session: object = None
        """For the owner of the connection."""
        self._on_commands = on_commands or refuse_all
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._limits = limits or ConnectionLimits()
        self._receiver = FrameReceiver()
        self._pieces: list[bytes] = []
        self._put_off: list[Command] = []
        self._gathered_bytes = 0
        self._corked = False
        self._deaf = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None

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
        self.is_active = True
        receiver = self._receiver
        try:
            commands = receiver.received(nbytes)
        except ProtocolError as error:
            self._cut_off(error)
            return
        if commands:
            self._take(commands)
        if receiver.error is not None:
            self._cut_off(receiver.error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._drained = self._drained or asyncio.Event()
        if not self._limits.read_while_behind and not self.closing:
            self._transport.pause_reading()
        self._stall_timer = self._loop.call_later(self._limits.write_stall_ms / 1000, self._stalled)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set()
        if not self._limits.read_while_behind and not self.closing:
            if self._put_off:
                self._loop.call_soon(self._go_on)
            elif not self._deaf:
                self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._drained is not None:
            self._drained.set()
        self._pieces.clear()
        self._put_off.clear()
        self._requests.fail_all("the connection was closed" if exc is None else f"the connection was lost ({exc})")
        if self._on_closed is not None:
            self._on_closed(self, exc)

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
        self.send(encode_command(command))

    async def drain(self) -> None:
        """Waits until the peer is no longer behind."""
        while self._drained is not None and not self.closing:
            await self._drained.wait()

    def unsent_bytes(self) -> int:
        """What was written and the peer's kernel has not taken yet; 0 once the connection is closing."""
        if self.closing:
            return 0
        own = self._transport.get_extra_info("socket")
        try:
            (in_kernel,) = _INTEGER.unpack(fcntl.ioctl(own.fileno(), termios.TIOCOUTQ, bytes(_INTEGER.size)))
        except OSError:
            return 0
        return int(in_kernel) + self._transport.get_write_buffer_size()

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
        own = self._transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_OFF)
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(self._limits.close_timeout_ms / 1000, self._transport.abort)

    def abort(self) -> None:
        """Ends the connection at once; unsent bytes are lost."""
        self.closing = True
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
        elif requests:
            self._handle(requests)

    def _handle(self, requests: list[Command]) -> None:
        """Has `requests` handled; a server puts the rest off when the peer does not take its answers."""
        self._corked = True
        try:
            if len(requests) <= TAKEN_AT_ONCE or self._limits.read_while_behind:
                self._on_commands(self, requests)
                return
            for at in range(0, len(requests), TAKEN_AT_ONCE):
                if self.closing:
                    return
                if self._drained is not None:
                    self._put_off = requests[at:]
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

    def _go_on(self) -> None:
        """Handles what was put off, then reads on, unless the peer is behind again."""
        if self.closing or self._drained is not None or not self._put_off:
            return
        requests, self._put_off = self._put_off, []
        self._handle(requests)
        if self._put_off:
            if self._drained is None:
                self._loop.call_soon(self._go_on)
        elif self._drained is None and not self.closing and not self._deaf:
            self._transport.resume_reading()

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
        if self._drained is not None and self._transport.get_write_buffer_size() > self._limits.write_max_bytes:
            self._drop(f"more than {self._limits.write_max_bytes} bytes are unsent")

    def _stalled(self) -> None:
        self._stall_timer = None
        self._drop(f"nothing was read for {self._limits.write_stall_ms} ms")

    def _drop(self, why: str) -> None:
        peer = self.remote_address
        _bad_peers.warning("%s does not read what it is sent (%s): cut off", peer, why, peer=peer)
        self.abort()

    def _cut_off(self, error: ProtocolError) -> None:
        if not self.closing:
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


async def connect(
    host: str,
    port: int,
    on_commands: OnCommands | None = None,
    *,
    on_closed: OnClosed | None = None,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    limits: ConnectionLimits | None = None,
) -> RemotingConnection:
    """A connection to a peer. Without `on_commands` its requests are refused. Raises ConnectError."""
    loop = asyncio.get_running_loop()
    address = host_and_port(host, port)
    failed: OSError | None = None
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            # Resolved here: uvloop's create_connection lets go of a slow resolution at the timeout, and its failure is
            # then logged as an exception that nobody retrieved.
            places = [str(place[0]) for *_, place in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
            silent = True
            while silent:
                silent = False
                for place in places:
                    try:
                        async with asyncio.timeout(ATTEMPT_MS / 1000):
                            _, connection = await loop.create_connection(
                                lambda: RemotingConnection(on_commands, on_closed=on_closed, limits=limits), place, port
                            )
                    except TimeoutError:
                        silent = True
                    except OSError as error:
                        failed = failed or error
                    else:
                        return connection
    except TimeoutError as error:
        raise ConnectError(address, f"no connection within {timeout_ms} ms") from error
    except OSError as error:
        failed = error
    text = "it has no address" if failed is None else failed.strerror or str(failed)
    raise ConnectError(address, f"cannot connect: {text}") from failed
