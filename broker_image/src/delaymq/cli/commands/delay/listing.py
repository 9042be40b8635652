"""`delaymq delay list`, `count` and `show`: pending messages of all brokers, over their HTTP APIs."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from delaymq.cli.commands.delay.status import INCOMPLETE, TIMED, Kind
from delaymq.cli.errors import EXIT_NOT_DONE, EXIT_UNREACHABLE, EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import ApiError, HttpApi
from delaymq.cli.terminal.output import console, end_if_missing, explain_bad_answers, print_json
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_clock, parse_time
from delaymq.cli.views.message_life import show_life
from delaymq.cli.views.schedules import schedule_text

MAX_LISTED: Final = 10_000
DEFAULT_LISTED: Final = 100
_PAGE: Final = 100
"""Maximum number of messages in a broker's response."""

OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only messages for this topic.")]
OfKey = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Only messages with this DELAY_KEY, key or unique id; needs --topic."),
]
OfTag = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Only messages with this tag.")]
OfGroup = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Only messages with this DELAY_GROUP; needs --topic.")
]
Held = Annotated[bool, typer.Option("--held", help="Only messages that are due, and not delivered because of a pause.")]
OfLevel = Annotated[int | None, typer.Option("--level", min=1, max=1_000, help="Only this level.")]
OfKind = Annotated[Kind | None, typer.Option("--kind", help="Only messages with a level, or only timed messages.")]
DueFrom = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Due at or after this time: ISO, 'in 2h', now, ms since 1970."),
]
DueUntil = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Due before this time.")]


def list_messages(
    topic: OfTopic = None,
    key: OfKey = None,
    tag: OfTag = None,
    group: OfGroup = None,
    held: Held = False,
    due_from: DueFrom = None,
    due_until: DueUntil = None,
    level: OfLevel = None,
    kind: OfKind = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MAX_LISTED, help="Maximum number, those due first.")
    ] = DEFAULT_LISTED,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """List pending messages in the order of their due times.

    Asks all brokers of the cluster, or only the one at --http. If a broker does not answer, the command names it and
    exits with status 3. Examples: delaymq delay list --topic Reminders --until 'in 2h'; delaymq delay list --topic
    Reminders --key customer-4711
    """
    from delaymq.cli.target.every_broker import ask_every_broker

    filters = _filters(topic, key, tag, due_from, due_until, level, kind, group, held)
    where = target(namesrv, http, token_file, context)
    found = ask_every_broker(where, http is not None, lambda api: _listed(api, filters, limit))
    merged = sorted(
        ((message, name) for name, each in found.by_broker.items() for message in each["messages"]),
        key=lambda pair: pair[0]["dueMs"],
    )
    shown = merged[:limit]
    notes = _notes(list(found.by_broker.values()), len(merged) - len(shown), len(shown))
    if as_json:
        for message, name in shown:
            print_json({**message, "broker": name})
        for note in notes:
            print(f"delaymq: {note}", file=sys.stderr)
    else:
        _show_table(shown, max(each["asOfMs"] for each in found.by_broker.values()))
        for note in notes:
            console().print(note)
    end_if_missing(found.missing)


