"""Registration of the broker with every NameServer: at startup, every 30 s, and when a topic is created."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

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
from delaymq.server.registration_account import AccountError, RegistrationAccount
from delaymq.server.tls.outgoing import outgoing_tls
from delaymq.throttled_log import fields
from delaymq.transport import RemotingConnection, TransportError, connect
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

FIRST_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 2.0
"""Maximum interval between attempts to reach a NameServer; its name is resolved each time."""
UNREGISTER_TIMEOUT_MS: Final = 3_000
INSISTING_S: Final = 20.0
"""Time for which a new master repeats its registration: its predecessor may have been suspended, and may register once
more when it continues."""
INSISTING_INTERVAL_S: Final = 2.0
MAX_ANNOUNCED_AT_ONCE: Final = 16
"""Maximum pending registrations of changed topics that expect a response, whose order configuration is used."""

_logger = logging.getLogger(__name__)


class GroupClaim(NamedTuple):
    """What a master states about its replicated group, so that NameServers replace the former one immediately."""

    epoch: int
    tokens: tuple[str, ...]


NO_GROUP: Final = GroupClaim(0, ())


class Place(NamedTuple):
    """Id and address under which a broker is registered."""

    broker_id: int
    address: str


class NameServerLink:
    """Connection to one NameServer. Its task runs until it is cancelled."""

    def __init__(
        self,
        broker: "Broker",
        host: str,
        port: int,
        account: RegistrationAccount,
        leads: Callable[["NameServerLink"], bool] = lambda link: True,
        group: Callable[[], "GroupClaim"] = lambda: NO_GROUP,
        place: Place | None = None,
    ) -> None:
        """`leads` returns whether this NameServer's order configuration is used, as those of NameServers may differ.

        `place`: that of a replica, which is registered without topics. None: the broker's own.
        """
        self._group = group
        self._place = place or Place(broker.config.broker_id, broker.address)
        self._topics: dict[str, TopicConfig] | None = None if place is None else {}
        self.insists_until = 0.0
        """Loop time until which the registration is repeated at short intervals."""
        self.address = host_and_port(host, port)
        self.registered = False
        """Whether this NameServer has accepted a registration since startup."""
        self.registrations = 0
        self.problem: str | None = "not tried yet"
        """Why the broker is not registered now; None: it is registered."""
        self._broker = broker
        self._account = account
        self._host = host
        self._port = port
        self._connection: RemotingConnection | None = None
        self._signed_by: tuple[str, str] | None = None
        """The account that signs the connection's requests."""
        self._wanted = asyncio.Event()
        self._leads = leads
        self._telling = 0

    async def run(self) -> None:
        """Connect and register, and repeat whenever the connection ends."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                await self._stay_registered()
            except (TransportError, RequestError, AccountError, OSError) as error:
                if self.problem is None:
                    backoff_s = FIRST_BACKOFF_S  # the last attempt succeeded: retry soon
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
            tls=await outgoing_tls(self._broker.config, self.address),
        )
        self._signed_by = None
        is_due = True
        while True:
            self._wanted.clear()
            if is_due or await self._is_outdated(self._connection):
                await self._register(self._connection)
            is_due = True
            try:
                insists = asyncio.get_running_loop().time() < self.insists_until
                period_s = self._broker.config.register_name_server_period / 1000
                async with asyncio.timeout(INSISTING_INTERVAL_S if insists else period_s):
                    await self._wanted.wait()
            except TimeoutError:
                is_due = insists or self._broker.config.force_register
            if self._connection.closing:
                raise ServerGoneError(self.address)

    async def _is_outdated(self, connection: RemotingConnection) -> bool:
        """Query whether the NameServer's topics are outdated; if not, the query itself renews the registration."""
        broker = self._broker
        config, place = broker.config, self._place
        header = QueryDataVersionRequestHeader(
            config.broker_name, place.address, config.broker_cluster_name, place.broker_id
        )
        command = request_command(RequestCode.QUERY_DATA_VERSION, header.to_fields(), broker.topics.version.encode())
        answer = await connection.request(command, broker.config.register_broker_timeout_mills)
        return answer.code != ResponseCode.SUCCESS or answer.fields.get("changed") != "false"

    async def _register(self, connection: RemotingConnection) -> None:
        broker = self._broker
        timeout_ms = broker.config.register_broker_timeout_mills
        keys = await self._account.refresh()
        if keys is not None and keys != self._signed_by:
            await self._account.sign_requests(connection, keys, timeout_ms)
            self._signed_by = keys
        command = register_command(broker, broker.register_body(self._topics), self._group(), self._place)
        answer = await connection.request(command, broker.config.register_broker_timeout_mills)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(answer.code, answer.remark or "the registration was rejected")
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
        """Send a registration if connected; otherwise, the next registration includes everything."""
        connection = self._connection
        if connection is None or self.problem is not None:
            return
        # The next registration repeats what fails here.
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
        """Send a request and return the response; raise TransportError without a connection or a timely response."""
        if self._connection is None or self.problem is not None:
            raise TransportError(self.address, self.problem or "not connected")
        return await self._connection.request(command, timeout_ms)

    def register_soon(self) -> None:
        """Trigger a full registration now."""
        self._wanted.set()

    async def unregister(self) -> None:
        """Unregister the broker from the NameServer."""
        config, place = self._broker.config, self._place
        header = UnRegisterBrokerRequestHeader(
            config.broker_name, place.address, config.broker_cluster_name, place.broker_id
        )
        command = request_command(RequestCode.UNREGISTER_BROKER, header.to_fields())
        if self._connection is not None:
            try:
                await self._connection.request(command, UNREGISTER_TIMEOUT_MS)
            except TransportError as error:
                _logger.warning("cannot unregister: %s", error)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the connection."""
        self._drop_connection()


class ServerGoneError(TransportError):
    """The NameServer closed the connection."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "the NameServer closed the connection")


