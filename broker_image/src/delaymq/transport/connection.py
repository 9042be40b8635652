"""Decodes incoming bytes, dispatches requests, and correlates this side's own requests with their responses.

The states of a connection and what connects them are described in `states`.
"""

import asyncio
import itertools
import logging
import ssl
import time
from collections.abc import Callable, Hashable
from typing import Final

from delaymq.clock import now_ms
from delaymq.message.ids import pack_host
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, Response, encode_command, encode_response
from delaymq.protocol.errors import ProtocolError, TlsHandshakeError
from delaymq.protocol.frame import FrameReceiver
from delaymq.quiet_log import QuietLog
from delaymq.transport.addresses import end_of, host_and_port, network_of
from delaymq.transport.buffer_budget import BufferBudget
from delaymq.transport.errors import ConnectionClosedError, TooManyRequestsError
from delaymq.transport.fair_queue import SLICE_S, FairQueue
from delaymq.transport.limits import ConnectionLimits
from delaymq.transport.open_requests import OpenRequests
from delaymq.transport.outbound import SendingProtocol
from delaymq.transport.states import (
    INTAKES,
    LONG_REQUESTS,
    Intake,
    IntakeEvent,
    LongRequest,
    LongRequestEvent,
    Phase,
    PhaseEvent,
    reads,
    wants_turn,
)
from delaymq.transport.tcp_socket import last_bytes_age_s, peer_has_left
from delaymq.transport.tls_acceptor import HandshakeReceiver, TlsAcceptor
from delaymq.transport.tls_errors import sentence

DEFAULT_TIMEOUT_MS: Final = 3_000
"""RocketMQ's clients give an ordinary request this long."""

TAKEN_AT_ONCE: Final = 4
"""Pipelined requests that are handled before it is looked how much the peer has been sent. One read holds hundreds of
pulls, each with an answer of up to 4 MiB: all at once they would take gigabytes and seconds."""

BELOW_TLS_BYTES: Final = 64 * 1024
"""Encrypted bytes that wait for the socket before those above count as unsent."""

_OPEN: Intake = Intake.OPEN
"""For each read: a global is found much faster than a member. Not Final: mypy would narrow across calls."""
_STOPPED: Final = Intake.STOPPED

_logger = logging.getLogger(__name__)
_bad_peers = QuietLog(_logger, now_ms)
_ids = itertools.count(1)

OnCommands = Callable[["RemotingConnection", list[Command]], None]
OnClosed = Callable[["RemotingConnection", Exception | None], None]
OnOpened = Callable[["RemotingConnection"], None]


