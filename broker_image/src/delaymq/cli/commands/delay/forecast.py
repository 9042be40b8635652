"""`delaymq delay forecast`: how many pending messages will be due, on all brokers."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, end_if_missing, print_json
from delaymq.cli.terminal.tables import table

_HORIZONS: Final = ("1m", "10m", "1h", "1d", "more")
_BAR: Final = 40
"""Length of the longest bar, in characters."""
_INCOMPLETE: Final = "the topics of some messages are unknown: counts by topic do not include them"


class Each(StrEnum):
    """Rows of the forecast."""

    TOPIC = "topic"
    HOUR = "hour"
    DAY = "day"


def forecast(
    each: Annotated[
        Each, typer.Option("--by", help="Rows: topics, the next 24 hours, or the next 30 days.")
    ] = Each.TOPIC,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only messages for this topic.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000, help="Number of topics with the most pending messages.")
    ] = 100,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show how many pending messages will be due within a minute, ten minutes, an hour, a day, and later.

    Adds up the counts of all brokers of the cluster, or shows those of the one at --http. Hours and days count from
    now. With --json, the response of each broker is printed. Examples: delaymq delay forecast; delaymq delay forecast
    --by day --topic Reminders
    """
    from delaymq.cli.target.every_broker import ask_every_broker

    where = target(namesrv, http, token_file, context)
    found = ask_every_broker(where, http is not None, lambda api: _asked(api, topic, limit))
    answers = list(found.by_broker.values())
    if as_json:
        for name, answer in found.by_broker.items():
            print_json({**answer, "broker": name})
    else:
        _show(answers, each, limit)
    end_if_missing(found.missing)


def _asked(api: HttpApi, topic: str | None, limit: int) -> dict[str, Any]:
    return api.get("delay/forecast", topic=topic, limit=limit)


def _show(answers: list[dict[str, Any]], each: Each, limit: int) -> None:
    out = console()
    if each is Each.TOPIC:
        topics: dict[str, list[int]] = {}
        for row in (row for answer in answers for row in answer["topics"]):
            counts = topics.setdefault(row["topic"], [0] * len(_HORIZONS))
            topics[row["topic"]] = _added(counts, (row["due"][name] for name in _HORIZONS))
        largest = sorted(topics.items(), key=lambda item: -sum(item[1]))[:limit]
        totals = [0] * len(_HORIZONS)
        for answer in answers:
            totals = _added(totals, (answer["due"][name] for name in _HORIZONS))
        rows = [(name, *map(str, counts), str(sum(counts))) for name, counts in largest]
        rows.append(("total", *map(str, totals), str(sum(totals))))
        out.print(table(("topic", *_HORIZONS, "pending"), rows, left=1))
        if len(topics) > len(largest) or any(answer["truncated"] for answer in answers):
            out.print("only the topics with the most pending messages are listed; the total includes all")
    else:
        shown = [0] * (len(answers[0][f"{each.value}s"]))
        for answer in answers:
            shown = _added(shown, (row["pending"] for row in answer[f"{each.value}s"]))
        most = max(shown) or 1
        names = [f"{number}. {each.value}" for number in range(1, len(shown))] + ["later"]
        bars = ["█" * max(round(count / most * _BAR), 1 if count else 0) for count in shown]
        rows = [(name, str(count), bar) for name, count, bar in zip(names, shown, bars, strict=True)]
        out.print(table((each.value, "pending", ""), rows, left=1))
    if not all(answer["complete"] for answer in answers):
        out.print(_INCOMPLETE)


def _added(counts: list[int], more: Iterable[int]) -> list[int]:
    return [count + each for count, each in zip(counts, more, strict=True)]
