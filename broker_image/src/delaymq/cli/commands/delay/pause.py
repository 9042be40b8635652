"""`delaymq delay pause` and `delaymq delay resume`: pause deliveries, and decide on overdue messages."""

from __future__ import annotations

from typing import Annotated

import typer

from delaymq.cli.options import AsJson, ContextName, HttpAddress, TokenFile, Yes, confirm
from delaymq.cli.overdue_policy import parse_overdue
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, counted, print_json


def resume(
    overdue: Annotated[
        str,
        typer.Option(
            "--overdue", metavar="CHOICE", help="For overdue messages: deliver (immediately), spread=30m, or drop."
        ),
    ] = "deliver",
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Resume deliveries after a pause, and decide what happens to the messages that have come due since."""
    choice = parse_overdue(overdue)
    if choice.what == "pause":
        pause(http, token_file, context, as_json)
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
    http: HttpAddress = None, token_file: TokenFile = None, context: ContextName = None, as_json: AsJson = False
) -> None:
    """Pause deliveries until `delaymq delay resume`, even across restarts; sends and pulls are not affected."""
    answer = HttpApi(target(http=http, token_file=token_file, context=context)).post("delay/pause", {})
    if as_json:
        print_json(answer)
    else:
        console().print(f"deliveries are paused; {counted(answer['overdue'], 'message')} overdue")
