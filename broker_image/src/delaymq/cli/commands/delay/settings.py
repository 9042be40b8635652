"""`delaymq delay settings` and `delaymq delay set`: limits and promises of topics and accounts, on all brokers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from delaymq.api_types.delay_settings import MAX_WINDOW_MS
from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile
from delaymq.cli.overdue_policy import parse_overdue
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, end_if_missing, print_json
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import parse_delay_option
from delaymq.clock import utc_time
from delaymq.message.levels import delay_text

NONE: Final = "none"
TREATMENTS: Final = ("recreate", "deadLetter", "drop")
_OBJECTIVE: Final = re.compile(r"(\d{1,2}(?:\.\d{1,6})?)%/(\w+)\Z", re.ASCII)
_PAGE: Final = 1_000
COLUMNS: Final = (
    "broker", "topic or account", "pending", "of", "bytes", "of", "max delay", "rate", "overdue",
    "when topic is gone", "objective",
)  # fmt: skip

OfTopic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic.")]
OfAccount = Annotated[str | None, typer.Option("--account", metavar="ACCOUNT", help="The account (access key).")]
MaxPerSecond = Annotated[
    str | None, typer.Option("--max-per-second", metavar="N", help="Maximum number of deliveries per second.")
]
Spread = Annotated[
    str | None,
    typer.Option(
        "--spread",
        metavar="DURATION",
        help="Time over which messages that are due together are delivered, such as 10m; at most 1d.",
    ),
]
OverdueTreatment = Annotated[
    str | None,
    typer.Option(
        "--overdue",
        metavar="CHOICE",
        help="For messages that came due while the broker was down: deliver (immediately), spread=30m, shift (keeps"
        " their distances), drop or pause.",
    ),
]
OverdueAfter = Annotated[
    str | None,
    typer.Option(
        "--overdue-after", metavar="DURATION", help="Shortest downtime to which --overdue applies; 10m by default."
    ),
]
WhenGone = Annotated[
    str | None,
    typer.Option(
        "--when-topic-is-gone",
        metavar="|".join(TREATMENTS),
        help="Treatment of a message that is due when its topic has been deleted.",
    ),
]
Objective = Annotated[
    str | None,
    typer.Option("--lateness-objective", metavar="PERCENT/TIME", help="Such as 99.9%/5s: 99.9 % at most 5 s late."),
]


def settings(
    topic: OfTopic = None,
    account: OfAccount = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show the delay settings of topics and accounts, and what is pending.

    Asks all brokers of the cluster, or only the one at --http. Example: delaymq delay settings --topic Orders
    """
    from delaymq.cli.target.every_broker import ask_every_broker

    if topic is not None and account is not None:
        raise CommandError("give at most one of --topic and --account", EXIT_USAGE)
    path = None if topic is None and account is None else _path(topic, account)

    def ask(api: HttpApi) -> list[dict[str, Any]]:
        return _all(api) if path is None else [api.get(path)]

    found = ask_every_broker(target(namesrv, http, token_file, context), http is not None, ask)
    shown = [(name, each) for name, rows in found.by_broker.items() for each in rows]
    if as_json:
        for name, each in shown:
            print_json({**each, "broker": name})
    elif shown:
        console().print(table(COLUMNS, [_cells(name, each) for name, each in shown], left=2))
    else:
        console().print("no topic or account has delay settings: set them with `delaymq delay set`")
    end_if_missing(found.missing)


