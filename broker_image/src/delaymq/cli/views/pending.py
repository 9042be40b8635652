"""Counts of a topic's pending delayed messages at all its brokers, over HTTP."""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import replace
from typing import Final

from delaymq.cli.errors import CommandError
from delaymq.cli.target.contexts import Target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import counted
from delaymq.client import Admin, Client, ClientError
from delaymq.client.core.broker_delays import SETTING_OF_OURS
from delaymq.client.core.network import split_address
from delaymq.transport.addresses import host_and_port

TIMEOUT_S: Final = 2.0
"""Timeout per broker; the counts only supplement a search."""
MAX_BROKERS: Final = 32
"""Maximum number of brokers queried by one search."""


async def pending_counts(client: Client, where: Target, topic: str) -> list[str]:
    """Return sentences on the pending messages of `topic` at each of its brokers, and on brokers not queried.

    RocketMQ's brokers provide no count and are omitted. Only the broker of `--http` receives the token, because a
    NameServer must not choose its recipient.
    """
    route = await client.route(topic)
    masters = {name: address for name in sorted(route.brokers) if (address := route.master(name)) is not None}
    named = await asyncio.to_thread(_name_at, where)
    asked = list(masters)[:MAX_BROKERS]
    told = await asyncio.gather(
        *(_at_broker(client, where, topic, name, masters[name], is_named=name == named) for name in asked)
    )
    lines = [each for each in told if each]
    if left_out := len(masters) - len(asked):
        lines.append(f"delayed messages at {counted(left_out, 'more broker')} are not counted")
    return lines


def _name_at(where: Target) -> str:
    """Return the name of the broker at `--http`; empty if no DelayMQ broker responds."""
    try:
        return str(HttpApi(where, timeout_s=TIMEOUT_S).get("broker")["brokerName"])
    except (CommandError, KeyError):
        return ""


async def _at_broker(client: Client, where: Target, topic: str, name: str, address: str, *, is_named: bool) -> str:
    """Return a sentence on one broker's pending messages; empty if there are none."""
    try:
        if not is_named:
            settings = await Admin(client).broker_config(address)
            if SETTING_OF_OURS not in settings:
                return ""
            where = replace(where, http=_http_of(settings, address), token="")
        return await asyncio.to_thread(_count_at, where, topic, name)
    except (ClientError, CommandError) as error:
        return f"cannot count delayed messages at broker {name} ({address}): {error}"


def _http_of(settings: dict[str, str], address: str) -> str:
    port, host = settings[SETTING_OF_OURS], settings.get("httpHost", "")
    if port == "0":
        raise CommandError("its HTTP API is disabled (httpPort)")
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = not host
    return f"http://{host_and_port(split_address(address)[0] if everywhere else host, int(port))}"


def _count_at(where: Target, topic: str, name: str) -> str:
    api = HttpApi(where, timeout_s=TIMEOUT_S)
    try:
        # 127.0.0.1 in the settings of another machine's broker would lead to a local broker.
        if api.get("broker")["brokerName"] != name:
            raise CommandError(f"from this machine, {api.url} reaches another broker")
        total = int(api.get("delay/pending", by="topic", topic=topic)["total"])
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(f"{api.url} did not return a count") from error
    if not total:
        return ""
    what = counted(total, "pending delayed message")
    return f"{what} at {api.url}: list the next with `delaymq delay pending --messages 10 --topic {topic}`"
