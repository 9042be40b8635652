"""Keeps the broker registered with every NameServer: at start, every 30 s, and when a topic is made."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import structs

from delaymq.protocol.bodies import KVTable, TopicConfig, body_crc32
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from delaymq.server.errors import ServerError
from delaymq.server.registration_account import AccountError, RegistrationAccount
from delaymq.throttled_log import fields
from delaymq.transport import ConnectError, RemotingConnection, TransportError, connect
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

FIRST_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 2.0
"""A NameServer that is restarted or moved elsewhere is looked for this often; its name is resolved each time."""
UNREGISTER_TIMEOUT_MS: Final = 3_000
MAX_ANNOUNCED_AT_ONCE: Final = 16
"""Changed topics are told with an answer, for the order settings in it; a slow NameServer must not pile them up."""

_logger = logging.getLogger(__name__)


class NameServerLink:
    """The connection to one NameServer. Its task runs until it is cancelled."""

    def __init__(
        self,
        broker: "Broker",
        host: str,
        port: int,
        account: RegistrationAccount,
        leads: Callable[["NameServerLink"], bool] = lambda link: True,
    ) -> None:
        """`leads` says whether this NameServer's order settings count: they may differ, and must not take turns."""
        self.address = host_and_port(host, port)
        self.registered = False
        """Whether this NameServer has answered a registration since the start."""
        self.registrations = 0
        self.problem: str | None = "not tried yet"
        """Why it is not registered now; None: it is."""
        self._broker = broker
        self._account = account
        self._host = host
        self._port = port
        self._connection: RemotingConnection | None = None
        self._signed_by: tuple[str, str] | None = None
        """The account by which the connection's requests are signed."""
        self._wanted = asyncio.Event()
        self._leads = leads
        self._telling = 0

    async def run(self) -> None:
        """Connects, registers, and does so again whenever the connection ends."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                await self._stay_registered()
            except (TransportError, RequestError, AccountError, OSError) as error:
                if self.problem is None:
                    backoff_s = FIRST_BACKOFF_S  # it had worked: try again soon
                if self.problem != str(error):
                    text = "not registered with the NameServer %s: %s"
                    _logger.warning(text, self.address, error, extra=fields(namesrv=self.address))
                self.problem = str(error)
            self._drop_connection()
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _stay_registered(self) -> None:
        self._connection = await connect(
            self._host,
            self._port,
            on_closed=lambda connection, error: self._wanted.set(),
            timeout_ms=self._broker.config.register_broker_timeout_mills,
            tls=await self._tls(),
        )
        self._signed_by = None
        is_due = True
        while True:
            self._wanted.clear()
            if is_due or await self._is_outdated(self._connection):
                await self._register(self._connection)
            is_due = True
            try:
                async with asyncio.timeout(self._broker.config.register_name_server_period / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                is_due = self._broker.config.force_register
            if self._connection.closing:
                raise ServerGoneError(self.address)

    async def _is_outdated(self, connection: RemotingConnection) -> bool:
        """Asks whether the NameServer has other topics than the broker; where not, that it asked keeps it listed."""
        broker = self._broker
        header = QueryDataVersionRequestHeader(
            broker.config.broker_name, broker.address, broker.config.broker_cluster_name, broker.config.broker_id
        )
        command = request_command(RequestCode.QUERY_DATA_VERSION, header.to_fields(), broker.topics.version.encode())
        answer = await connection.request(command, broker.config.register_broker_timeout_mills)
        return answer.code != ResponseCode.SUCCESS or answer.fields.get("changed") != "false"

    async def _tls(self) -> ssl.SSLContext | None:
        config = self._broker.config
        if not config.dials_tls:
            return None
        from delaymq.server.tls.contexts import client_context

        try:
            # Anew for each connection, and so from the files of now; reading all issuers of a system takes a while.
            return await asyncio.get_running_loop().run_in_executor(None, client_context, config)
        except ServerError as error:
            raise ConnectError(self.address, str(error)) from error

    async def _register(self, connection: RemotingConnection) -> None:
        broker = self._broker
        timeout_ms = broker.config.register_broker_timeout_mills
        keys = await self._account.refresh()
        if keys is not None and keys != self._signed_by:
            await self._account.sign_requests(connection, keys, timeout_ms)
            self._signed_by = keys
        command = register_command(broker, broker.register_body())
        answer = await connection.request(command, broker.config.register_broker_timeout_mills)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(answer.code, answer.remark or "the registration was refused")
        if self.problem is not None:
            _logger.info("registered with the NameServer %s", self.address, extra=fields(namesrv=self.address))
        self.problem = None
        self.registered = True
        self.registrations += 1
        self._take_order_settings(answer)

    def _take_order_settings(self, answer: Command) -> None:
        if answer.body and answer.code == ResponseCode.SUCCESS and self._leads(self):
            take_order_settings(self._broker, KVTable.decode(answer.body).table)

    def announce(self, command: Command) -> None:
        """Sends a registration, if there is a connection; without one the next registration tells all."""
        connection = self._connection
        if connection is None or self.problem is not None:
            return
        # What fails here is told by the next registration.
        with contextlib.suppress(TransportError, ValueError):
            if self._telling < MAX_ANNOUNCED_AT_ONCE:
                future = connection.start_request(command, self._broker.config.register_broker_timeout_mills)
                self._telling += 1
                future.add_done_callback(self._announced)
            else:
                connection.send_oneway(command)

    def _announced(self, future: "asyncio.Future[Command]") -> None:
        self._telling -= 1
        if not future.cancelled() and future.exception() is None:
            with contextlib.suppress(RequestError):
                self._take_order_settings(future.result())

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """The NameServer's answer; TransportError when there is no connection, or none in time."""
        if self._connection is None or self.problem is not None:
            raise TransportError(self.address, self.problem or "not connected")
        return await self._connection.request(command, timeout_ms)

    def register_soon(self) -> None:
        """Registers again now, with everything."""
        self._wanted.set()

    async def unregister(self) -> None:
        """Tells the NameServer that the broker does not come back."""
        broker = self._broker
        header = UnRegisterBrokerRequestHeader(
            broker.config.broker_name, broker.address, broker.config.broker_cluster_name, broker.config.broker_id
        )
        command = request_command(RequestCode.UNREGISTER_BROKER, header.to_fields())
        if self._connection is not None:
            try:
                await self._connection.request(command, UNREGISTER_TIMEOUT_MS)
            except TransportError as error:
                _logger.warning("could not unregister: %s", error)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Ends the connection."""
        self._drop_connection()


class ServerGoneError(TransportError):
    """The NameServer closed the connection."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "the NameServer closed the connection")