class RemotingConnection(SendingProtocol):
    """One connection. `on_commands` gets the requests of each read as a list; what it sends goes out in one write."""

    __slots__ = (
        "_deferred",
        "_intake",
        "_is_reading",
        "_long_request",
        "_on_closed",
        "_on_commands",
        "_on_opened",
        "_receiver",
        "_requests",
        "_step",
        "_tls",
        "_turns",
        "deferred_since",
        "id",
        "is_waiting",
        "local_address",
        "remote_host",
        "session",
        "share",
        "sign",
        "used_s",
    )

    def __init__(
        self,
        on_commands: OnCommands | None = None,
        *,
        on_opened: OnOpened | None = None,
        on_closed: OnClosed | None = None,
        limits: ConnectionLimits | None = None,
        budget: BufferBudget | None = None,
        turns: FairQueue | None = None,
        tls: TlsAcceptor | None = None,
    ) -> None:
        super().__init__(limits or ConnectionLimits(), budget)
        self.id = next(_ids)
        self.remote_host = b""
        self.local_address = ""
        self.deferred_since = 0.0
        """Since when its intake is DEFERRING, as `time.monotonic` tells it; 0.0: it is not."""
        self.session: object = None
        """For the owner of the connection."""
        self.sign: Callable[[Command], None] | None = None
        """Signs each request of ours, if the peer asks for that."""
        self._on_commands = on_commands or refuse_all
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._turns = turns
        self.share: Hashable = b""
        """Whose part of the server's time its requests use: its host's, until `use_share`."""
        self.used_s = 0.0
        self.is_waiting = False
        """Whether it is queued in `turns`, which sets `used_s` too."""
        self._tls = tls
        self._receiver = self._first_receiver()
        self._intake = Intake.OPEN
        self._deferred: list[Command] = []
        self._long_request = LongRequest.NONE
        self._step: Callable[[], bool] | None = None
        """The next step of the long request."""
        self._is_reading = True
        """Whether the transport was told so last."""

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
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._settle()

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
        self._let_go()

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
    def has_left(self) -> bool:
        """Whether the connection has ended, perhaps unnoticed because nothing is read from it."""
        return self.closing or peer_has_left(self._transport)

    @property
    def trusts_peers(self) -> bool:
        """Whether an announced request gets its whole buffer before it is here."""
        return self._budget is None or self._budget.trusts_peers

    def resized(self, buffer_bytes: int) -> None:
        """The receiver's buffer is this large now; 0: as small as anyone's."""
        if self._budget is not None:
            self._budget.receives(self, buffer_bytes)

    def finish_in_turns(self, step: Callable[[], bool], behind: list[Command], *, parked: bool = False) -> None:
        """Has `step` called until it says that it is done, others' requests in between; `behind` is handled then.

        To be called within `on_commands`, once. It is called to the end also when the connection ends before. `parked`:
        the first call waits for `unpark`, which has to be called in any case.
        """
        event = LongRequestEvent.PARK if parked else LongRequestEvent.BEGIN
        self._long_request = LONG_REQUESTS.after(self._long_request, event)
        self._step = step
        self._defer(behind)

    def use_share(self, account: str) -> None:
        """Counts what its requests cost as this account's, which has signed one of them."""
        if self.share != account:
            self.share = account
            self.used_s = 0.0

    def unpark(self) -> None:
        """Begins with what was parked."""
        self._long_request = LONG_REQUESTS.after(self._long_request, LongRequestEvent.UNPARK)
        self._settle()

    def stop_reading(self) -> None:
        """Takes no further requests: before the end, so that no answer is written any more while others go out."""
        self._stop_intake()
        self._settle()

    # Inside: its states.

    @property
    def intake(self) -> Intake:
        """What becomes of a request that is read."""
        return self._intake

    @property
    def long_request(self) -> LongRequest:
        """The request that takes several turns of the loop."""
        return self._long_request

    @property
    def _is_held_back(self) -> bool:
        return self._drained is not None and not self._limits.read_while_behind

    def _enter(self, event: PhaseEvent) -> None:
        super()._enter(event)
        if self.closing:
            self._stop_intake()

    def _stop_intake(self) -> None:
        self._intake = INTAKES.after(self._intake, IntakeEvent.STOP)
        self._deferred = []
        self.deferred_since = 0.0

    def _defer(self, requests: list[Command]) -> None:
        """Has `requests` wait behind those that wait already."""
        self._intake = INTAKES.after(self._intake, IntakeEvent.DEFER)
        if self._intake is Intake.DEFERRING:
            self._deferred += requests
            self.deferred_since = self.deferred_since or time.monotonic()

    def _settle(self) -> None:
        """Reads, and waits for a turn, exactly if its states say so."""
        held_back = self._is_held_back
        if self._transfers:
            is_reading = reads(self._intake, held_back=held_back)
            if is_reading is not self._is_reading:
                self._is_reading = is_reading
                if is_reading:
                    self._transport.resume_reading()
                else:
                    self._transport.pause_reading()
        if wants_turn(self._intake, self._long_request, held_back=held_back):
            if self._turns is None:
                self._turns = FairQueue()
            self._turns.wait(self)

    # Inside: requests.

    def _take(self, commands: list[Command]) -> None:
        # Nearly always all are requests (a server) or all are responses (a client).
        requests: list[Command] = []
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                self._requests.answer(command)
            else:
                requests.append(command)
        if self._intake is not _OPEN:
            self._defer(requests)
        elif len(requests) > 1 and self._turns is not None and self._turns.is_exhausted():
            self._defer(requests)
            self._settle()
        elif requests:
            self._handle(requests)
            if self._intake is not _OPEN:
                self._settle()

    def _handle(self, requests: list[Command]) -> None:
        """Has `requests` handled; a server defers what exceeds a slice, or when the peer does not take answers."""
        self._corked = True
        try:
            if len(requests) <= TAKEN_AT_ONCE or self._limits.read_while_behind:
                self._on_commands(self, requests)
                return
            give_way_at = time.monotonic() + SLICE_S
            for at in range(0, len(requests), TAKEN_AT_ONCE):
                if self._intake is _STOPPED:
                    return
                if self._drained is not None or (at and time.monotonic() >= give_way_at):
                    self._defer(requests[at:])
                    return
                self._on_commands(self, requests[at : at + TAKEN_AT_ONCE])
                if self._step is not None:
                    self._defer(requests[at + TAKEN_AT_ONCE :])
                    return
                if sum(map(len, self._pieces)) > self._limits.write_pause_bytes:
                    self._flush()
        except Exception:
            # The domain answers its own errors; what still gets here is a defect, and costs one connection.
            _logger.exception("a command of %s could not be handled", self.remote_address)
            self.abort()
        finally:
            self._corked = False
            self._flush()

    def run_slice(self) -> bool:
        """Takes steps of a long request or handles a slice of what was deferred; whether it waits for another turn."""
        if self._long_request is LongRequest.RUNNING and not self._take_steps():
            return True
        if self._long_request is LongRequest.NONE and not self._is_held_back:
            requests, self._deferred = self._deferred, []
            if requests:
                self._handle(requests)
        if self._deferred or self._long_request is not LongRequest.NONE:
            return wants_turn(self._intake, self._long_request, held_back=self._is_held_back)
        self._intake = INTAKES.after(self._intake, IntakeEvent.CATCH_UP)
        self.deferred_since = 0.0
        self._settle()
        return False

    def _take_steps(self) -> bool:
        """A slice of the long request's steps; whether it is done."""
        step = self._step
        give_way_at = time.monotonic() + SLICE_S
        try:
            while step is not None and not step():
                if time.monotonic() >= give_way_at:
                    return False
        except Exception:
            _logger.exception("a command of %s could not be finished", self.remote_address)
            self.abort()
        self._step = None
        self._long_request = LONG_REQUESTS.after(self._long_request, LongRequestEvent.FINISH)
        return True

    def _cut_off(self, error: ProtocolError) -> None:
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