def count(
    topic: OfTopic = None,
    key: OfKey = None,
    tag: OfTag = None,
    group: OfGroup = None,
    held: Held = False,
    due_from: DueFrom = None,
    due_until: DueUntil = None,
    level: OfLevel = None,
    kind: OfKind = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Count pending messages exactly.

    Asks all brokers of the cluster, or only the one at --http. If a broker does not answer, the command names it and
    exits with status 3. Counting by tag reads all messages that the other filters select. Example: delaymq delay count
    --topic Reminders --from 2027-03-01T00:00+01:00 --until 2027-03-02T00:00+01:00
    """
    from delaymq.cli.target.every_broker import ask_every_broker

    filters = _filters(topic, key, tag, due_from, due_until, level, kind, group, held)
    where = target(namesrv, http, token_file, context)
    found = ask_every_broker(where, http is not None, lambda api: _counted(api, filters))
    total = sum(number for number, _ in found.by_broker.values())
    is_complete = all(complete for _, complete in found.by_broker.values())
    if as_json:
        brokers = [{"broker": name, "total": number} for name, (number, _) in found.by_broker.items()]
        print_json({"total": total, "complete": is_complete, "brokers": brokers, "missing": found.missing})
    else:
        if len(found.by_broker) > 1:
            rows = [(name, str(number)) for name, (number, _) in found.by_broker.items()]
            console().print(table(("broker", "pending"), rows))
        console().print(f"{total} pending")
        if not is_complete:
            console().print(INCOMPLETE)
    end_if_missing(found.missing)


def show(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to which the message is to be delivered.")],
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="The message's DELAY_KEY.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="The message's unique id.")] = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show why a message has not arrived: whether it is pending, and who changed it; or how it ended.

    Asks all brokers of the cluster, or only the one at --http. Example: delaymq delay show Reminders --key order-4711
    """
    from delaymq.cli.target.every_broker import ask_every_broker

    if (key is None) == (message_id is None):
        raise CommandError("name the message by either --key or --id", EXIT_USAGE)
    where = target(namesrv, http, token_file, context)
    found = ask_every_broker(where, http is not None, lambda api: _lives(api, topic, key, message_id))
    lives = [life for each in found.by_broker.values() for life in each]
    name = f"DELAY_KEY {key}" if key is not None else f"unique id {message_id}"
    if not lives:
        reasons = "; ".join(["it was deleted, or never stored", *found.missing])
        code = EXIT_UNREACHABLE if found.missing else EXIT_NOT_DONE
        raise CommandError(f"no broker has a delayed message for topic {topic} with {name}: {reasons}", code)
    for number, life in enumerate(sorted(lives, key=lambda each: (each["state"] == "pending", each["storedMs"]))):
        if as_json:
            print_json(life)
            continue
        if number:
            console().print("")
        with explain_bad_answers("a broker", "a message"):
            show_life(life)
    end_if_missing(found.missing)


def _filters(
    topic: str | None,
    key: str | None,
    tag: str | None,
    due_from: str | None,
    due_until: str | None,
    level: int | None,
    kind: Kind | None,
    group: str | None,
    held: bool,
) -> dict[str, object]:
    """Return the filters as parameters of a request. CommandError if they exclude each other."""
    if level is not None and kind is Kind.TIMED:
        raise CommandError("--level cannot be combined with --kind timed: timed messages have no level", EXIT_USAGE)
    if key is not None and topic is None:
        raise CommandError("--key needs --topic", EXIT_USAGE)
    if group is not None and topic is None:
        raise CommandError("--group needs --topic", EXIT_USAGE)
    from_ms = None if due_from is None else parse_time(due_from)
    until_ms = None if due_until is None else parse_time(due_until)
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise CommandError("--from is not before --until", EXIT_USAGE)
    kind_name = None if kind is None else kind.value
    return {
        "topic": topic, "key": key, "tag": tag, "fromMs": from_ms, "untilMs": until_ms, "level": level,
        "kind": kind_name, "group": group, "held": "true" if held else None,
    }  # fmt: skip


def _page(api: HttpApi, filters: dict[str, object], after: str | None, limit: int) -> dict[str, Any]:
    """Return a page, in which the members that this module uses are present."""
    answer = api.get("delay/pending/messages", **filters, after=after, limit=limit)
    with explain_bad_answers(api.url, "pending messages"):
        answer["messages"], answer["complete"], answer["asOfMs"], answer["next"], answer["total"]
    return answer


def _listed(api: HttpApi, filters: dict[str, object], limit: int) -> dict[str, Any]:
    """Return the last page of a broker, with the messages of all pages up to a number."""
    messages: list[dict[str, Any]] = []
    after = None
    while True:
        answer = _page(api, filters, after, min(limit - len(messages), _PAGE))
        messages += answer["messages"]
        after = answer["next"]
        if after is None or len(messages) >= limit:
            return {**answer, "messages": messages}


def _counted(api: HttpApi, filters: dict[str, object]) -> tuple[int, bool]:
    """Return the number of a broker's messages, and whether it is complete."""
    answer = _page(api, filters, None, _PAGE)
    if answer["total"] is not None:
        return answer["total"], answer["complete"]
    number = len(answer["messages"])
    while answer["next"] is not None:
        answer = _page(api, filters, answer["next"], _PAGE)
        number += len(answer["messages"])
    return number, answer["complete"]


def _lives(api: HttpApi, topic: str, key: str | None, message_id: str | None) -> list[dict[str, Any]]:
    """Return the histories of the newest messages with a name."""
    from urllib.parse import quote

    try:
        if message_id is not None:
            return [api.get(f"messages/{quote(message_id, safe='')}", topic=topic)]
        with explain_bad_answers(api.url, "messages"):
            # Other messages with this key may displace the message from the search for messages that have ended.
            for path in ("delay/pending/messages", "messages"):
                for row in api.get(path, topic=topic, key=key)["messages"]:
                    if row["properties"].get("DELAY_KEY") == key:
                        return [api.get(f"messages/{row['offsetMessageId']}")]
        return []
    except ApiError as error:
        if error.status != 404:
            raise
        return []


def _show_table(shown: list[tuple[dict[str, Any], str]], as_of_ms: int) -> None:
    if not shown:
        console().print("no pending messages")
        return
    with explain_bad_answers("a broker", "pending messages"):
        rows = [
            (
                format_clock(each["dueMs"], as_of_ms),
                each["topic"],
                each["messageId"],
                each["properties"].get("DELAY_KEY", ""),
                each["properties"].get("DELAY_GROUP", ""),
                " ".join(each["keys"]),
                schedule_text(each.get("repeats")),
                str(each["delayLevel"] or TIMED),
                str(each["bytes"]),
            )
            for each, _ in shown
        ]
    columns = ("due", "topic", "unique id", "delay key", "group", "keys", "repeats", "level", "bytes")
    console().print(table(columns, rows, left=7))


def _notes(answers: list[dict[str, Any]], left: int, shown: int) -> list[str]:
    """Return notes on messages that are missing from a list."""
    notes = []
    if left > 0 or any(each["next"] is not None for each in answers):
        totals = [each["total"] for each in answers]
        of = "" if None in totals else f" of {sum(totals)}"
        notes.append(f"{shown}{of} pending messages are listed: list more with --limit, or later ones with --from")
    if not all(each["complete"] for each in answers):
        notes.append(INCOMPLETE)
    return notes
