"""`delaymq topic`: topics and their queues."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, NameServers, Yes, confirm
from delaymq.cli.target.connection import with_client
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, counted, print_json
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_time
from delaymq.cli.views.topics import (
    KINDS,
    PERMISSIONS,
    TopicView,
    load_topic,
    load_topics,
    topic_masters,
    unknown_topic,
)
from delaymq.client import Admin, Client, TopicConfig

MAX_QUEUES: Final = 16_384
"""Limit of a DelayMQ broker."""
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
QueueCount = Annotated[int, typer.Option(min=1, max=MAX_QUEUES, help="Number of queues on each broker.")]
Permission = Annotated[str, typer.Option(metavar="rw|r|w", help="Client permissions: read, write or both.")]
OfCluster = Annotated[str | None, typer.Option(metavar="NAME", help="Only the brokers of this cluster.")]


def list_topics(
    kind: Annotated[str, typer.Option(metavar="|".join((*KINDS, "all")), help="Kind of topics to list.")] = "normal",
    contains: Annotated[str, typer.Option(metavar="TEXT", help="Only topics whose name contains TEXT.")] = "",
    names_only: Annotated[
        bool, typer.Option("--names", help="Only names: a single request even for thousands of topics.")
    ] = False,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """List topics with their queues and messages.

    Example: delaymq topic list --kind deadLetter
    """
    if kind not in (*KINDS, "all"):
        raise CommandError(f"--kind {kind}: use one of {', '.join(KINDS)} or all", EXIT_USAGE)

    async def work(client: Client) -> int:
        seen = await load_topics(client, kind, contains, with_messages=not names_only)
        for each in seen if as_json else ():
            print_json({"topic": each.topic} if names_only else each.row())
        if as_json:
            return 0
        if names_only:
            for each in seen:
                console().print(each.topic)
        elif seen:
            columns = ("topic", "kind", "perm", "last stored", "brokers", "queues", "messages")
            console().print(table(columns, [each.cells() for each in seen], left=4))
        else:
            console().print(f"no {'' if kind == 'all' else kind + ' '}topics{' with ' + contains if contains else ''}")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def show(topic: TopicName, namesrv: NameServers = None, context: ContextName = None, as_json: AsJson = False) -> None:
    """Show a topic: its settings, its offsets by queue, and the groups that consume it."""

    async def work(client: Client) -> int:
        seen = await load_topic(client, topic)
        if as_json:
            print_json(seen.details())
        else:
            _show(seen)
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def _show(seen: TopicView) -> None:
    out = console()
    last = format_time(seen.last_stored_ms) or "never"
    out.print(f"{seen.topic}: {seen.kind}, {counted(seen.messages, 'message')}, last stored {last}")
    rows = [
        (name, PERMISSIONS.get(config.permission & 6, ""), str(config.read_queues), str(config.write_queues))
        for name, config in sorted(seen.configs.items())
    ]
    out.print(table(("broker", "perm", "read queues", "write queues"), rows, left=2))
    queues = [
        (
            queue.broker_name,
            format_time(offset.last_update_timestamp or None),
            str(queue.queue_id),
            str(offset.min_offset),
            str(offset.max_offset),
            str(offset.max_offset - offset.min_offset),
        )
        for queue, offset in seen.offsets
    ]
    out.print(table(("broker", "last stored", "queue", "min", "max", "messages"), queues, left=2))
    out.print(f"groups: {', '.join(seen.groups) or 'none'}")


def create(
    topic: TopicName,
    queues: QueueCount = 8,
    permission: Permission = "rw",
    cluster: OfCluster = None,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic on all brokers, and wait until clients can find it.

    Example: delaymq topic create Orders --queues 16
    """
    wanted = _permission(permission)

    async def work(client: Client) -> int:
        admin = Admin(client)
        for broker_name, address in (await admin.masters(cluster)).items():
            if topic in await admin.topic_configs(address):
                raise CommandError(
                    f"topic {topic} already exists on {broker_name}: change it with `delaymq topic update`"
                )
        await admin.create_topic(topic, queues=queues, perm=wanted, cluster=cluster)
        await _show_result(client, topic, as_json, "created")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def update(
    topic: TopicName,
    queues: Annotated[int | None, typer.Option(min=1, max=MAX_QUEUES, help="Number of read and write queues.")] = None,
    read_queues: Annotated[int | None, typer.Option(min=0, max=MAX_QUEUES, help="Number of read queues.")] = None,
    write_queues: Annotated[int | None, typer.Option(min=0, max=MAX_QUEUES, help="Number of write queues.")] = None,
    permission: Annotated[str | None, typer.Option(metavar="rw|r|w", help="Client permissions.")] = None,
    cluster: OfCluster = None,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Change the given settings of a topic, on all brokers that have it.

    To reduce the number of queues without losing messages, lower --write-queues first; lower --read-queues once the
    remaining messages are consumed.
    """
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise CommandError("use either --queues, or --read-queues and --write-queues", EXIT_USAGE)
    read, write = read_queues if queues is None else queues, write_queues if queues is None else queues
    wanted = None if permission is None else _permission(permission)
    if read is None and write is None and wanted is None:
        raise CommandError("give at least one of --queues, --read-queues, --write-queues, --permission", EXIT_USAGE)

    async def work(client: Client) -> int:
        admin = Admin(client)
        found = await topic_masters(client, topic, cluster)
        for address, config in found.values():
            changed = TopicConfig(
                topic=topic,
                read_queues=config.read_queues if read is None else read,
                write_queues=config.write_queues if write is None else write,
                permission=config.permission if wanted is None else wanted,
                order=config.order,
                filter_type=config.filter_type,
                sys_flag=config.sys_flag,
            )
            await admin.put_topic(address, changed)
        await _show_result(client, topic, as_json, "changed")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def delete(topic: TopicName, yes: Yes = False, namesrv: NameServers = None, context: ContextName = None) -> None:
    """Delete a topic with its messages, on all brokers and at the NameServers. This cannot be undone.

    Pending delayed messages are still delivered to its queues when they are due; consumers receive them if the topic is
    created again.
    """

    async def work(client: Client) -> int:
        admin = Admin(client)
        known = await admin.topics()
        if topic not in known:
            raise unknown_topic(topic, known)
        seen = await load_topic(client, topic)
        readers = f" (consumed by {', '.join(seen.groups)})" if seen.groups else ""
        confirm(f"Delete topic {topic} with its {counted(seen.messages, 'message')}{readers}?", yes)
        await admin.delete_topic(topic)
        console().print(f"topic {topic} is deleted")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def _permission(text: str) -> int:
    by_text = {name: number for number, name in PERMISSIONS.items() if name}
    if text not in by_text:
        raise CommandError(f"--permission {text}: use rw, r or w", EXIT_USAGE)
    return by_text[text]


async def _show_result(client: Client, topic: str, as_json: bool, done: str) -> None:
    found = await topic_masters(client, topic, None)
    if as_json:
        brokers = [
            {"brokerName": name, "readQueues": config.read_queues, "writeQueues": config.write_queues,
             "permission": PERMISSIONS.get(config.permission & 6, "")}
            for name, (_, config) in sorted(found.items())
        ]  # fmt: skip
        print_json({"topic": topic, "brokers": brokers})
    else:
        console().print(f"topic {topic} is {done} on {', '.join(sorted(found))}")
