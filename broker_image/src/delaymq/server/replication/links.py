"""All links of one member: outgoing ones, over which it sends, and incoming ones, over which it receives."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from delaymq.clock import now_ms
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response, encode_command, encode_response, request_command
from delaymq.protocol.errors import ProtocolError
from delaymq.replication.events import ConnectionLost, Received
from delaymq.server.replication.handshake import Accepting, Identity, LinkError, Peer, shown
from delaymq.server.replication.link import VANISHED_S, Address, Link, LinkCounts, Tls
from delaymq.server.replication.message_codec import decode_message
from delaymq.server.replication.secret import GroupSecret
from delaymq.server.replication.table_messages import LinkMessage, TableAck, TablePart, TableReceived
from delaymq.throttled_log import ThrottledLogger
from delaymq.transport import RemotingConnection
from delaymq.transport.connection import refuse_all

BUFFER_BYTES: Final = 8 << 20
"""Default maximum of unsent bytes for each member: twice what the core sends beyond what a replica has."""
MAX_REASON_CHARACTERS: Final = 500

LinkEvent: TypeAlias = Received | TableReceived | ConnectionLost
OnEvent = Callable[[LinkEvent], None]

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)


async def _no_tls(address: str) -> None:
    return None


class _Incoming:
    """Proven connection of a member, over which it sends."""

    __slots__ = ("connection", "ended", "peer")

    def __init__(self, connection: RemotingConnection, peer: Peer) -> None:
        self.connection = connection
        self.peer = peer
        self.ended = False
        """Whether its end has been reported; nothing that it still contains is delivered."""


class Links:
    """Links to the other members of a group. Call `start` on the event loop, then `stop`, once each.

    `on_event` is called on the event loop with each message, in the order in which its sender sent them, and with
    ConnectionLost when a proven connection with a member ends, in either direction, before any message of the next
    connection. It is not called again before it returns. A reset and an orderly end are reported immediately, and a
    host that vanished after 4 s.
    """

    def __init__(
        self,
        identity: Identity,
        members: Mapping[str, Address],
        secret: GroupSecret,
        on_event: OnEvent,
        *,
        tls: Tls = _no_tls,
        buffer_bytes: int = BUFFER_BYTES,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`members` are the names and addresses of all members; its own address is not used."""
        self.identity = identity
        self.rejected: Counter[str] = Counter()
        """Number of rejected handshakes of other processes, by reason."""
        self._secret = secret
        self._on_event = on_event
        self._tls = tls
        self._buffer_bytes = buffer_bytes
        self._jitter = jitter
        self._accepting = Accepting(identity, lambda name: name in self._links, lambda: secret.values)
        self._events: deque[LinkEvent] = deque()
        self._is_reporting = False
        self._links: dict[str, Link] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._incoming: dict[str, _Incoming] = {}
        self._counts: dict[str, LinkCounts] = {}
        self._watching: asyncio.Task[None] | None = None
        self._is_running = False
        self._members = dict(members)

    # Life cycle

    def start(self) -> None:
        """Start connecting."""
        self._is_running = True
        self._watching = asyncio.create_task(self._secret.watch(), name="secret of the group")
        self.set_members(self._members)

    def set_members(self, members: Mapping[str, Address]) -> None:
        """Replace the members. Links with others end; a changed address is used for the next attempt."""
        others = {name: address for name, address in members.items() if name != self.identity.member}
        for name in self._links.keys() - others.keys():
            self.disconnect(name, f"{name} is not a member any more")
            self._tasks.pop(name).cancel()
            self._links.pop(name).abort()
        for name, address in others.items():
            if name in self._links:
                self._links[name].address = address
                continue
            link = Link(
                self.identity,
                name,
                address,
                self._counts.setdefault(name, LinkCounts()),
                secret=lambda: self._secret.first,
                tls=self._tls,
                on_lost=self._lost,
                jitter=self._jitter,
                buffer_bytes=self._buffer_bytes,
            )
            self._links[name] = link
            self._tasks[name] = asyncio.create_task(link.run(), name=f"link to member {name}")

    async def stop(self) -> None:
        """Close all links. Nothing is reported any more."""
        self._is_running = False
        tasks = [*self._tasks.values(), *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        for link in self._links.values():
            link.abort()
        for incoming in list(self._incoming.values()):
            incoming.ended = True
            incoming.connection.abort()
        self._incoming.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Interface of the driver

    def send(self, member: str, message: LinkMessage) -> bool:
        """Send a message; return whether it was sent. Never waits: without a connection or space, it is dropped.

        ValueError for a message that cannot be encoded. Nothing is sent to a process that is not another member.
        """
        link = self._links.get(member)
        return link is not None and link.send(message)

    def disconnect(self, member: str, reason: str) -> None:
        """Close all connections with a member, which is informed of the reason."""
        reason = reason[:MAX_REASON_CHARACTERS]
        link = self._links.get(member)
        if link is not None:
            link.disconnect(f"disconnected: {reason}")
        incoming = self._incoming.get(member)
        if incoming is not None:
            self._end(incoming, reason)

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the other members."""
        return tuple(sorted(self._links))

    def is_connected(self, member: str) -> bool:
        """Return whether messages can be sent to a member."""
        link = self._links.get(member)
        return link is not None and link.problem is None

    def problem(self, member: str) -> str | None:
        """Return why messages to a member cannot be sent; None if they can."""
        return self._links[member].problem

    def version(self, member: str) -> int | None:
        """Return the version of the messages that a member receives; None without a connection."""
        peer = self._links[member].peer
        return None if peer is None else peer.version

    def receives_from(self, member: str) -> bool:
        """Return whether a member has a proven connection to this one."""
        return member in self._incoming

    def counts(self, member: str) -> LinkCounts:
        """Return the counters of a member."""
        return self._counts[member]

    # Interface of the server

    def handle(self, connection: RemotingConnection, command: Command) -> bool:
        """Perform a step of the handshake of an incoming connection; return whether it is complete.

        A connection whose handshake fails is closed after the response.
        """
        try:
            if not self._is_running or command.is_oneway:
                raise LinkError("form", "no handshake is possible now")
            if command.code == RequestCode.LINK_REPLICA:
                certificate = connection.server_certificate_hash()
                response = self._accepting.linked(connection.id, command, certificate)
                connection.send(encode_response(command, response))
                return False
            response, peer = self._accepting.proven(connection.id, command)
        except LinkError as error:
            self._reject(connection, command, error)
            return False
        self._accept(connection, peer)
        connection.send(encode_response(command, response))
        return True

    def closed(self, connection_id: int) -> None:
        """Note that an incoming connection has ended."""
        self._accepting.closed(connection_id)
        for incoming in list(self._incoming.values()):
            if incoming.connection.id == connection_id:
                self._remove(incoming)

    # Internals

    def _accept(self, connection: RemotingConnection, peer: Peer) -> None:
        previous = self._incoming.get(peer.member)
        if previous is not None:
            if previous.peer.process != peer.process:
                _throttled.warning(
                    "member %s connected from %s as another process, although its connection from %s is open: give each"
                    " process its own haMemberName",
                    peer.member,
                    connection.remote_address,
                    previous.connection.remote_address,
                )
            self._end(previous, f"member {peer.member} has a newer connection, from {connection.remote_address}")
        incoming = self._incoming[peer.member] = _Incoming(connection, peer)
        self._counts[peer.member].accepted += 1
        connection.charge_to(f"member {peer.member}")  # no account has a space in its name
        # A link that always receives holds its buffer for longer than any stranger, and would be closed first.
        connection.leave_budget()
        connection.end_if_peer_vanishes(VANISHED_S)
        connection.pass_requests_to(lambda connection, commands: self._received(incoming, commands))
        _logger.info("member %s connected from %s", peer.member, connection.remote_address)

    def _received(self, incoming: _Incoming, commands: list[Command]) -> None:
        member, version = incoming.peer.member, incoming.peer.version
        counts = self._counts[member]
        for command in commands:
            if incoming.ended:
                return
            if command.code != RequestCode.REPLICATE:
                self._end(incoming, f"a link carries no requests with code {command.code}")
                return
            try:
                message = decode_message(command.body, version)
            except ProtocolError as error:
                text = "disconnected member %s at %s: %s"
                _throttled.warning(text, member, incoming.connection.remote_address, error)
                self._end(incoming, str(error))
                return
            counts.received_messages += 1
            counts.received_bytes += len(command.body)
            if isinstance(message, TablePart | TableAck):
                self._report(TableReceived(member, message))
            else:
                self._report(Received(member, message))

    def _end(self, incoming: _Incoming, reason: str) -> None:
        farewell = request_command(RequestCode.LINK_REPLICA, oneway=True)
        farewell.remark = reason[:MAX_REASON_CHARACTERS]
        incoming.connection.send(encode_command(farewell))
        incoming.connection.close()
        self._remove(incoming)

    def _remove(self, incoming: _Incoming) -> None:
        if incoming.ended:
            return
        incoming.ended = True
        incoming.connection.pass_requests_to(refuse_all)  # breaks a cycle
        if self._incoming.get(incoming.peer.member) is incoming:
            del self._incoming[incoming.peer.member]
        self._lost(incoming.peer.member)

    def _lost(self, member: str) -> None:
        self._report(ConnectionLost(member))

    def _report(self, event: LinkEvent) -> None:
        """Call `on_event`, which may itself disconnect members: their events follow when it has returned."""
        if not self._is_running:
            return
        self._events.append(event)
        if self._is_reporting:
            return
        self._is_reporting = True
        try:
            while self._events:
                self._on_event(self._events.popleft())
        finally:
            self._is_reporting = False

    def _reject(self, connection: RemotingConnection, command: Command, error: LinkError) -> None:
        self.rejected[error.reason] += 1
        # Throttled, because a peer can cause this at will.
        _throttled.warning(
            f"rejected a link from %s ({error.reason}): %s",
            connection.remote_address,
            shown(str(error)),
            peer=connection.remote_address,
        )
        if not command.is_oneway:
            connection.send(encode_response(command, Response(error.code, str(error)[:MAX_REASON_CHARACTERS])))
        connection.close()
