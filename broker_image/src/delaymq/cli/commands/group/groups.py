"""`delaymq group`: consumer groups, their members and their progress."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Console

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, NameServers, Yes, confirm
from delaymq.cli.target.connection import with_client
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, counted, print_json
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_time
from delaymq.cli.views.groups import GroupView, load_group, load_groups, member_rows, sorted_progress
from delaymq.client import Admin, Client, GroupConfig
from delaymq.message import names

MAX_RETRIES: Final = 10_000
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


def list_groups(
    contains: Annotated[str, typer.Option(metavar="TEXT", help="Only groups whose name contains TEXT.")] = "",
    names_only: Annotated[
        bool, typer.Option("--names", help="Only names: a single request even for thousands of groups.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Include the brokers' system groups.")] = False,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """List groups with their members and their lag."""

    async def work(client: Client) -> int:
        seen = await load_groups(client, contains, with_system=everything, with_progress=not names_only)
        if as_json:
            for each in seen:
                print_json({"group": each.group} if names_only else each.row())
        elif names_only:
            for each in seen:
                console().print(each.group)
        elif seen:
            columns = ("group", "model", "topics", "members", "lag", "dead letters")
            rows = [
                (
                    each.group,
                    (each.members.model or "").lower(),
                    ", ".join(each.topics),
                    str(len(each.members.members)),
                    str(each.lag),
                    str(each.dead_letters),
                )
                for each in seen
            ]
            console().print(table(columns, rows, left=3, elastic=2))
        else:
            console().print("no groups: the first consumer of a group creates it")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def show(group: GroupName, namesrv: NameServers = None, context: ContextName = None, as_json: AsJson = False) -> None:
    """Show a group: its members, its subscriptions, and its progress by queue."""

    async def work(client: Client) -> int:
        seen = await load_group(client, group)
        if as_json:
            print_json(seen.details())
        else:
            _show(console(), seen)
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def _show(out: Console, seen: GroupView) -> None:
    model = f"{seen.members.model.lower()}, " if seen.members.model else ""
    count = len(seen.members.members)
    letters = counted(seen.dead_letters, "dead letter")
    out.print(f"{seen.group}: {model}{counted(count, 'member')}, lag {seen.lag}, {letters}")
    for name, config in sorted(seen.configs.items()):
        off = "" if config.consume else ", consumption disabled"
        out.print(f"on {name}: {config.retry_max_times} retries in {config.retry_queues} queues{off}")
    for topic, each in sorted(seen.members.subscriptions.items()):
        out.print(f"subscribes to {topic}: {each.sub_string}")
    _show_members(out, seen)
    rows = [
        (
            queue.topic,
            queue.broker_name,
            format_time(offset.last_timestamp or None),
            str(queue.queue_id),
            str(offset.consumer_offset),
            str(offset.broker_offset),
            str(max(offset.broker_offset - offset.consumer_offset, 0)),
        )
        for queue, offset in sorted_progress(seen.progress)
    ]
    if rows:
        columns = ("topic", "broker", "last consumed (stored)", "queue", "offset", "end", "lag")
        out.print(table(columns, rows, left=3))


def _show_members(out: Console, seen: GroupView) -> None:
    rows = [
        (each["clientId"], each["address"], each["language"], str(each["version"]))
        for each in member_rows(seen.members)
    ]
    if rows:
        out.print(table(("member", "address", "language", "version"), rows, left=3))


def members(
    group: GroupName, namesrv: NameServers = None, context: ContextName = None, as_json: AsJson = False
) -> None:
    """List the members of a group."""

    async def work(client: Client) -> int:
        seen = await load_group(client, group)
        if as_json:
            for each in member_rows(seen.members):
                print_json(each)
        elif seen.members.members:
            _show_members(console(), seen)
        else:
            console().print(f"group {group} has no members")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def create(
    group: GroupName,
    retries: Annotated[
        int, typer.Option(min=0, max=MAX_RETRIES, help="Number of retries before a message becomes a dead letter.")
    ] = 16,
    retry_queues: Annotated[int, typer.Option(min=0, max=16_384, help="Number of queues of its retry topic.")] = 1,
    broadcast: Annotated[bool, typer.Option(help="Whether members may use broadcasting.")] = True,
    consume: Annotated[bool, typer.Option(help="Whether the group may consume.")] = True,
    replace: Annotated[bool, typer.Option("--replace", help="Change an existing group.")] = False,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="Only the brokers of this cluster.")] = None,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Create a group on all brokers, or change it; required where autoCreateSubscriptionGroup is off.

    Example: delaymq group create billing --retries 5
    """
    config = GroupConfig(
        group=group, consume=consume, broadcast=broadcast, retry_queues=retry_queues, retry_max_times=retries
    )

    async def work(client: Client) -> int:
        admin = Admin(client)
        masters = await admin.masters(cluster)
        for broker_name, address in masters.items():
            if not replace and group in await admin.group_configs(address):
                raise CommandError(f"group {group} already exists on {broker_name}: change it with --replace")
        await admin.put_group(config, cluster=cluster)
        if as_json:
            print_json({"group": group, "brokers": sorted(masters)})
        else:
            console().print(f"group {group} is set on {', '.join(sorted(masters))}")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def delete(
    group: GroupName,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Keep the consumer offsets, so that the group can continue later.")
    ] = False,
    keep_dead_letters: Annotated[
        bool, typer.Option("--keep-dead-letters", help="Keep the dead letters, which remain readable.")
    ] = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    context: ContextName = None,
) -> None:
    """Delete a group with its offsets, retries and dead letters, on all brokers. This cannot be undone."""

    async def work(client: Client) -> int:
        if names.is_system_group(group):
            raise CommandError(f"{group} is a system group and cannot be deleted", EXIT_USAGE)
        seen = await load_group(client, group)
        count = len(seen.members.members)
        if count:
            who = ", ".join(sorted(seen.members.members)[:3])
            raise CommandError(
                f"group {group} has {counted(count, 'member')} ({who}): stop them first, because they would recreate"
                " the group immediately"
            )
        kept = " (they are kept)" if keep_dead_letters else ""
        letters = counted(seen.dead_letters, "dead letter")
        confirm(f"Delete group {group} (lag {counted(seen.lag, 'message')}) with {letters}{kept}?", yes)
        await Admin(client).delete_group(group, keep_offsets=keep_offsets, keep_dead_letters=keep_dead_letters)
        console().print(f"group {group} is deleted")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))
