"""Counts of a topic's pending delayed messages at all its brokers, over HTTP."""

from __future__ import annotations

import asyncio

from delaymq.cli.errors import CommandError
from delaymq.cli.target.contexts import Target
from delaymq.cli.target.every_broker import MAX_BROKERS, TIMEOUT_S, Given, Identity, brokers_at, http_of
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import counted
from delaymq.client import Client, ClientError


async def pending_counts(client: Client, where: Target, topic: str) -> list[str]:
    """Return sentences on the pending messages of `topic` at each of its brokers, and on brokers not queried.

    RocketMQ's brokers provide no count and are omitted.
    """
    route = await client.route(topic)
    masters = {name: address for name in sorted(route.brokers) if (address := route.master(name)) is not None}
    given = await brokers_at(where)
    asked = list(masters)[:MAX_BROKERS]
    told = await asyncio.gather(*(_at_broker(client, where, topic, (name, masters[name]), given) for name in asked))
    lines = [each for each in told if each]
    if left_out := len(masters) - len(asked):
        lines.append(f"delayed messages at {counted(left_out, 'more broker')} are not counted")
    return lines


async def _at_broker(client: Client, where: Target, topic: str, broker: Identity, given: Given) -> str:
    """Return a sentence on one broker's pending messages; empty if there are none."""
    try:
        found = await http_of(client, where, broker, given)
        return "" if found is None else await asyncio.to_thread(_count_at, found, topic)
    except (ClientError, CommandError) as error:
        return f"cannot count delayed messages at broker {broker[0]} ({broker[1]}): {error}"


def _count_at(where: Target, topic: str) -> str:
    api = HttpApi(where, timeout_s=TIMEOUT_S)
    try:
        total = int(api.get("delay/pending", by="topic", topic=topic)["total"])
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(f"{api.url} did not return a count") from error
    if not total:
        return ""
    what = counted(total, "pending delayed message")
    return f"{what} at {api.url}: list the next with `delaymq delay list --topic {topic}`"