class Registration:
    """Registrations of one broker with all its NameServers."""

    def __init__(
        self, broker: "Broker", name_servers: tuple[tuple[str, int], ...], replica_place: Place | None = None
    ) -> None:
        """`replica_place`: register a replica there, instead of the broker with its topics."""
        self._broker = broker
        self._is_replica = replica_place is not None
        self._account = RegistrationAccount(broker.config.namesrv_account_file)
        self.links = [
            NameServerLink(broker, host, port, self._account, self._leads, lambda: self.group, replica_place)
            for host, port in name_servers
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self.group = NO_GROUP
        """What the registrations state about the broker's replicated group."""
        self._changed: dict[str, TopicConfig] = {}
        self._told_soon = False

    def start(self, *, insists: bool = False) -> None:
        """Start registering, and watch for changed topics. `insists`: repeat it at short intervals at first."""
        for link in self.links if insists else ():
            link.insists_until = asyncio.get_running_loop().time() + INSISTING_S
        self._tasks = [asyncio.create_task(link.run(), name=f"register {link.address}") for link in self.links]
        if not self._is_replica:
            self._broker.topics.changed = self.topic_changed

    @property
    def is_registered(self) -> bool:
        """Whether at least one NameServer has accepted a registration since startup; true if there are none."""
        return not self.links or any(link.registered for link in self.links)

    def _leads(self, link: NameServerLink) -> bool:
        return not self._is_replica and next((each for each in self.links if each.problem is None), None) is link

    def topic_changed(self, topic: TopicConfig) -> None:
        """Register a changed topic at the end of this loop iteration, together with others."""
        self._changed[topic.topic_name] = topic
        if not self._told_soon:
            self._told_soon = True
            asyncio.get_running_loop().call_soon(self._announce)

    def register_soon(self) -> None:
        """Trigger a full registration with all NameServers."""
        for link in self.links:
            link.register_soon()

    def _announce(self) -> None:
        self._told_soon = False
        changed, self._changed = self._changed, {}
        command_body = self._broker.register_body(changed)
        for link in self.links:
            link.announce(register_command(self._broker, command_body, self.group))

    def withdraw(self) -> None:
        """Send no further registration: another broker takes the place of this one."""
        if not self._is_replica:
            self._broker.topics.changed = None
        self._cancel()

    async def unregister(self) -> None:
        """Unregister the broker from all NameServers."""
        self._cancel()
        await asyncio.gather(*(link.unregister() for link in self.links))

    async def stop(self) -> None:
        """Stop registering and close the connections without unregistering; the routes stay for their grace period."""
        self.withdraw()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self.links:
            link.close()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def register_command(
    broker: "Broker", body: bytes, group: "GroupClaim" = NO_GROUP, place: Place | None = None
) -> Command:
    """Return request 103 with this body, for the broker itself, or for another place."""
    config = broker.config
    broker_id, address = place or (config.broker_id, broker.address)
    header = RegisterBrokerRequestHeader(
        config.broker_name,
        address,
        config.broker_cluster_name,
        host_and_port(config.broker_ip2, broker.ha_port),
        broker_id,
        config.compressed_register,
        body_crc32(body),
        group.epoch or None,
        ",".join(group.tokens) or None,
    )
    return request_command(RequestCode.REGISTER_BROKER, header.to_fields(), body)


def take_order_settings(broker: "Broker", table: dict[str, str]) -> None:
    """Set which topics are ordered, from the NameServer's key-value namespace ORDER_TOPIC_CONFIG."""
    for topic in list(broker.topics.table.values()):
        ordered = topic.topic_name in table
        if topic.order != ordered:
            broker.topics.put(structs.replace(topic, order=ordered))
