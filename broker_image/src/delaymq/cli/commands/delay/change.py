"""`delaymq delay cancel`, `move`, `fire` and `touch`: change a pending message, over a broker's HTTP API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, counted, print_json
from delaymq.cli.terminal.times import format_time, parse_due_time
from delaymq.message.errors import LevelTableError
from delaymq.message.levels import parse_delay_ms

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to which the message is to be delivered.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="The message's DELAY_KEY.")]
MessageId = Annotated[str | None, typer.Option("--id", metavar="ID", help="The message's unique id.")]
Handle = Annotated[str | None, typer.Option("--handle", metavar="HANDLE", help="The message's recall handle.")]


def cancel(
    topic: Topic,
    key: Key = None,
    message_id: MessageId = None,
    handle: Handle = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a pending message: it will not be delivered.

    Example: delaymq delay cancel Reminders --key order-4711
    """
    body = _target(topic, key, message_id, handle)
    answer = HttpApi(target(http=http, token_file=token_file, context=context)).post(
        "delay/changes", {"action": "cancel", **body}
    )
    _show(answer, as_json, "cancelled")


def move(
    topic: Topic,
    key: Key = None,
    message_id: MessageId = None,
    handle: Handle = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="New due time, such as 2027-01-31T12:00+01:00.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="DURATION", help="New delay from now, such as 30s, 5m or 7d.")
    ] = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Let a pending message be due at another time.

    Examples: delaymq delay move Campaign --key spring --at 2027-03-02T09:00+01:00; delaymq delay move Reminders --key
    order-4711 --after 2h
    """
    body = _target(topic, key, message_id, handle)
    if (at is None) == (after is None):
        raise CommandError("give either --at or --after", EXIT_USAGE)
    time = {"deliverAt": parse_due_time(at).isoformat()} if at is not None else {"delayMs": _delay_ms(after or "")}
    answer = HttpApi(target(http=http, token_file=token_file, context=context)).post(
        "delay/changes", {"action": "move", **body, **time}
    )
    _show(answer, as_json, "moved")


def fire(
    topic: Topic,
    key: Key = None,
    message_id: MessageId = None,
    handle: Handle = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Deliver a pending message now."""
    body = _target(topic, key, message_id, handle)
    answer = HttpApi(target(http=http, token_file=token_file, context=context)).post(
        "delay/changes", {"action": "fire", **body}
    )
    _show(answer, as_json, "made due now")


def touch(
    topic: Topic,
    key: Key = None,
    message_id: MessageId = None,
    handle: Handle = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Restart the delay of a pending message from now."""
    body = _target(topic, key, message_id, handle)
    answer = HttpApi(target(http=http, token_file=token_file, context=context)).post(
        "delay/changes", {"action": "touch", **body}
    )
    _show(answer, as_json, "touched")


def _target(topic: str, key: str | None, message_id: str | None, handle: str | None) -> dict[str, str]:
    """Return the members of a request that name a message. CommandError unless exactly one of the options is given."""
    given = {name: value for name, value in (("key", key), ("id", message_id), ("handle", handle)) if value is not None}
    if len(given) != 1:
        raise CommandError("name the message by one of --key, --id and --handle", EXIT_USAGE)
    return {"topic": topic, **given}


def _delay_ms(text: str) -> int:
    try:
        return parse_delay_ms(text)
    except LevelTableError as error:
        raise CommandError(f"--after: {error}", EXIT_USAGE) from error


def _show(answer: dict[str, Any], as_json: bool, what: str) -> None:
    if as_json:
        print_json(answer)
        return
    changed, due_ms = answer.get("changed", 0), answer.get("dueMs")
    if not changed:
        console().print("the message had been cancelled before")
        return
    when = f", due at {format_time(due_ms)}" if due_ms is not None else ""
    console().print(f"{counted(changed, 'message')} {what}{when}")
