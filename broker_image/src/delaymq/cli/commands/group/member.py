"""`delaymq group member` and `delaymq message consume`: requests to one member of a group through its broker."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from delaymq.cli.commands.group.groups import GroupName
from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, NameServers
from delaymq.cli.target.connection import with_client
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, print_json
from delaymq.cli.terminal.sanitize import visible
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_time
from delaymq.client import Admin, Client
from delaymq.protocol.bodies import ConsumeResult, ConsumerRunningInfo

ClientId = Annotated[str, typer.Argument(metavar="MEMBER", help="The member's client id, from `group members`.")]


def member(
    group: GroupName,
    client_id: ClientId,
    stacks: Annotated[bool, typer.Option("--stacks", help="Include the stacks of its threads or tasks.")] = False,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a member: its queues and their cached messages, its rates, and its settings.

    Works with Java and Python members; a member that hangs does not respond.
    """

    async def work(client: Client) -> int:
        info = await Admin(client).member_info(group, client_id, stacks=stacks)
        if as_json:
            print_json(_data(info))
        else:
            _show(console(), info)
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def _data(info: ConsumerRunningInfo) -> dict[str, object]:
    return {
        "properties": info.properties,
        "subscriptions": [{"topic": each.topic, "expression": each.sub_string} for each in info.subscription_set],
        "queues": [
            {
                "topic": queue.topic, "broker": queue.broker_name, "queueId": queue.queue_id,
                "nextOffset": state.commit_offset, "cached": state.cached_msg_count, "locked": state.locked,
                "lastPulledMs": state.last_pull_timestamp, "lastConsumedMs": state.last_consume_timestamp,
            }
            for queue, state in info.mq_table.items()
        ],
        "rates": [
            {
                "topic": topic, "pulledPerSecond": status.pull_tps, "consumedPerSecond": status.consume_ok_tps,
                "failedPerSecond": status.consume_failed_tps, "failedInAnHour": status.consume_failed_msgs,
                "pullMs": status.pull_rt, "consumeMs": status.consume_rt,
            }
            for topic, status in info.status_table.items()
        ],
        "stacks": info.jstack,
    }  # fmt: skip


def _show(out: Console, info: ConsumerRunningInfo) -> None:
    rows = [
        (
            queue.topic, queue.broker_name, format_time(state.last_consume_timestamp or None), str(queue.queue_id),
            str(state.commit_offset), str(state.cached_msg_count),
        )
        for queue, state in sorted(info.mq_table.items(), key=lambda item: (item[0].topic, item[0].queue_id))
    ]  # fmt: skip
    if rows:
        out.print(table(("topic", "broker", "last consumed", "queue", "next offset", "cached"), rows, left=3))
    else:
        out.print("the member has no assigned queues")
    rates = [
        (
            topic, f"{status.pull_tps:.1f}", f"{status.consume_ok_tps:.1f}", f"{status.consume_failed_tps:.1f}",
            f"{status.consume_rt:.1f}", str(status.consume_failed_msgs),
        )
        for topic, status in sorted(info.status_table.items())
    ]  # fmt: skip
    out.print()
    columns = ("topic", "pulled/s", "consumed/s", "failed/s", "handler ms", "failed in last hour")
    out.print(table(columns, rates))
    out.print()
    settings = sorted(info.properties.items())
    out.print(table(("setting", "value"), settings, left=2, elastic=1))
    if info.jstack:
        out.print()
        out.print(visible(info.jstack), markup=False, highlight=False, soft_wrap=True)


def consume(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="An offset message id.")],
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The consumer group.")],
    client_id: Annotated[
        str, typer.Option("--member", metavar="MEMBER", help="Client id of the member, from `group members`.")
    ],
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Have a member's handler consume a stored message now, outside its queues, and show the result.

    Nothing is committed, retried or counted. Useful to test a corrected handler. Exits with 1 if the handler fails.
    """

    async def work(client: Client) -> int:
        try:
            result = await Admin(client).consume_directly(group, client_id, message_id)
        except ValueError as error:
            raise CommandError(f"{message_id}: {error}", EXIT_USAGE) from error
        succeeded = result.consume_result in (ConsumeResult.SUCCESS, ConsumeResult.COMMIT)
        shown = (result.consume_result or ConsumeResult.RETURN_NULL).value
        if as_json:
            print_json({"result": shown, "remark": result.remark, "tookMs": result.spent_time_mills})
        else:
            why = f": {result.remark}" if result.remark else ""
            console().print(visible(f"{shown} after {result.spent_time_mills} ms{why}"), markup=False, soft_wrap=True)
        return 0 if succeeded else 1

    raise typer.Exit(with_client(target(namesrv, context=context), work))
