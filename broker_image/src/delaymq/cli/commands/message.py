"""`delaymq message`: find messages and show their history."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, explain_bad_answers, print_json, warn
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import parse_time
from delaymq.cli.views.message_ids import parse_message_id
from delaymq.cli.views.message_life import show_life

MAX_FOUND: Final = 10_000
DEFAULT_FOUND: Final = 64
SHOWN_BODY: Final = 60
MessageId = Annotated[str, typer.Argument(metavar="ID", help="An offset message id, or with --topic a unique id.")]
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic; required for a unique id.")]


def get(
    message_id: MessageId,
    topic: OfTopic = None,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show one message with its properties and body.

    `send` prints the unique id (with --json also the offset message id). Examples: delaymq message get
    7F00000100002A9F0000000000000000; delaymq message get AC1100020EB2… --topic Orders
    """
    from delaymq.cli.target.connection import with_client
    from delaymq.cli.views.message_lookup import Unreachable, find_by_offset_id, find_by_unique_id
    from delaymq.cli.views.message_text import as_lines, stored_data
    from delaymq.client import Client

    async def work(client: Client) -> int:
        found = [await find_by_offset_id(client, message_id)] if topic is None else []
        unreachable = Unreachable()
        if topic is not None:
            found = await find_by_unique_id(client, topic, message_id, unreachable)
        for number, message in enumerate(found):
            if as_json:
                print_json(stored_data(message))
                continue
            for line in ["", *as_lines(message)] if number else as_lines(message):
                console().print(line, soft_wrap=True)
        if unreachable:
            warn(str(unreachable))
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def find(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    key: Annotated[str | None, typer.Option(metavar="KEY", help="One of the message's keys.")] = None,
    unique_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="A unique id, from `send`.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Stored at or after this time: ISO, '10m ago', ms since 1970."),
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Stored at or before this time.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Search only this queue; requires --from.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=MAX_FOUND, help="Maximum number, oldest first; at most 64 by key.")
    ] = DEFAULT_FOUND,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Find messages of a topic by key, unique id, or store time.

    Searches all brokers of the topic and names those that do not respond. Finds pending delayed messages by key and by
    unique id. A search by time does not find them, but counts them at each broker whose HTTP API is reachable.
    Examples: delaymq message find Orders --key 4711; delaymq message find Orders --from '10m ago' --to now
    """
    begin_ms, end_ms = _search_range(key, unique_id, since, until, queue)
    from delaymq.cli.target.connection import with_client
    from delaymq.cli.views.message_lookup import Unreachable, find_by_key, found_rows
    from delaymq.cli.views.message_text import stored_data
    from delaymq.cli.views.pending import pending_counts
    from delaymq.client import Admin, Client

    where = target(namesrv, http, token_file, context)
    word = key if key is not None else unique_id

    async def work(client: Client) -> int:
        unreachable = Unreachable()
        waiting: list[str] = []
        if word is not None:
            found = await find_by_key(client, topic, word, begin_ms, end_ms, unreachable, limit)
        else:
            found = await Admin(client).query_by_time(
                topic, begin_ms, end_ms, max_messages=limit, queue_id=queue, on_unreachable=unreachable
            )
            waiting = await pending_counts(client, where, topic)
        if as_json:
            for message in found:
                print_json(stored_data(message))
        elif found:
            columns = ("stored", "unique id", "queue", "offset", "tags", "keys", "state", "body")
            console().print(table(columns, found_rows(found, SHOWN_BODY), left=8, elastic=7))
        if not found:
            criterion = f" with {'unique id' if key is None else 'key'} {word}" if word else ""
            what = f"no message found in topic {topic}{criterion}"
            more = "; ".join([*waiting, str(unreachable)] if unreachable else waiting)
            raise CommandError(f"{what}: {more}" if more else what, unreachable.exit_code)
        for line in [] if as_json else waiting:
            console().print(line)
        if unreachable:
            warn(str(unreachable))
        return 0

    raise typer.Exit(with_client(where, work))


def _search_range(
    key: str | None, unique_id: str | None, since: str | None, until: str | None, queue: int | None
) -> tuple[int, int]:
    """Return the range of store times (ms) to search; raise CommandError for conflicting options."""
    if key is not None and unique_id is not None:
        raise CommandError("use --key or --id, not both", EXIT_USAGE)
    if key is None and unique_id is None and since is None:
        raise CommandError("give a search criterion: --key, --id, or --from (and --to)", EXIT_USAGE)
    begin_ms = 0 if since is None else parse_time(since)
    end_ms = parse_time("now" if until is None else until)
    if begin_ms > end_ms:
        raise CommandError("--from is after --to: swap them", EXIT_USAGE)
    if queue is not None and (key or unique_id):
        raise CommandError("--queue requires --from, and excludes --key and --id", EXIT_USAGE)
    return begin_ms, end_ms


def life(
    message_id: MessageId,
    topic: OfTopic = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show a message's history: when it was stored, due, delivered, consumed, retried or dead-lettered.

    Example: delaymq message life AC1100020EB2… --topic Orders
    """
    from urllib.parse import quote

    from delaymq.cli.target.http_api import ApiError, HttpApi

    if topic is None:
        parse_message_id(message_id)
    api = HttpApi(target(http=http, token_file=token_file, context=context))
    try:
        answer = api.get(f"messages/{quote(message_id, safe='')}", topic=topic)
    except ApiError as error:
        if error.code != "no_such_message" or topic is not None:
            raise
        raise CommandError(
            f"the broker at {api.url} has no message {message_id[:64]}: it was deleted, or another broker has it;"
            " a unique id requires --topic"
        ) from error
    if as_json:
        print_json(answer)
        return
    with explain_bad_answers(api.url, "a message"):
        show_life(answer)
