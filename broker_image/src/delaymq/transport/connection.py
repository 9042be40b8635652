"""Decodes incoming bytes, dispatches requests, and correlates this side's own requests with their responses.

`states` describes the states of a connection and their relations.
"""

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

from delaymq.clock import now_ms
from delaymq.message.ids import network_of, pack_host
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response, encode_command, encode_response
from delaymq.protocol.errors import ProtocolError, TlsHandshakeError
from delaymq.protocol.frame import FrameReceiver
from delaymq.throttled_log import ThrottledLogger
from delaymq.transport.addresses import end_of, host_and_port
from delaymq.transport.buffer_budget import BufferBudget
from delaymq.transport.errors import ConnectionClosedError, TooManyRequestsError
from delaymq.transport.fair_queue import FairQueue
from delaymq.transport.inbound import HandlingProtocol
from delaymq.transport.limits import ConnectionLimits
from delaymq.transport.open_requests import OpenRequests
from delaymq.transport.states import Phase, PhaseEvent
from delaymq.transport.tcp_socket import last_bytes_age_s, peer_has_closed
from delaymq.transport.tls_acceptor import HandshakeReceiver, TlsAcceptor
from delaymq.transport.tls_certificate import common_name, server_certificate_hash
from delaymq.transport.tls_errors import sentence

DEFAULT_TIMEOUT_MS: Final = 3_000
"""Timeout of RocketMQ's clients for an ordinary request."""

BELOW_TLS_BYTES: Final = 64 * 1024
"""Limit of encrypted bytes queued for the socket, above which TLS stops accepting plaintext."""

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)
_ids = itertools.count(1)

OnCommands = Callable[["RemotingConnection", list[Command]], None]
OnBytes = Callable[["RemotingConnection", bytes], int]
OnClosed = Callable[["RemotingConnection", Exception | None], None]
OnOpened = Callable[["RemotingConnection"], None]