class Registration:
    """All NameServers of one broker."""

    def __init__(self, broker: "Broker", name_servers: tuple[tuple[str, int], ...]) -> None:
        self._broker = broker
        self._account = RegistrationAccount(broker.config.namesrv_account_file)
        self.links = [NameServerLink(broker, host, port, self._account, self._leads) for host, port in name_servers]
        self._tasks: list[asyncio.Task[None]] = []
        self._changed: dict[str, TopicConfig] = {}
        self._told_soon = False

    def start(self) -> None:
        """Begins to register, and listens for topics that change."""
        self._tasks = [asyncio.create_task(link.run(), name=f"register {link.address}") for link in self.links]
        self._broker.topics.changed = self.topic_changed

    @property
    def is_registered(self) -> bool:
        """Whether at least one NameServer knows the broker since the start; true if there are none to know it."""
        return not self.links or any(link.registered for link in self.links)

    def _leads(self, link: NameServerLink) -> bool:
        return next((each for each in self.links if each.problem is None), None) is link

    def topic_changed(self, topic: TopicConfig) -> None:
        """Tells the NameServers about a topic at the end of this turn of the loop, together with others."""
        self._changed[topic.topic_name] = topic
        if not self._told_soon:
            self._told_soon = True
            asyncio.get_running_loop().call_soon(self._announce)

    def register_soon(self) -> None:
        """Registers everything anew with all NameServers."""
        for link in self.links:
            link.register_soon()

    def _announce(self) -> None:
        self._told_soon = False
        changed, self._changed = self._changed, {}
        command_body = self._broker.register_body(changed)
        for link in self.links:
            link.announce(register_command(self._broker, command_body))

    async def unregister(self) -> None:
        """Tells all NameServers that the broker does not come back."""
        self._cancel()
        await asyncio.gather(*(link.unregister() for link in self.links))

    async def stop(self) -> None:
        """Ends the registrations and the connections, without unregistering: the routes stay for their grace."""
        self._broker.topics.changed = None
        self._cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self.links:
            link.close()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def register_command(broker: "Broker", body: bytes) -> Command:
    """Request 103 with this body."""
    config = broker.config
    header = RegisterBrokerRequestHeader(
        config.broker_name,
        broker.address,
        config.broker_cluster_name,
        host_and_port(config.broker_ip2, config.ha_listen_port),
        config.broker_id,
        config.compressed_register,
        body_crc32(body),
    )
    return request_command(RequestCode.REGISTER_BROKER, header.to_fields(), body)


def take_order_settings(broker: "Broker", table: dict[str, str]) -> None:
    """Which topics are ordered is the NameServers' to say (namespace ORDER_TOPIC_CONFIG); a broker follows."""
    for topic in list(broker.topics.table.values()):
        ordered = topic.topic_name in table
        if topic.order != ordered:
            broker.topics.put(structs.replace(topic, order=ordered))
