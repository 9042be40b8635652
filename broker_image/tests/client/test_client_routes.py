"""Known routes are refreshed independently."""

import asyncio

from delaymq.client import Client, ClientOptions
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until


def test_unreadable_route_does_not_prevent_refreshing_others() -> None:
    async def scenario() -> None:
        broken = asyncio.Event()
        async with running(FakeBroker()) as (_, name_server):
            plain = name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC]

            def answer(command: Command) -> Response | None:
                if broken.is_set() and command.fields["topic"] == "A":
                    return Response(body=b"no route")
                return plain(command)

            name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = answer
            name_server.topics |= {"A": 1, "B": 1}
            async with Client(name_server.address, ClientOptions(route_interval_ms=10)) as client:

                def queues(topic: str) -> int:
                    route = client.known_route(topic)
                    assert route is not None
                    return len(route.writable)

                await client.route("A")
                await client.route("B")
                broken.set()
                name_server.topics["B"] = 2
                await until(lambda: queues("B") == 2)
                assert queues("A") == 1

    run(scenario)
