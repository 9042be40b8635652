"""`delaymq delay groups`: the groups of a topic with pending messages, at all brokers, over their HTTP APIs."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, counted, end_if_missing, explain_bad_answers, print_json
from delaymq.cli.terminal.tables import table

MAX_GROUPS: Final = 1_000
"""Groups in the response of a broker."""


def groups(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to which the messages are to be delivered.")],
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MAX_GROUPS, help="Maximum number, those with the most messages.")
    ] = 100,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Count the pending messages of a topic by DELAY_GROUP.

    Asks all brokers of the cluster, or only the one at --http. If a broker does not answer, the command names it and
    exits with status 3. Example: delaymq delay groups Campaign
    """
    from delaymq.cli.target.every_broker import ask_every_broker

    where = target(namesrv, http, token_file, context)
    found = ask_every_broker(where, http is not None, lambda api: _groups(api, topic))
    merged: dict[str, tuple[int, bool]] = {}
    for each in found.by_broker.values():
        for row in each["rows"]:
            pending, is_paused = merged.get(row["group"], (0, False))
            merged[row["group"]] = pending + row["pending"], is_paused or row.get("paused", False)
    total = sum(each["total"] for each in found.by_broker.values())
    is_truncated = any(each["truncated"] for each in found.by_broker.values()) or len(merged) > limit
    shown = sorted(merged.items(), key=lambda item: (-item[1][0], item[0]))[:limit]
    if as_json:
        rows = [{"group": name, "pending": pending, "paused": is_paused} for name, (pending, is_paused) in shown]
        print_json(
            {"topic": topic, "groups": rows, "total": total, "truncated": is_truncated, "missing": found.missing}
        )
    else:
        cells = [(name, str(pending), "yes" if is_paused else "") for name, (pending, is_paused) in shown]
        if cells:
            console().print(table(("group", "pending", "paused"), cells))
        console().print(f"{counted(total, 'pending message')} in groups")
        if is_truncated:
            console().print("only the groups with the most pending messages are listed")
    end_if_missing(found.missing)


def _groups(api: HttpApi, topic: str) -> dict[str, Any]:
    """Return the counts of a broker, in which the members that this module uses are present."""
    answer = api.get("delay/pending", by="group", topic=topic, limit=MAX_GROUPS)
    with explain_bad_answers(api.url, "groups"):
        answer["total"], answer["truncated"], [(row["group"], row["pending"]) for row in answer["rows"]]
    return answer
