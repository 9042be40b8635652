"""`delaymq delay pause` and `delaymq delay resume`: pause all deliveries, a topic or a group.

The end of a pause of all deliveries decides on overdue messages."""

from __future__ import annotations

from typing import Annotated

import typer

from delaymq.cli.commands.delay.change import end_of_change, request_change
from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile, Yes, confirm
from delaymq.cli.overdue_policy import parse_overdue
from delaymq.cli.target.contexts import Target, target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, counted, print_json

OfTopic = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="Only delayed messages for this topic, at all brokers.")
]
OfGroup = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Only messages with this DELAY_GROUP; needs --topic.")
]


def resume(
    overdue: Annotated[
        str,
        typer.Option(
            "--overdue", metavar="CHOICE", help="For overdue messages: deliver (immediately), spread=30m, or drop."
        ),
    ] = "deliver",
    topic: OfTopic = None,
    group: OfGroup = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Resume deliveries after a pause, and decide what happens to the messages that have come due since.

    With --topic, and --group, the command ends the pause of a topic or group at all brokers of the cluster, or only at
    the one at --http. Without them, it resumes all deliveries of the broker at --http. Example: delaymq delay resume
    --topic Campaign --group spring
    """
    choice = parse_overdue(overdue)
    names = _names(topic, group)
    if names:
        if choice.what != "deliver":
            raise CommandError("--overdue cannot be combined with --topic: overdue messages are delivered", EXIT_USAGE)
        where = target(namesrv, http, token_file, context)
        _change(where, http is not None, {"action": "resume", **names}, "resumed", as_json)
        return
    if choice.what == "pause":
        pause(http=http, token_file=token_file, context=context, as_json=as_json)
        return
    api = HttpApi(target(http=http, token_file=token_file, context=context))
    body: dict[str, object] = {"overdue": choice.what}
    if choice.what == "spread":
        body["overMs"] = choice.over_ms
    if choice.what == "drop":
        told = api.get("delay")
        count = (told.get("held") or {}).get("overdue", 0)
        confirm(f"Permanently drop {counted(count, 'overdue delayed message')}?", yes)
        body["upToMs"] = told["asOfMs"]
    answer = api.post("delay/resume", body)
    if as_json:
        print_json(answer)
        return
    number = counted(answer["overdue"], "overdue message")
    action = {
        "deliver": f"delivering {number} now",
        "spread": f"delivering {number} over {choice.over_ms / 1000:g} s",
        "drop": f"dropping {number}, each recorded by a mark in the commit log",
    }
    console().print(f"deliveries are resumed: {action[choice.what]}")


def pause(
    topic: OfTopic = None,
    group: OfGroup = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Pause deliveries until `delaymq delay resume`, even across restarts; sends and pulls are not affected.

    With --topic, and --group, the command pauses a topic or group at all brokers of the cluster, or only at the one at
    --http. Without them, it pauses all deliveries of the broker at --http. Example: delaymq delay pause --topic
    Campaign --group spring
    """
    names = _names(topic, group)
    if names:
        where = target(namesrv, http, token_file, context)
        _change(where, http is not None, {"action": "pause", **names}, "paused", as_json)
        return
    answer = HttpApi(target(http=http, token_file=token_file, context=context)).post("delay/pause", {})
    if as_json:
        print_json(answer)
    else:
        console().print(f"deliveries are paused; {counted(answer['overdue'], 'message')} overdue")


def _names(topic: str | None, group: str | None) -> dict[str, object]:
    """Return the members of a request that name a topic or group; none without a topic. CommandError."""
    if group is not None and topic is None:
        raise CommandError("--group needs --topic", EXIT_USAGE)
    return {name: value for name, value in (("topic", topic), ("group", group)) if value is not None}


def _change(where: Target, is_single: bool, body: dict[str, object], what: str, as_json: bool) -> None:
    done, missing = request_change(where, is_single, body)
    if as_json:
        for name, answer in done.items():
            print_json({**answer, "broker": name})
    else:
        of_group = f"group {body['group']} of " if "group" in body else ""
        pending = counted(sum(answer.get("changed", 0) for answer in done.values()), "pending message")
        console().print(f"{of_group}topic {body['topic']} is {what}: {pending}")
    end_of_change(missing)