def set_limits(
    topic: OfTopic = None,
    account: OfAccount = None,
    max_delay: Annotated[
        str | None, typer.Option("--max-delay", metavar="DURATION", help="Longest delay of a message, such as 30d.")
    ] = None,
    max_pending_messages: Annotated[
        str | None, typer.Option("--max-pending-messages", metavar="N", help="Maximum number of pending messages.")
    ] = None,
    max_pending_bytes: Annotated[
        str | None, typer.Option("--max-pending-bytes", metavar="N", help="Maximum bytes of pending messages.")
    ] = None,
    max_per_second: MaxPerSecond = None,
    spread: Spread = None,
    overdue: OverdueTreatment = None,
    overdue_after: OverdueAfter = None,
    when_topic_is_gone: WhenGone = None,
    lateness_objective: Objective = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Change delay settings of a topic or an account; the value none removes one, and others stay as they are.

    Changes all brokers of the cluster, or only the one at --http; each broker applies a limit to its own messages.
    Retries of consumers have no limits. Examples: delaymq delay set --topic Orders --max-pending-messages 100000
    --max-delay 30d; delaymq delay set --topic Orders --max-per-second 50 --spread 10m --overdue spread=30m; delaymq
    delay set --account web --max-pending-bytes none
    """
    from delaymq.cli.target.every_broker import ask_every_broker

    path = _path(topic, account)
    changes = {
        "maxPendingMessages": _number("--max-pending-messages", max_pending_messages),
        "maxPendingBytes": _number("--max-pending-bytes", max_pending_bytes),
    }
    of_topic = {
        "maxDelaySeconds": _seconds(max_delay),
        "maxPerSecond": _number("--max-per-second", max_per_second),
        "spreadOverMs": _value(spread, _window_ms),
        "overdue": _overdue(overdue, overdue_after),
        "whenTopicIsGone": _value(when_topic_is_gone, _treatment),
        "latenessObjective": _value(lateness_objective, _objective),
    }
    if account is not None and any(each is not None for each in of_topic.values()):
        raise CommandError("an account has only --max-pending-messages and --max-pending-bytes", EXIT_USAGE)
    changes = {name: value for name, value in (changes | of_topic).items() if value is not None}
    if not changes:
        raise CommandError("nothing to change: give at least one setting, such as --max-pending-messages", EXIT_USAGE)

    def change(api: HttpApi) -> dict[str, Any]:
        # A member with the value none is removed.
        before = api.get(path)["settings"]
        wanted = {**before, **changes}
        if isinstance(treatment := changes.get("overdue"), dict) and "afterMs" in before.get("overdue", {}):
            wanted["overdue"] = {"afterMs": before["overdue"]["afterMs"], **treatment}
        return api.put(path, {name: value for name, value in wanted.items() if value != NONE})

    found = ask_every_broker(target(namesrv, http, token_file, context), http is not None, change)
    for name, each in found.by_broker.items():
        if as_json:
            print_json({**each, "broker": name})
    if not as_json:
        console().print(table(COLUMNS, [_cells(name, each) for name, each in found.by_broker.items()], left=2))
    end_if_missing(found.missing, "not changed everywhere")


def _path(topic: str | None, account: str | None) -> str:
    if (topic is None) == (account is None):
        raise CommandError("name a topic with --topic, or an account with --account", EXIT_USAGE)
    kind, name = ("topics", topic) if topic is not None else ("accounts", account)
    return f"delay/settings/{kind}/{quote(name or '', safe='')}"


def _value(text: str | None, parse: Callable[[str], object]) -> object:
    """Return the value of an option: None without it, NONE to remove the setting, otherwise the parsed one."""
    return text if text is None or text == NONE else parse(text)


def _number(option: str, text: str | None) -> object:
    def parse(number: str) -> int:
        if not (number.isascii() and number.isdigit() and len(number) <= 15):
            raise CommandError(f"{option} {number[:40]}: use a whole number, or none", EXIT_USAGE)
        return int(number)

    return _value(text, parse)


def _seconds(max_delay: str | None) -> object:
    return _value(max_delay, lambda text: parse_delay_option("--max-delay", text) // 1_000)


def _window_ms(text: str) -> int:
    window_ms = parse_delay_option("--spread", text)
    if window_ms > MAX_WINDOW_MS:
        raise CommandError(f"--spread {text[:40]}: use at most {delay_text(MAX_WINDOW_MS)}", EXIT_USAGE)
    return window_ms


def _overdue(text: str | None, after: str | None) -> object:
    """Return the value of --overdue and --overdue-after."""
    if text is None or text == NONE:
        if after is not None:
            raise CommandError("--overdue-after: give --overdue as well, such as --overdue spread=30m", EXIT_USAGE)
        return text
    choice = parse_overdue(text, may_shift=True)
    found: dict[str, object] = {"treatment": choice.what}
    if choice.what == "spread":
        found["overMs"] = choice.over_ms
    if after is not None:
        found["afterMs"] = parse_delay_option("--overdue-after", after)
    return found


def _treatment(text: str) -> str:
    if text not in TREATMENTS:
        raise CommandError(f"--when-topic-is-gone: use one of {', '.join(TREATMENTS)}", EXIT_USAGE)
    return text


def _objective(text: str) -> dict[str, object]:
    match = _OBJECTIVE.match(text)
    if match is None or not 0 < float(match[1]) < 100:
        raise CommandError(f"--lateness-objective {text[:40]}: use a share and a time, such as 99.9%/5s", EXIT_USAGE)
    return {"withinMs": parse_delay_option("--lateness-objective", match[2]), "percent": float(match[1])}


def _all(api: HttpApi) -> list[dict[str, Any]]:
    """Return the topics and accounts with settings on all pages."""
    page = api.get("delay/settings", limit=_PAGE)
    accounts, topics = page["accounts"], page["topics"]
    while page["next"] is not None:
        page = api.get("delay/settings", limit=_PAGE, after=page["next"])
        topics += page["topics"]
    return [*topics, *accounts]


def _cells(broker: str, each: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of COLUMNS."""
    stated = each["settings"]
    name = each["topic"] if "topic" in each else f"account {each['account']}"
    objective, max_delay_s = stated.get("latenessObjective"), stated.get("maxDelaySeconds")
    return (
        broker,
        name if each.get("exists", True) else f"{name} (deleted)",
        str(each["pending"]),
        str(stated.get("maxPendingMessages", "")),
        str(each["pendingBytes"]),
        str(stated.get("maxPendingBytes", "")),
        "" if max_delay_s is None else delay_text(max_delay_s * 1_000),
        _rate(stated),
        _shown_overdue(stated.get("overdue"), each.get("treatment")),
        stated.get("whenTopicIsGone", "") if "topic" in each else "",
        "" if objective is None else f"{objective['percent']:g}%/{delay_text(objective['withinMs'])}",
    )


def _rate(stated: dict[str, Any]) -> str:
    """Return the limits of the rate of deliveries, such as 50/s over 10m."""
    per_second, window_ms = stated.get("maxPerSecond"), stated.get("spreadOverMs")
    parts = [] if per_second is None else [f"{per_second}/s"]
    return " ".join(parts if window_ms is None else [*parts, f"over {delay_text(window_ms)}"])


def _shown_overdue(overdue: dict[str, Any] | None, in_progress: dict[str, Any] | None) -> str:
    """Return the treatment of messages that came due during a downtime, such as spread=30m after 1h."""
    if overdue is None:
        return ""
    if in_progress is not None:
        until_ms = in_progress["untilMs"]
        return f"{in_progress['treatment']} {'now' if until_ms is None else f'until {utc_time(until_ms)}'}"
    treatment, over_ms, after_ms = overdue.get("treatment", "deliver"), overdue.get("overMs"), overdue.get("afterMs")
    shown = treatment if over_ms is None else f"{treatment}={delay_text(over_ms)}"
    return shown if after_ms is None else f"{shown} after {delay_text(after_ms)}"
