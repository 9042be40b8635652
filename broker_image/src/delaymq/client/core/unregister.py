"""Unregistration of a producer or consumer from the brokers of its group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from delaymq.client.core.client import Client
from delaymq.client.errors import ClientError
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import UnregisterClientRequestHeader

UNREGISTER_TIMEOUT_S = 1.0
"""Time limit of connections made only for unregistration, since a close must not wait long for a lost broker."""


async def unregister(
    client: Client, topics: Iterable[str], *, producer_group: str | None = None, consumer_group: str | None = None
) -> None:
    """Unregister a group from the brokers of the topics, if they respond.

    For a consumer, this includes brokers that are not connected: a broker that has just restarted would count it as a
    member for 40 s, during which nobody would read its queues.
    """
    addresses = client.known_addresses(topics)
    header = UnregisterClientRequestHeader(
        client_id=client.client_id, producer_group=producer_group, consumer_group=consumer_group
    )

    connected = set(client.network.addresses)

    async def unregister_at(address: str) -> None:
        with suppress(ClientError, TimeoutError):  # the broker removes silent clients
            async with asyncio.timeout(None if address in connected else UNREGISTER_TIMEOUT_S):
                await client.request(address, request_command(RequestCode.UNREGISTER_CLIENT, header.to_fields()))

    told = addresses if consumer_group is not None else addresses & connected
    await asyncio.gather(*(unregister_at(address) for address in sorted(told)))
