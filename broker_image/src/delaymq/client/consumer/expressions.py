"""Check before a consumer starts whether brokers can evaluate its SQL92 expressions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from delaymq.client.errors import NoRouteError
from delaymq.client.subscriptions import Subscription
from delaymq.protocol.bodies import CheckClient
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command

if TYPE_CHECKING:
    from delaymq.client.core.client import Client


async def check_expressions(client: Client, group: str, subscriptions: Iterable[Subscription]) -> None:
    """Raise the RefusedError of the first broker that does not filter by properties, or finds an error in an
    expression.

    One broker of each topic is queried; a topic without a route is checked by its pulls only.
    """
    for subscription in list(subscriptions):
        if subscription.is_sql:
            with suppress(NoRouteError):
                route = await client.route(subscription.topic)
                address = await client.address_of(route.readable[0]) if route.readable else None
                if address is not None:
                    body = CheckClient(client.client_id, group, subscription.data()).encode()
                    await client.request(address, request_command(RequestCode.CHECK_CLIENT_CONFIG, {}, body))
