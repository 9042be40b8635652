"""`delaymq deadletter`: messages whose retries are exhausted."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer

from delaymq.api_types.dead_letters import MAX_RESENT
from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile, Yes, confirm
from delaymq.cli.target.connection import with_client
from delaymq.cli.target.contexts import Target, target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, counted, explain_bad_answers, print_json, progress
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_time
from delaymq.cli.views.groups import group_settings
from delaymq.cli.views.message_text import body_text, stored_data
from delaymq.client import Admin, Client, NoRouteError, ReceivedMessage
from delaymq.message import names
from delaymq.message.names import dead_letter_topic, retry_topic

MAX_LISTED: Final = 10_000
MAX_CONCURRENT_REQUESTS: Final = 16
RESENT_BEFORE: Final = "resent_before"
"""Error code of the broker for a second resend."""
SHOWN_BODY: Final = 60


def list_letters(
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="Default: list the groups that have dead letters.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=MAX_LISTED, help="Maximum number; the newest are listed.")
    ] = 50,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """List a group's dead letters, newest last; without a group, list the groups that have dead letters."""

    async def work(client: Client) -> int:
        if group is None:
            await _list_groups(client, as_json)
            return 0
        found = await _letters(client, group, count)
        resent_ms = await _resent_times_ms(client, group, found)
        letters = list(zip(found, resent_ms, strict=True))
        if as_json:
            for message, at_ms in letters:
                print_json(stored_data(message) | {"originTopic": _origin(message), "resentMs": at_ms})
        elif found:
            columns = ("stored", "offset message id", "topic", "unique id", "resent", "keys", "body", "retries")
            console().print(table(columns, [_cells(*letter) for letter in letters], left=7, elastic=6))
        else:
            console().print(f"group {group} has no dead letters")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


async def _list_groups(client: Client, as_json: bool) -> None:
    admin = Admin(client)
    rows = []
    for topic in await admin.topics():
        if not topic.startswith(names.DLQ_PREFIX):
            continue
        offsets = (await admin.topic_stats(topic)).values()
        messages = sum(each.max_offset - each.min_offset for each in offsets)
        last_ms = max((each.last_update_timestamp for each in offsets), default=0) or None
        rows.append((topic.removeprefix(names.DLQ_PREFIX), messages, last_ms))
    for group, messages, last_ms in rows if as_json else ():
        print_json({"group": group, "deadLetters": messages, "lastStoredMs": last_ms})
    if as_json:
        return
    if rows:
        cells = [(group, format_time(last_ms), str(messages)) for group, messages, last_ms in rows]
        console().print(table(("group", "last", "dead letters"), cells, left=2))
    else:
        console().print("no group has dead letters")


async def _letters(client: Client, group: str, count: int) -> list[ReceivedMessage]:
    """Return a group's newest dead letters; raise CommandError if the group does not exist."""
    try:
        return await Admin(client).last_messages(dead_letter_topic(group), count)
    except NoRouteError:
        await group_settings(client, group)
        return []  # the first dead letter creates the topic


async def _resent_times_ms(client: Client, group: str, letters: list[ReceivedMessage]) -> list[int | None]:
    """Return when each was last resent to its group; None: never, or the log no longer has the record."""
    topic, gate = retry_topic(group), asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def find_resent(letter: ReceivedMessage) -> int | None:
        async with gate:
            try:
                found = await Admin(client).query_by_key(topic, letter.message_id)
            except NoRouteError:
                return None
        own_id = letter.offset_message_id
        times = [each.store_timestamp_ms for each in found if each.properties.get(names.RESENT) == own_id]
        return max(times, default=None)

    return list(await asyncio.gather(*map(find_resent, letters)))


def _origin(message: ReceivedMessage) -> str:
    return message.properties.get(names.RETRY_TOPIC, message.topic)


def _cells(message: ReceivedMessage, resent_ms: int | None) -> tuple[str, ...]:
    return (
        format_time(message.store_timestamp_ms),
        message.offset_message_id,
        _origin(message),
        message.message_id,
        "no" if resent_ms is None else format_time(resent_ms),
        " ".join(message.keys),
        " ".join(body_text(message, SHOWN_BODY).split()),
        str(message.reconsume_times),
    )


def resend(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group whose dead letters to resend.")],
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Offset message ids, from `deadletter list`.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that were not resent before, among the newest 10,000.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Include those that were resent before.")] = False,
    yes: Yes = False,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Resend dead letters to their group only. Requires the HTTP API of the broker that stores them.

    Examples: delaymq deadletter resend billing 7F000001…; delaymq deadletter resend billing --all --yes
    """
    if bool(ids) == everything:
        raise CommandError("use either offset message ids (see `delaymq deadletter list`) or --all", EXIT_USAGE)
    where = target(namesrv, http, token_file, context)
    api = HttpApi(where)
    chosen = list(ids or ()) if not everything else _all_ids(where, group)
    if not chosen:
        if as_json:
            print_json({"group": group, "resent": [], "failed": [], "resentBefore": []})
        else:
            console().print(f"group {group} has no dead letters")
        return
    if everything:
        confirm(f"Resend {counted(len(chosen), 'dead letter')} to group {group}?", yes)
    resent, failed = _resend(api, group, chosen, again)
    # --all skips messages that were resent before.
    before = [each for each in failed if everything and each.get("code") == RESENT_BEFORE]
    failed = [each for each in failed if each not in before]
    if as_json:
        print_json({"group": group, "resent": resent, "failed": failed, "resentBefore": before})
    else:
        for each in failed:
            console().print(f"not resent: {each['offsetMessageId']}: {_why(each)}")
        were = "was" if len(chosen) == 1 else "were"
        console().print(f"{len(resent)} of {counted(len(chosen), 'dead letter')} {were} resent to group {group}")
        if before:
            were, them = ("was", "it") if len(before) == 1 else ("were", "them")
            console().print(f"{len(before)} {were} resent before: add --again to resend {them}")
    if failed:
        raise typer.Exit(1)


def _why(failure: dict[str, Any]) -> str:
    """Return why a dead letter was not resent, in terms of this command instead of the HTTP API."""
    reason: str = failure["message"]
    if failure.get("code") in (RESENT_BEFORE, "not_known"):
        return f"{reason.partition(': ')[0]}: add --again to resend it anyway"
    return reason


def _all_ids(where: Target, group: str) -> list[str]:
    ids: list[str] = []

    async def work(client: Client) -> int:
        ids.extend(message.offset_message_id for message in await _letters(client, group, MAX_LISTED))
        return 0

    with_client(where, work)
    return ids


def _resend(api: HttpApi, group: str, ids: list[str], again: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from urllib.parse import quote

    resent: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    with progress("dead letters", len(ids)) as step, explain_bad_answers(api.url, "a resend result"):
        for start in range(0, len(ids), MAX_RESENT):
            some = ids[start : start + MAX_RESENT]
            body: dict[str, Any] = {"messages": [{"offsetMessageId": each} for each in some]}
            if again:
                body["again"] = True
            answer = api.post(f"deadletters/{quote(group, safe='')}/resend", body)
            resent += answer["resent"]
            failed += answer["failed"]
            for _ in some:
                step()
    return resent, failed
