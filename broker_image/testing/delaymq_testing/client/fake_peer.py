"""A NameServer and brokers in the test's own loop, on loopback sockets: they record requests and respond as
scripted. Queues hold real records; nothing else is like a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from delaymq.client import Client, ClientOptions
from delaymq.message.ids import pack_host
from delaymq.message.properties import encode_properties
from delaymq.message.record import encode_record
from delaymq.protocol.bodies import (
    BrokerData,
    ConsumerIds,
    HeartbeatData,
    LockRequest,
    LockResponse,
    RouteQueues,
    TopicRoute,
)
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, encode_command, encode_response, request_command
from delaymq.protocol.headers import send_request_header
from delaymq.transport import RemotingConnection

HOST = "127.0.0.1"
LIMIT_S = 60.0
Script = Callable[[Command], Response | None]


class FakePeer:
    """Answers by `scripts` (code → function); None from a script: no answer. Requests without one get code 3."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.scripts: dict[int, Script] = {}
        self.connections: list[RemotingConnection] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def asked(self, code: int) -> list[Command]:
        return [command for command in self.requests if command.code == code]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        self._server = await loop.create_server(lambda: _Accepted(self), HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a crash: all connections break, the port refuses."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in self.connections:
            if not connection.closing:
                connection.abort()
        self.connections.clear()
        await asyncio.sleep(0)

    def tell(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """Sends a one-way request to every client."""
        for connection in self.connections:
            if not connection.closing:
                connection.send(encode_command(request_command(code, fields, body, oneway=True)))

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """What the first client answers."""
        [connection, *_] = [each for each in self.connections if not each.closing]
        return await connection.request(request_command(code, fields, body), 10_000)

    def _commanded(self, connection: RemotingConnection, commands: list[Command]) -> None:
        for command in commands:
            self.requests.append(command)
            script = self.scripts.get(command.code, _unknown)
            response = script(command)
            if response is not None and not command.is_oneway:
                connection.send(encode_response(command, response))


class _Accepted(RemotingConnection):
    """A connection that the peer knows from the moment it can be written to."""

    def __init__(self, owner: FakePeer) -> None:
        super().__init__(owner._commanded)
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._owner.connections.append(self)


def _unknown(command: Command) -> Response:
    return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")


class FakeBroker(FakePeer):
    """Takes sends, serves its one queue by `records`, knows its members by their heartbeats."""

    def __init__(self, name: str = "broker-a") -> None:
        super().__init__()
        self.name = name
        self.records: list[bytes] = []
        self.members: list[str] = []
        self.committed: int | None = None
        self.settings = "messageDelayLevel=1s 5s 10s\n"
        self.scripts = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: lambda _: Response(),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.SEND_MESSAGE_V2: self.send_answer,
            RequestCode.SEND_BATCH_MESSAGE: self.send_answer,
            RequestCode.GET_BROKER_CONFIG: lambda _: Response(body=self.settings.encode()),
            RequestCode.QUERY_CONSUMER_OFFSET: self._offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
            RequestCode.GET_MAX_OFFSET: lambda _: Response(fields={"offset": str(len(self.records))}),
            RequestCode.GET_MIN_OFFSET: lambda _: Response(fields={"offset": "0"}),
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.CONSUMER_SEND_MSG_BACK: lambda _: Response(),
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: lambda _: Response(),
        }

    def add(self, topic: str, body: bytes, *, sys_flag: int = 0, **properties: str) -> None:
        """Puts a message into queue 0 of `topic` (the fake has one topic)."""
        offset = len(self.records)
        self.records.append(
            encode_record(
                topic=topic.encode(),
                queue_id=0,
                queue_offset=offset,
                physical_offset=1000 * offset,
                flag=0,
                sys_flag=sys_flag,
                born_timestamp_ms=1_700_000_000_000,
                born_host=pack_host(HOST, 1),
                store_timestamp_ms=1_700_000_000_001,
                store_host=pack_host(HOST, self.port),
                reconsume_times=0,
                prepared_transaction_offset=0,
                body=body,
                properties=encode_properties({"UNIQ_KEY": f"ID{offset}"} | properties),
            )
        )

    def sent(self) -> list[tuple[bytes, dict[str, str]]]:
        """Bodies and header fields of all sends."""
        codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        return [(command.body, command.fields) for command in self.requests if command.code in codes]

    def send_answer(self, command: Command) -> Response:
        header = send_request_header(command.code, command.fields)
        fields = {"msgId": "AA", "queueId": str(header.queue_id), "queueOffset": "7"}
        return Response(fields=fields)

    def _heartbeat(self, command: Command) -> Response:
        data = HeartbeatData.decode(command.body)
        if data.consumer_data_set and data.client_id not in self.members:
            self.members.append(data.client_id)
        return Response()

    def _members(self, command: Command) -> Response:
        return Response(body=ConsumerIds(consumer_id_list=self.members).encode())

    def _offset(self, command: Command) -> Response:
        if self.committed is None:
            return Response(ResponseCode.QUERY_NOT_FOUND, "none")
        return Response(fields={"offset": str(self.committed)})

    def _commit(self, command: Command) -> Response:
        if not command.fields["topic"].startswith("%RETRY%"):
            self.committed = int(command.fields["commitOffset"])
        return Response()

    def _lock(self, command: Command) -> Response:
        return Response(body=LockResponse(lock_ok_mq_set=LockRequest.decode(command.body).mq_set).encode())

    def _pull(self, command: Command) -> Response | None:
        offset, count = int(command.fields["queueOffset"]), len(self.records)
        if command.fields["topic"].startswith("%RETRY%") or (offset == count and int(command.fields["sysFlag"]) & 2):
            return None  # held
        code, following, found = ResponseCode.SUCCESS, offset, self.records[offset : offset + 32]
        if offset > count:
            code, following = ResponseCode.PULL_OFFSET_MOVED, count
        elif not found:
            code = ResponseCode.PULL_NOT_FOUND
        else:
            following += len(found)
        fields = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": str(count)}
        return Response(code, fields=fields | {"nextBeginOffset": str(following)}, body=b"".join(found))


class FakeNameServer(FakePeer):
    """Knows the routes of `topics` (topic → queues) on all of its brokers."""

    def __init__(self, *brokers: FakeBroker, queues: int = 1) -> None:
        super().__init__()
        self.brokers = brokers
        self.topics: dict[str, int] = {"T": queues, "TBW102": 8}
        self.scripts = {RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route}

    def _route(self, command: Command) -> Response:
        topic = command.fields["topic"]
        queues = 1 if topic.startswith("%RETRY%") else self.topics.get(topic)
        if queues is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}")
        route = TopicRoute(
            broker_datas=[BrokerData(each.name, "C", {0: each.address}) for each in self.brokers],
            queue_datas=[RouteQueues(each.name, queues, queues, 6) for each in self.brokers],
        )
        return Response(body=route.encode())


@asynccontextmanager
async def running(*brokers: FakeBroker, queues: int = 1) -> AsyncIterator[tuple[Client, FakeNameServer]]:
    """Starts the brokers, a NameServer and a client; ends them."""
    async with AsyncExitStack() as stack:
        for peer in brokers:
            await peer.start()
            stack.push_async_callback(peer.stop)
        name_server = FakeNameServer(*brokers, queues=queues)
        await name_server.start()
        stack.push_async_callback(name_server.stop)
        options = ClientOptions(request_timeout_ms=2_000, connect_timeout_ms=2_000)
        client = await stack.enter_async_context(Client(name_server.address, options))
        yield client, name_server


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Runs a scenario within a limit; tasks that it leaves behind are a failure."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []

    asyncio.run(limited())


async def until(is_so: Callable[[], bool]) -> None:
    """Waits within the scenario's limit."""
    while not is_so():  # noqa: ASYNC110 - what it waits for is no event
        await asyncio.sleep(0.005)
