"""`delaymq delay cancel`, `move`, `fire` and `touch`: change pending messages, over the brokers' HTTP APIs."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from delaymq.cli.errors import EXIT_UNREACHABLE, EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile
from delaymq.cli.target.contexts import Target, target
from delaymq.cli.target.http_api import ApiError, HttpApi
from delaymq.cli.terminal.output import console, counted, end_if_missing, print_json
from delaymq.cli.terminal.times import format_time, parse_delay_option, parse_due_time

FATES: Final = ("delivered", "cancelled", "replaced", "expired", "dropped")
"""Codes of responses from a broker that had the message."""
ABSENT: Final = ("no_such_message", "no_such_topic")
"""Codes of responses from a broker that has no record of it."""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to which the message is to be delivered.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="The message's DELAY_KEY.")]
MessageId = Annotated[str | None, typer.Option("--id", metavar="ID", help="The message's unique id.")]
Handle = Annotated[str | None, typer.Option("--handle", metavar="HANDLE", help="The message's recall handle.")]
Group = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="The DELAY_GROUP of the messages, instead of one message."),
]


def cancel(
    topic: Topic,
    key: Key = None,
    message_id: MessageId = None,
    handle: Handle = None,
    group: Group = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a pending message, or all those of a group: they will not be delivered.

    Asks all brokers of the cluster, or only the one at --http. If no broker has the message as a pending one, the
    command says what happened to it, and exits with status 1. Examples: delaymq delay cancel Reminders --key
    order-4711; delaymq delay cancel Campaign --group spring
    """
    body = _target(topic, key, message_id, handle, group)
    where = target(namesrv, http, token_file, context)
    _change(where, http is not None, {"action": "cancel", **body}, "cancelled", as_json)


def move(
    topic: Topic,
    key: Key = None,
    message_id: MessageId = None,
    handle: Handle = None,
    group: Group = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="New due time, such as 2027-01-31T12:00+01:00.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="DURATION", help="New delay from now, such as 30s, 5m or 7d.")
    ] = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Let a pending message, or all those of a group, be due at another time.

    Examples: delaymq delay move Campaign --group spring --at 2027-03-02T09:00+01:00; delaymq delay move Reminders --key
    order-4711 --after 2h
    """
    body = _target(topic, key, message_id, handle, group)
    if (at is None) == (after is None):
        raise CommandError("give either --at or --after", EXIT_USAGE)
    time = (
        {"deliverAt": parse_due_time(at).isoformat()}
        if at is not None
        else {"delayMs": parse_delay_option("--after", after or "")}
    )
    where = target(namesrv, http, token_file, context)
    _change(where, http is not None, {"action": "move", **body, **time}, "moved", as_json)


def fire(
    topic: Topic,
    key: Key = None,
    message_id: MessageId = None,
    handle: Handle = None,
    group: Group = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Deliver a pending message, or all those of a group, now."""
    body = _target(topic, key, message_id, handle, group)
    where = target(namesrv, http, token_file, context)
    _change(where, http is not None, {"action": "fire", **body}, "made due now", as_json)


def touch(
    topic: Topic,
    key: Key = None,
    message_id: MessageId = None,
    handle: Handle = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Restart the delay of a pending message from now."""
    body = _target(topic, key, message_id, handle)
    where = target(namesrv, http, token_file, context)
    _change(where, http is not None, {"action": "touch", **body}, "touched", as_json)


def _target(
    topic: str, key: str | None, message_id: str | None, handle: str | None, group: str | None = None
) -> dict[str, str]:
    """Return the members of a request that name messages. CommandError unless exactly one of the options is given."""
    names = (("key", key), ("id", message_id), ("handle", handle), ("group", group))
    given = {name: value for name, value in names if value is not None}
    if len(given) != 1:
        raise CommandError("name the message by one of --key, --id and --handle, or give --group", EXIT_USAGE)
    return {"topic": topic, **given}


def _change(where: Target, is_single: bool, body: dict[str, object], what: str, as_json: bool) -> None:
    """Request a change from all brokers that may have the messages, and show the result. CommandError as `request`."""
    done, missing = request_change(where, is_single, body)
    if as_json:
        for name, answer in done.items():
            print_json({**answer, "broker": name})
    else:
        _show(list(done.values()), what, is_group="group" in body)
    end_of_change(missing)


def request_change(
    where: Target, is_single: bool, body: dict[str, object]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the responses of the brokers that made a change, by name, and sentences on those that did not answer.

    CommandError if none has the messages as pending ones.
    """
    from delaymq.cli.target.every_broker import ask_every_broker

    def ask(api: HttpApi) -> dict[str, Any] | ApiError:
        try:
            return api.post("delay/changes", body)
        except ApiError as error:
            if error.code not in (*FATES, *ABSENT):
                raise
            return error

    found = ask_every_broker(where, is_single, ask)
    done = {name: each for name, each in found.by_broker.items() if not isinstance(each, ApiError)}
    refusals = [each for each in found.by_broker.values() if isinstance(each, ApiError)]
    if not done:
        # A broker that has had the message knows more than those that have not.
        reason = next((each for each in refusals if each.code in FATES), refusals[0])
        if not found.missing or reason.code in FATES:
            raise reason
        raise CommandError("; ".join([str(reason), *found.missing]), EXIT_UNREACHABLE)
    return done, found.missing


def end_of_change(missing: list[str]) -> None:
    """Report brokers that did not answer; then exit with EXIT_UNREACHABLE."""
    end_if_missing(missing, "nothing is changed where brokers do not answer")


def _show(answers: list[dict[str, Any]], what: str, *, is_group: bool) -> None:
    """Print the sum of the responses of all brokers."""
    changed = sum(answer.get("changed", 0) for answer in answers)
    if not changed:
        console().print(f"the {'messages' if is_group else 'message'} had been cancelled before")
        return
    due_ms = max((answer["dueMs"] for answer in answers if answer.get("dueMs") is not None), default=None)
    when = f", due at {format_time(due_ms)}" if due_ms is not None else ""
    console().print(f"{counted(changed, 'message')} {what}{when}")
