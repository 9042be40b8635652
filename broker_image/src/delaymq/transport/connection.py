"""Decodes incoming bytes, dispatches requests, and correlates this side's own requests with their responses.

The states of a connection and what connects them are described in `states`.
"""

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable
from typing import Final

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
from delaymq.transport.tls_errors import sentence

DEFAULT_TIMEOUT_MS: Final = 3_000
"""RocketMQ's clients give an ordinary request this long."""

BELOW_TLS_BYTES: Final = 64 * 1024
"""Encrypted bytes that wait for the socket before those above count as unsent."""

_logger = logging.getLogger(__name__)
_bad_peers = ThrottledLogger(_logger, now_ms)
_ids = itertools.count(1)

OnCommands = Callable[["RemotingConnection", list[Command]], None]
OnClosed = Callable[["RemotingConnection", Exception | None], None]
OnOpened = Callable[["RemotingConnection"], None]


class RemotingConnection(HandlingProtocol):
    """One connection. `on_commands` gets the requests of each read as a list; what it sends goes out in one write."""

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
        """For the owner of the connection."""
        self.sign: Callable[[Command], None] | None = None
        """Signs each request of ours, if the peer asks for that."""
        self._on_commands = on_commands or refuse_all
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._tls = tls
        self._receiver = self._first_receiver()

    def _first_receiver(self) -> FrameReceiver:
        kind = HandshakeReceiver if self._tls is not None and self._tls.enforcing else FrameReceiver
        return kind(None if self._budget is None else self)

    # What asyncio calls.

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
        try:
            commands = receiver.received(nbytes)
        except ProtocolError as error:
            self._abort_with(error)
            return
        if commands:
            # A byte now and then keeps no connection alive, only whole frames do.
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
        wanted = "does not accept this side's certificate" if self._below else "takes only TLS"
        return f"{text} before any answer, as by a peer that {wanted}"

    # TLS on a connection that is there already: see tls_upgrade.

    def begin_upgrade(self) -> asyncio.Transport:
        """Nothing is read or written from now on, until the connection is secured; the transport below TLS.

        ConnectionResetError when the connection has ended.
        """
        if self.closing:
            raise ConnectionResetError("the connection ended before the handshake")
        self._enter(PhaseEvent.UPGRADE)
        self._corked = True
        self._transport.pause_reading()
        return self._transport

    def secured(self, transport: asyncio.Transport, early: list[bytes]) -> None:
        """Goes on with TLS by `transport`; `early` is what the peer has sent behind the handshake."""
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
        """The handshake failed, and the socket is closed."""
        self.connection_lost(exc)

    # What the owner calls.

    @property
    def open_requests(self) -> int:
        """How many requests of ours wait for their answers."""
        return len(self._requests)

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

    @property
    def is_tls(self) -> bool:
        """Whether it goes on with TLS, which it began without."""
        return self._below is not None

    def last_bytes_age_s(self) -> float:
        """Seconds since the peer's last bytes came to this machine; 0 where the kernel does not tell."""
        return last_bytes_age_s(self._transport)

    @property
    def peer_has_closed(self) -> bool:
        """Whether the connection has ended, perhaps unnoticed because nothing is read from it."""
        return self.closing or peer_has_closed(self._transport)

    @property
    def trusts_peers(self) -> bool:
        """Whether an announced request gets its whole buffer before it is here."""
        return self._budget is None or self._budget.trusts_peers

    def resized(self, buffer_bytes: int) -> None:
        """The receiver's buffer is this large now; 0: as small as anyone's."""
        if self._budget is not None:
            self._budget.receives(self, buffer_bytes)

    # Inside.

    def _abort_with(self, error: ProtocolError) -> None:
        error.__traceback__ = None  # the receiver keeps the error, whose frames keep the receiver
        if self.closing:
            return
        if self._tls is not None:
            # Within TLS none begins: a peer could nest it without end.
            if self._phase is Phase.PLAIN and self._tls.take(self, error):
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
