"""Requests written together are sent together; a single one is not delayed."""

import asyncio
from collections.abc import Awaitable, Callable

from delaymq.protocol.command import Command, Response, encode_response, request_command
from delaymq.transport import RemotingConnection, connect
from delaymq.transport.outbound import GATHERED_BYTES

LIMIT_S = 60.0


class _Writes:
    """Counts what goes to the socket in the place of the connection's transport."""

    def __init__(self, connection: RemotingConnection) -> None:
        self.sizes: list[int] = []
        self._transport = connection._transport
        connection._transport = self  # type: ignore[assignment]

    def write(self, data: bytes) -> None:
        self.sizes.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


def _echo(connection: RemotingConnection, commands: list[Command]) -> None:
    for command in commands:
        if not command.is_oneway:
            connection.send(encode_response(command, Response(body=command.body)))


def run(scenario: Callable[[RemotingConnection, _Writes], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with asyncio.timeout(LIMIT_S):
            server = await asyncio.get_running_loop().create_server(lambda: RemotingConnection(_echo), "127.0.0.1", 0)
            connection = await connect("127.0.0.1", server.sockets[0].getsockname()[1])
            try:
                await scenario(connection, _Writes(connection))
            finally:
                connection.close()
                server.close()
                await asyncio.sleep(0)

    asyncio.run(connected())


def test_first_request_is_sent_immediately_and_later_ones_of_the_iteration_in_few_writes() -> None:
    async def scenario(connection: RemotingConnection, writes: _Writes) -> None:
        bodies = [b"%d" % number for number in range(50)]
        requests = (connection.request(request_command(99, body=body)) for body in bodies)
        answers = await asyncio.gather(*requests)
        assert [answer.body for answer in answers] == bodies
        assert len(writes.sizes) < 10
        assert writes.sizes[0] < min(writes.sizes[3:])

    run(scenario)


def test_half_of_the_open_requests_share_a_write() -> None:
    async def scenario(connection: RemotingConnection, writes: _Writes) -> None:
        def start(count: int) -> list[asyncio.Future[Command]]:
            return [connection.start_request(request_command(99, body=b"same size")) for _ in range(count)]

        futures = start(1)
        size = sum(writes.sizes)
        others = {-number: (asyncio.Future[Command](), 1e12, 99, 1, False) for number in range(1, 5)}
        connection._requests._open |= others
        writes.sizes.clear()
        futures += start(5)  # 5 requests were open before
        assert writes.sizes == [5 * size]
        futures += start(2)
        assert len(writes.sizes) == 1
        await asyncio.gather(*futures)
        assert writes.sizes == [5 * size, 2 * size]
        for number in others:
            connection._requests.forget(number)

    run(scenario)


def test_single_request_is_sent_before_its_response_is_awaited() -> None:
    async def scenario(connection: RemotingConnection, writes: _Writes) -> None:
        for number in range(3):
            assert (await connection.request(request_command(99, body=b"%d" % number))).body == b"%d" % number
        assert len(writes.sizes) == 3

    run(scenario)


def test_coalesced_data_is_limited() -> None:
    async def scenario(connection: RemotingConnection, writes: _Writes) -> None:
        body = bytes(GATHERED_BYTES // 4)
        await asyncio.gather(*(connection.request(request_command(99, body=body)) for _ in range(16)))
        assert len(writes.sizes) >= 4
        assert max(writes.sizes) < 2 * GATHERED_BYTES

    run(scenario)


def test_order_is_kept_between_coalesced_and_immediate_writes() -> None:
    async def scenario(connection: RemotingConnection, writes: _Writes) -> None:
        seen: list[bytes] = []

        def note(_: RemotingConnection, commands: list[Command]) -> None:
            seen.extend(command.body for command in commands)

        server = await asyncio.get_running_loop().create_server(lambda: RemotingConnection(note), "127.0.0.1", 0)
        own = await connect("127.0.0.1", server.sockets[0].getsockname()[1])
        for number in range(0, 20, 2):
            own.start_request(request_command(99, body=b"%d" % number)).add_done_callback(lambda done: done.exception())
            own.send_oneway(request_command(99, body=b"%d" % (number + 1)))
        while len(seen) < 20:  # noqa: ASYNC110 - at the peer
            await asyncio.sleep(0.005)
        assert seen == [b"%d" % number for number in range(20)]
        own.abort()
        server.close()
        await asyncio.sleep(0)

    run(scenario)


def test_close_sends_coalesced_data() -> None:
    async def scenario(connection: RemotingConnection, writes: _Writes) -> None:
        futures = [connection.start_request(request_command(99, body=body)) for body in (b"first", b"last")]
        assert len(writes.sizes) == 1
        connection.close()
        assert len(writes.sizes) == 2
        await asyncio.gather(*futures, return_exceptions=True)

    run(scenario)
