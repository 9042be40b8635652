"""Unregisters a producer or consumer at the brokers that know its group."""

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
"""For a connection that is made only to say goodbye: a close must not wait long for a broker that is gone."""


async def unregister(
    client: Client, topics: Iterable[str], *, producer_group: str | None = None, consumer_group: str | None = None
) -> None:
    """Tells the brokers of the topics that a group is gone from this client, as far as they answer.

    Of a consumer also those that are not connected now: a broker that was just restarted takes it for a member for
    40 s, and nobody would read its queues so long.
    """
    addresses = client.known_addresses(topics)
    header = UnregisterClientRequestHeader(
        client_id=client.client_id, producer_group=producer_group, consumer_group=consumer_group
    )

    connected = set(client.network.addresses)

    async def unregister_at(address: str) -> None:
        with suppress(ClientError, TimeoutError):  # the broker forgets clients by itself
            async with asyncio.timeout(None if address in connected else UNREGISTER_TIMEOUT_S):
                await client.request(address, request_command(RequestCode.UNREGISTER_CLIENT, header.to_fields()))

    told = addresses if consumer_group is not None else addresses & connected
    await asyncio.gather(*(unregister_at(address) for address in sorted(told)))