class RemotingConnection(HandlingProtocol):
    """One connection. `on_commands` receives the requests of each read as a list; responses share one write.

    `on_bytes` is called before, with received bytes that begin with a frame. It handles some of the frames at their
    start and returns the size of these.
    """

    __slots__ = (
        "_on_closed",
        "_on_opened",
        "_receiver",
        "_tls",
        "id",
        "local_address",
        "remote_host",
        "session",
        "sign",
    )

    def __init__(
        self,
        on_commands: OnCommands | None = None,
        *,
        on_bytes: OnBytes | None = None,
        on_opened: OnOpened | None = None,
        on_closed: OnClosed | None = None,
        limits: ConnectionLimits | None = None,
        budget: BufferBudget | None = None,
        fair_queue: FairQueue | None = None,
        tls: TlsAcceptor | None = None,
    ) -> None:
        super().__init__(limits or ConnectionLimits(), budget, fair_queue)
        self.id = next(_ids)
        self.remote_host = b""
        self.local_address = ""
        self.session: object = None
        """Data of the connection's owner."""
        self.sign: Callable[[Command], None] | None = None
        """Signs each outgoing request if the peer requires signatures."""
        self._on_commands = on_commands or refuse_all
        self._on_bytes = on_bytes
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._tls = tls
        self._receiver = self._first_receiver()

    def _first_receiver(self) -> FrameReceiver:
        kind = HandshakeReceiver if self._tls is not None and self._tls.enforcing else FrameReceiver
        return kind(None if self._budget is None else self)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, port = end_of(transport, "peername")
        self.remote_host = pack_host(host, port)
        self.share = network_of(self.remote_host)
        self.remote_address = host_and_port(host, port)
        self.local_address = host_and_port(*end_of(transport, "sockname"))
        self._requests = OpenRequests(self._loop, self.remote_address, self._limits.max_open_requests)
        if self._on_opened is not None:
            self._on_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        receiver = self._receiver
        handled = 0
        if self._on_bytes is not None and (data := receiver.begun(nbytes)):
            handled = self._take_bytes(data)
        try:
            commands = receiver.received(nbytes, handled)
        except ProtocolError as error:
            self._abort_with(error)
            return
        if commands:
            # Only complete frames keep a connection alive, not single bytes.
            self.is_active = True
            self._take(commands)
        if receiver.error is not None:
            self._abort_with(receiver.error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._phase is Phase.LOST:
            return
        super().connection_lost(exc)
        self._receiver.drop()
        if self._below is not None and self._tls is not None:
            self._tls.closed()
        self._requests.fail_all(self._why_lost(exc))
        if self._on_closed is not None:
            self._on_closed(self, exc)
        self._released()

    def _why_lost(self, exc: Exception | None) -> str:
        if isinstance(exc, ssl.SSLError):
            return f"the connection was lost: {sentence(exc)}"
        text = "the connection was closed" if exc is None else f"the connection was lost ({exc})"
        if self._receiver.error is not None:
            return f"{text}: {self._receiver.error}"
        if self._receiver.began or not len(self._requests):
            return text
        if self._below:
            return f"{text} before any response; the peer probably does not accept this side's certificate"
        return f"{text} before any response; the peer probably accepts only TLS"

    # TLS on an existing connection: see tls_upgrade.

    def begin_upgrade(self) -> asyncio.Transport:
        """Stop reading and writing until the connection is secured; return the transport below TLS.

        ConnectionResetError if the connection has ended.
        """
        if self.closing:
            raise ConnectionResetError("the connection ended before the handshake")
        self._enter(PhaseEvent.UPGRADE)
        self._corked = True
        self._transport.pause_reading()
        return self._transport

    def secured(self, transport: asyncio.Transport, early: list[bytes]) -> None:
        """Continue with TLS on `transport`; `early`: bytes that the peer sent after the handshake."""
        self._enter(PhaseEvent.SECURED)
        self._below, self._transport = self._transport, transport
        self._below.set_write_buffer_limits(high=BELOW_TLS_BYTES)
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=self._limits.write_pause_bytes)
        self._receiver = FrameReceiver(None if self._budget is None else self)
        self._corked = False
        self.is_active = True
        self._is_reading = True
        self._settle()
        for data in early:
            self._feed_early(memoryview(data))
        self._flush()

    def _feed_early(self, rest: memoryview) -> None:
        while rest and not self.closing:
            buffer = self._receiver.get_buffer(len(rest))
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            self.buffer_updated(count)
            rest = rest[count:]

    def lost_in_upgrade(self, exc: Exception | None) -> None:
        """Handle a failed handshake, after which the socket is closed."""
        self.connection_lost(exc)

    # Called by the owner.

    @property
    def open_requests(self) -> int:
        """Number of this side's requests without a response."""
        return len(self._requests)

    def start_request(self, command: Command, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> asyncio.Future[Command]:
        """Number and send `command`; return the future of its response (errors as in `request`).

        A caller that cancels the future has to forget the request.
        """
        if self.closing:
            raise ConnectionClosedError(self.remote_address, "the connection is closed")
        command.opaque = self._requests.next_opaque()
        if self.sign is not None:
            self.sign(command)
        deadline = self._loop.time() + timeout_ms / 1000
        return self.start_encoded(command.opaque, command.code, encode_command(command), timeout_ms, deadline)

    def next_opaque(self) -> int:
        """Return a number for the next request, for `start_encoded`."""
        return self._requests.next_opaque()

    def start_encoded(
        self,
        opaque: int,
        code: int,
        data: bytes,
        timeout_ms: int,
        deadline: float,
        on_bytes: OnBytes | None = None,
    ) -> asyncio.Future[Any]:
        """Send the frame of a request that needs no signature, on an open connection, like `start_request`.

        `deadline` is the end of `timeout_ms`, by the clock of the event loop. `on_bytes` handles received bytes from
        now on, and may call `answer_in_parts` for this request.
        """
        requests = self._requests
        future = requests.add(opaque, code, timeout_ms, deadline, takes_parts=on_bytes is not None)
        if on_bytes is not None:
            self._on_bytes = on_bytes
        count = len(requests)
        if count == 1:
            self.send(data)  # a single request gains nothing from a delayed, shared write
        else:
            self._gather(data, count)
        return future

    def answer_in_parts(self, answers: Iterable[tuple[Any, ...]]) -> int:
        """Pass parts of received responses to their requests, as `OpenRequests.answer_in_parts`."""
        return self._requests.answer_in_parts(answers)

    async def request(self, command: Command, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> Command:
        """Return the peer's response, whatever its code; sets the command's opaque.

        Raises RequestTimeoutError, ConnectionClosedError, or TooManyRequestsError if nothing was sent.
        """
        future = self.start_request(command, timeout_ms)
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self.forget_request(command.opaque)

    def forget_request(self, opaque: int) -> None:
        """Ignore the response to a request, unless it has already arrived."""
        self._requests.forget(opaque)

    def send_oneway(self, command: Command) -> None:
        """Send `command`, which has no response. ConnectionClosedError; TooManyRequestsError if the peer is behind."""
        if self.closing:
            raise ConnectionClosedError(self.remote_address, "the connection is closed")
        if self._drained is not None:
            raise TooManyRequestsError(self.remote_address, "the peer does not read what is sent to it")
        command.opaque = self._requests.next_opaque()
        command.flag |= FLAG_ONEWAY
        if self.sign is not None:
            self.sign(command)
        self.send(encode_command(command))

    @property
    def is_tls(self) -> bool:
        """Whether the connection was upgraded to TLS."""
        return self._below is not None

    def peer_name(self) -> str:
        """Return the common name of the peer's verified certificate; empty without exactly one."""
        return common_name(self._transport)

    def server_certificate_hash(self) -> bytes:
        """Return the SHA-256 of the TLS server's certificate, equal on both sides; empty without TLS."""
        return server_certificate_hash(self._transport)

    def last_bytes_age_s(self) -> float:
        """Return the seconds since the peer's last bytes reached this machine; 0 if the kernel does not report it."""
        return last_bytes_age_s(self._transport)

    @property
    def peer_has_closed(self) -> bool:
        """Whether the connection has ended, possibly undetected because nothing is read from it."""
        return self.closing or peer_has_closed(self._transport)

    @property
    def trusts_peers(self) -> bool:
        """Whether an announced request gets its full buffer before its bytes arrive."""
        return self._budget is None or self._budget.trusts_peers

    def leave_budget(self) -> None:
        """Exclude the connection from the limit on the memory of all connections, for a peer that is trusted."""
        if self._budget is not None:
            self._budget.forget(self)
            self._budget = None
            self._receiver.account = None

    def resized(self, buffer_bytes: int) -> None:
        """Report the current size of the receiver's buffer; 0: the default size."""
        if self._budget is not None:
            self._budget.receives(self, buffer_bytes)

    # Internals.

    def _abort_with(self, error: ProtocolError) -> None:
        error.__traceback__ = None  # the receiver holds the error, whose frames refer to the receiver
        if self.closing:
            return
        if self._tls is not None:
            # TLS within TLS is not supported: a peer could nest it indefinitely.
            if self._phase is Phase.PLAIN and self._tls.take(self, error):
                return
            if isinstance(error, TlsHandshakeError):
                error = ProtocolError("it starts TLS after other bytes: TLS must start with the connection")
        _throttled.warning("%s disconnected: %s", self.remote_address, error, peer=self.remote_address)
        self.close()


def refuse_all(connection: RemotingConnection, commands: list[Command]) -> None:
    """Respond to every request with code 3, on connections that only send requests."""
    for command in commands:
        if not command.flag & FLAG_ONEWAY:
            remark = f" request type {command.code} not supported"
            response = Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            connection.send(encode_response(command, response))
