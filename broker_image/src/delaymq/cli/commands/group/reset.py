"""`delaymq group reset`: set the position from which a group continues."""

from __future__ import annotations

from typing import Annotated

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, NameServers, Yes, confirm
from delaymq.cli.target.connection import closest_name, with_client
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, counted, print_json
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_time, parse_time
from delaymq.cli.views.groups import GroupView, load_group
from delaymq.client import EARLIEST, LATEST, Admin, Client, MessageQueue, QueueReset, ResetOutcome


def reset(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")],
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="The topic whose offsets to reset.")],
    to: Annotated[
        str | None, typer.Option(metavar="WHEN", help="earliest, latest, or a time: ISO, '10m ago', ms since 1970.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, help="An offset instead of --to; needs --queue and a group without members.")
    ] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="The queue for --offset.")] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The broker of the queue; required if several brokers have a queue with this number."
        ),
    ] = None,
    yes: Yes = False,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Reset a group to the earliest message, the end, or a time, and show the old and new offsets.

    Running members are notified and continue from there; for a group without members, the stored offsets are changed.
    Examples: delaymq group reset billing --topic Orders --to '2h ago';
    delaymq group reset billing --topic Orders --to latest
    """
    if (to is None) == (offset is None):
        raise CommandError("give the new position: --to earliest|latest|TIME, or --offset with --queue", EXIT_USAGE)
    if (offset is None) != (queue is None):
        raise CommandError("--offset and --queue require each other", EXIT_USAGE)
    at_ms = 0 if to is None else _at(to)

    async def work(client: Client) -> int:
        seen = await load_group(client, group)
        await _check_topic(client, topic)
        members = len(seen.members.members)
        if offset is not None and queue is not None:
            _check_alone(seen)
            confirm(f"Set group {group} to offset {offset} in queue {queue} of {topic}?", yes)
            outcome = await _set_one(client, seen, await _queue(client, topic, queue, broker), offset)
        else:
            told = f" and notify {counted(members, 'member')}" if members else ""
            confirm(f"Reset group {group} in topic {topic} to {_shown(at_ms)}{told}?", yes)
            outcome = await Admin(client).reset_offset(group, topic, at_ms)
        _report(outcome, group, members, as_json)
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def _at(to: str) -> int:
    words = {"earliest": EARLIEST, "latest": LATEST}
    return words[to.lower()] if to.lower() in words else parse_time(to)


def _shown(at_ms: int) -> str:
    return {EARLIEST: "the earliest message", LATEST: "the end"}.get(at_ms) or format_time(at_ms)


async def _check_topic(client: Client, topic: str) -> None:
    known = await Admin(client).topics()
    if topic not in known:
        near = closest_name(topic, known)
        raise CommandError(f"no broker has topic {topic}{f': did you mean {near}?' if near else ''}")


def _check_alone(seen: GroupView) -> None:
    if seen.members.members:
        who = ", ".join(sorted(seen.members.members)[:3])
        raise CommandError(
            f"group {seen.group} has {counted(len(seen.members.members), 'member')} ({who}), which would overwrite the"
            " offset: stop them first, or use --to, which running members follow"
        )


async def _queue(client: Client, topic: str, queue_id: int, broker: str | None) -> MessageQueue:
    route = await client.route(topic, fresh=True)
    found = [each for each in route.readable if each.queue_id == queue_id and broker in (None, each.broker_name)]
    if not found:
        of_broker = f" on broker {broker}" if broker else ""
        raise CommandError(f"topic {topic} has no queue {queue_id}{of_broker}")
    if len(found) > 1:
        names = ", ".join(each.broker_name for each in found)
        raise CommandError(f"queue {queue_id} is on several brokers ({names}): specify one with --broker", EXIT_USAGE)
    return found[0]


async def _set_one(client: Client, seen: GroupView, queue: MessageQueue, offset: int) -> ResetOutcome:
    old = seen.progress[queue].consumer_offset if queue in seen.progress else 0
    await Admin(client).set_offset(seen.group, queue, offset)
    return ResetOutcome(queues={queue: QueueReset(old=old, new=offset)}, told_members=False)


def _report(outcome: ResetOutcome, group: str, members: int, as_json: bool) -> None:
    queues = sorted(outcome.queues.items(), key=lambda each: (each[0].broker_name, each[0].queue_id))
    if as_json:
        rows = [
            {"broker": queue.broker_name, "queueId": queue.queue_id, "oldOffset": each.old, "newOffset": each.new}
            for queue, each in queues
        ]
        print_json({"group": group, "toldMembers": members if outcome.told_members else 0, "queues": rows})
        return
    cells = [
        (queue.broker_name, str(queue.queue_id), str(each.old), str(each.new), f"{each.new - each.old:+d}")
        for queue, each in queues
    ]
    console().print(table(("broker", "queue", "old offset", "new offset", "change"), cells))
    if outcome.told_members:
        console().print(
            f"notified {counted(members, 'member')}: they continue from there within seconds, Java members within 20 s"
        )
