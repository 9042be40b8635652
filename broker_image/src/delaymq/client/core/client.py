"""The client: the connections, requests and heartbeats that its producers and consumers share."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Self

from delaymq.client.core.background import Background
from delaymq.client.core.broker_delays import BrokerDelays
from delaymq.client.core.inbound_requests import InboundRequests, group_of
from delaymq.client.core.member import Member
from delaymq.client.core.name_servers import NameServers
from delaymq.client.core.network import Network, own_address, plain_text
from delaymq.client.core.replies import PendingReplies
from delaymq.client.core.route_cache import RouteCache
from delaymq.client.errors import ClientError, ClosedError, NoRouteError, UnreachableError
from delaymq.client.options import ClientOptions
from delaymq.message.ids import UniqueIds
from delaymq.protocol.bodies import (
    MASTER_ID,
    HeartbeatData,
    MessageQueue,
)
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.credential_fields import is_broker
from delaymq.transport import RemotingConnection, TransportError

CLOSE_LIMIT_S: Final = 60.0
"""Time in seconds that a close waits for members that are already closing; each member has its own limits."""

_logger = logging.getLogger(__name__)


class Client:
    """Connections, routes and heartbeats of producers and consumers.

    Use as `async with Client("127.0.0.1:9876") as client:`; closing it closes all members. `name_servers`:
    `host:port`, several joined by `;` or as a sequence. None: there are no NameServers, and only `request` and methods
    that take an address work.
    """

    def __init__(self, name_servers: str | Sequence[str] | None, options: ClientOptions | None = None) -> None:
        words = name_servers.split(";") if isinstance(name_servers, str) else list(name_servers or ())
        self.name_servers = [word.strip() for word in words if word.strip()]
        if name_servers is not None and not self.name_servers:
            raise ValueError(
                "give at least one NameServer, such as 127.0.0.1:9876, or None to use explicit broker addresses only"
            )
        self.options = options or ClientOptions()
        self.requests = PendingReplies()
        """Requests of all producers that are waiting for replies."""
        self._serving = InboundRequests(self)
        self.network = Network(
            self._serving.requests_received,
            self._connected,
            self.options.connect_timeout_ms,
            self.options.credentials,
            self.options.tls,
            self._wrong_server,
        )
        self._name_servers = NameServers(self.network, self.name_servers, self.options.request_timeout_ms)
        self.background = Background("client")
        self.client_id = ""
        self.unique_ids = UniqueIds()
        self.closed = False
        self._closing = False
        self.members: list[Member] = []
        """Members that were started and are not closed."""
        self._left = asyncio.Event()
        self._routes = RouteCache(self._name_servers, self.background)
        # Bound methods without a wrapper, since the first one is called for every send.
        self.known_route = self._routes.known
        self.known_addresses = self._routes.addresses
        self.route = self._routes.route
        self.route_to_send = self._routes.route_to_send
        self.refresh_soon = self._routes.refresh_soon
        self.note_broker = self._routes.note_broker
        self.delays = BrokerDelays(self.request, self.options.delay_table_ms)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Create the client ID and start the periodic tasks. No server needs to be reachable yet."""
        address = await own_address(self.name_servers, self.options.connect_timeout_ms)
        instance = self.options.instance_name or f"{os.getpid()}#{time.monotonic_ns()}"
        self.client_id = f"{address}@{instance}"
        self.unique_ids = UniqueIds(address)
        self.background.every(self.options.route_interval_ms, self._refresh_routes)
        self.background.every(self.options.heartbeat_interval_ms, self.heartbeat)

    async def close(self) -> None:
        """Close all members, then the connections."""
        if self.closed:
            return
        self._closing = True
        failed: Exception | None = None
        try:
            for member in list(self.members):
                try:
                    await member.close()
                except Exception as error:
                    # The other members are closed nevertheless.
                    failed = failed or error
            await self._all_left()
        except asyncio.CancelledError:
            await self._end_members()
            raise
        finally:
            self.closed = True
            self.requests.close()
            self.background.cancel()
            await self._routes.close()
            await self.delays.close()
            await self.network.close()
        await self.background.close()
        if failed is not None:
            raise failed

    # Members.

    async def join(self, member: Member) -> None:
        """Register a new member with the brokers, by heartbeats that continue until it leaves."""
        if self._closing:  # existing members are being closed, and a new one would remain open
            raise ClosedError("the client is closed")
        if not self.client_id:
            raise ClosedError("the client has not been started: use `async with Client(...)` or await start()")
        data = member.consumer_data()
        if data is not None and any(group_of(other) == data.group_name for other in self.members):
            # Brokers tell members apart by the client's id.
            raise ValueError(f"this client already has a consumer of group {data.group_name}: create another Client")
        if member not in self.members:
            self.members.append(member)

    def leave(self, member: Member) -> None:
        """Remove the member from the heartbeats."""
        if member in self.members:
            self.members.remove(member)
        self._left.set()

    async def _all_left(self) -> None:
        """Wait for members that are already closing, since they still need the connections."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_S):
                while self.members:
                    self._left.clear()
                    await self._left.wait()

    async def _end_members(self) -> None:
        """Stop the background work of members without waiting for a regular close."""
        for member in list(self.members):
            with suppress(Exception):  # TimeoutError is one
                async with asyncio.timeout(0):
                    await member.close()

    def has_producer(self, group: str) -> bool:
        """Return whether a producer of this group is a member."""
        return any(data.group_name == group for each in self.members if (data := each.producer_data()) is not None)

    async def heartbeat(self) -> None:
        """Send the members' groups to every broker of their topics; failures are logged."""
        topics = {topic for member in self.members for topic in member.topics()}
        await self.heartbeat_to(sorted(self.known_addresses(topics)))

    async def heartbeat_to(self, addresses: Iterable[str]) -> None:
        """Send the heartbeat to the brokers at these addresses."""
        await asyncio.gather(*(self._heartbeat_to(address) for address in addresses))

    async def _heartbeat_to(self, address: str) -> None:
        try:
            await self.network.request(address, self._heartbeat_command(), self.options.request_timeout_ms)
        except ClientError as error:
            _logger.warning("heartbeat failed: %s", error)

    def _heartbeat_command(self) -> Command:
        producers = [member.producer_data() for member in self.members]
        consumers = [member.consumer_data() for member in self.members]
        heartbeat = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[each for each in producers if each is not None],
            consumer_data_set=[each for each in consumers if each is not None],
        )
        return request_command(RequestCode.HEART_BEAT, body=heartbeat.encode())

    async def _refresh_routes(self) -> None:
        topics = {topic for member in self.members for topic in member.topics()}
        if await self._routes.refresh_all(topics):
            for member in list(self.members):
                member.membership_changed()

    # Requests.

    async def request_name_server(self, command: Command, *, unless_all: int | None = None) -> Command:
        """Return the first response of a NameServer with code 0 (errors and `unless_all` as NameServers.ask)."""
        return await self._name_servers.request(command, unless_all=unless_all)

    def require_name_servers(self) -> list[str]:
        """Return the NameServers' addresses. Raises ClientError if this client has none."""
        return self._name_servers.require()

    async def request(self, address: str, command: Command, timeout_ms: int | None = None) -> Command:
        """Return the response with code 0 (errors as Network.ask)."""
        return await self.network.request(address, command, timeout_ms or self.options.request_timeout_ms)

    async def address_of(self, queue: MessageQueue, *, to_write: bool = False, broker_id: int = MASTER_ID) -> str:
        """Return the address that serves a queue, if possible that of the broker with `broker_id`. Raises
        NoRouteError.
        """
        for fresh in (False, True):
            route = await self.route(queue.topic, fresh=fresh)
            address = route.master(queue.broker_name) if to_write else route.reader(queue.broker_name, broker_id)
            if address is not None:
                return address
        hint = f"its route currently has no address for broker {queue.broker_name}: retry later"
        raise NoRouteError(queue.topic, hint)

    # Called by the network.

    def _wrong_server(self, address: str, server: str) -> str | None:
        # An intermediary could otherwise redirect requests for one server to another.
        names = self._routes.names_at(address)
        if not names or any(is_broker(server, name, address) for name in names):
            return None
        return f"{server} responded there instead of broker {' or '.join(sorted(names))}"

    async def _connected(self, address: str, connection: RemotingConnection) -> None:
        # A restarted broker receives this client's groups before the first request.
        if address in self.name_servers or not self.members:
            return
        try:
            await connection.request(self._heartbeat_command(), self.options.request_timeout_ms)
        except TransportError as error:
            if connection.closing:
                raise UnreachableError(address, plain_text(error)) from error
            _logger.warning("heartbeat failed: %s", error)
        for member in list(self.members):
            member.membership_changed()
