"""`delaymq cluster show`: brokers and NameServers of a cluster, and their state."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

from delaymq.cli.options import AsJson, ContextName, NameServers
from delaymq.cli.target.connection import with_client
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, duration, print_json
from delaymq.cli.terminal.tables import table
from delaymq.client import Admin, Client, ClientError
from delaymq.clock import now_ms
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command


def show(namesrv: NameServers = None, context: ContextName = None, as_json: AsJson = False) -> None:
    """Show brokers and NameServers: availability, uptime, message rates and disk usage.

    Exits with code 1 if one of them does not respond.
    """
    where = target(namesrv, context=context)

    async def work(client: Client) -> int:
        info = await Admin(client).cluster_info()
        cluster_of = {name: cluster for cluster, members in info.cluster_addr_table.items() for name in members}
        brokers = await asyncio.gather(
            *(
                _broker(client, cluster_of.get(name, data.cluster), name, broker_id, address)
                for name, data in sorted(info.broker_addr_table.items())
                for broker_id, address in sorted(data.broker_addrs.items())
            )
        )
        name_servers = await asyncio.gather(*(_name_server(client, each) for each in client.name_servers))
        if as_json:
            print_json({"brokers": brokers, "nameServers": name_servers})
        else:
            _show(brokers, name_servers)
        return 1 if any(each["problem"] for each in (*brokers, *name_servers)) else 0

    raise typer.Exit(with_client(where, work))


async def _broker(client: Client, cluster: str, name: str, broker_id: int, address: str) -> dict[str, Any]:
    row: dict[str, Any] = {"cluster": cluster, "brokerName": name, "brokerId": broker_id, "address": address}
    try:
        figures = await Admin(client).runtime_info(address)
        problem = None
    except ClientError as error:
        figures, problem = {}, str(error)
    return row | {
        "version": figures.get("brokerVersionDesc"),
        "startedMs": _number(figures.get("bootTimestamp")),
        "storedPerSecond": _rate(figures.get("putTps")),
        "consumedPerSecond": _rate(figures.get("getTransferedTps")),
        "storedToday": _number(figures.get("msgPutTotalTodayNow")),
        "pendingDelays": _pending(figures) if figures else None,
        "diskUsedRatio": _rate(figures.get("commitLogDiskRatio")),
        "problem": problem,
    }


async def _name_server(client: Client, address: str) -> dict[str, Any]:
    try:
        await client.request(address, request_command(RequestCode.GET_BROKER_CLUSTER_INFO))
        problem = None
    except ClientError as error:
        problem = str(error)
    return {"address": address, "problem": problem}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _rate(text: str | None) -> float | None:
    """Return the first of the figures, which are averages over 10 s, 1 min and 10 min."""
    try:
        return round(float((text or "").split()[0]), 4)
    except (IndexError, ValueError):
        return None


def _pending(figures: dict[str, str]) -> int:
    """Return the number of pending messages of all delay levels: `scheduleMessageOffset_3` = `offset,end`."""
    pending = 0
    for key, value in figures.items():
        offset, _, end = value.partition(",")
        if key.startswith("scheduleMessageOffset_") and offset.isdigit() and end.isdigit():
            pending += max(int(end) - int(offset), 0)
    return pending


def _show(brokers: list[dict[str, Any]], name_servers: list[dict[str, Any]]) -> None:
    out, now = console(), now_ms()
    columns = ("cluster", "broker", "address", "version", "uptime", "in/s", "out/s", "pending delays", "disk")
    rows = [
        (
            each["cluster"],
            each["brokerName"] + (f" ({each['brokerId']})" if each["brokerId"] else ""),
            each["address"],
            each["version"] or "no response",
            "" if each["startedMs"] is None else duration(now - each["startedMs"]),
            *("" if each[name] is None else f"{each[name]:.0f}" for name in ("storedPerSecond", "consumedPerSecond")),
            "" if each["pendingDelays"] is None else str(each["pendingDelays"]),
            "" if each["diskUsedRatio"] is None else f"{each['diskUsedRatio']:.0%}",
        )
        for each in brokers
    ]
    if rows:
        out.print(table(columns, rows, left=4))
    else:
        out.print("no broker is registered: start one with this NameServer as its namesrvAddr")
    for each in brokers:
        if each["problem"]:
            out.print(f"{each['brokerName']}: {each['problem']}")
    for each in name_servers:
        out.print(f"NameServer {each['address']}: {each['problem'] or 'available'}")
