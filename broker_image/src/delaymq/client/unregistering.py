"""The goodbye of a producer or consumer to the brokers that know its group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from delaymq.client.client import Client
from delaymq.client.errors import ClientError
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import UnregisterClientRequestHeader


async def unregister(
    client: Client, topics: Iterable[str], *, producer_group: str | None = None, consumer_group: str | None = None
) -> None:
    """Tells all connected brokers of the topics that a group is gone from this client, as far as they answer."""
    addresses = {
        address
        for topic in topics
        if (route := client.known_route(topic)) is not None
        for by_id in route.brokers.values()
        for address in by_id.values()
    }
    header = UnregisterClientRequestHeader(
        client_id=client.client_id, producer_group=producer_group, consumer_group=consumer_group
    )

    async def tell(address: str) -> None:
        with suppress(ClientError):  # the broker forgets clients by itself
            await client.ask(address, request_command(RequestCode.UNREGISTER_CLIENT, header.to_fields()))

    await asyncio.gather(*(tell(address) for address in sorted(addresses & set(client.network.addresses))))
