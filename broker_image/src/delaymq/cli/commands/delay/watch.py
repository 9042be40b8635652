"""`delaymq delay watch`: live view of a broker's pending messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from delaymq.cli.commands.delay.status import STATUS_COLUMNS, is_used, status_row, timed_row, total_line
from delaymq.cli.errors import EXIT_UNREACHABLE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, explain_bad_answers, print_json
from delaymq.cli.terminal.sanitize import visible
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_time

MAX_TIMES: Final = 1_000_000


def watch(
    every: Annotated[float, typer.Option(min=0.2, max=3_600, help="Refresh interval in seconds.")] = 1.0,
    times: Annotated[
        int | None, typer.Option(min=1, max=MAX_TIMES, help="Exit after N refreshes; default: run until Ctrl-C.")
    ] = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show pending messages and delivery rates, live, until Ctrl-C.

    If the broker becomes unreachable, the command reports this on stderr and retries. With --json, each line is one
    response of the broker.
    """
    api = HttpApi(target(http=http, token_file=token_file, context=context))
    first = api.get("delay")  # reports a wrong address immediately
    if as_json or not console().is_terminal:
        _print_lines(api, first, every, times, as_json)
        return
    with Live(console=console(), screen=False, auto_refresh=False) as live, explain_bad_answers(api.url, "delays"):
        looks = _Looks()
        _repeat(api, first, every, times, lambda answer: live.update(looks.picture(answer), refresh=True))


def _print_lines(api: HttpApi, first: dict[str, Any], every: float, times: int | None, as_json: bool) -> None:
    is_gone = False

    def show(answer: dict[str, Any] | str) -> None:
        nonlocal is_gone
        was_gone, is_gone = is_gone, isinstance(answer, str)
        if isinstance(answer, str):
            if not was_gone:
                print(visible(f"delaymq: waiting for the broker: {answer}"), file=sys.stderr, flush=True)
        elif as_json:
            print_json(answer)
        else:
            print(f"{format_time(answer['asOfMs'])} {total_line(answer)}", flush=True)

    with explain_bad_answers(api.url, "delays"):
        _repeat(api, first, every, times, show)


def _repeat(
    api: HttpApi,
    first: dict[str, Any],
    every: float,
    times: int | None,
    show: Callable[[dict[str, Any] | str], None],
) -> None:
    """Show `first` and then each further response, or the reason why there is none."""
    answer: dict[str, Any] | str = first
    shown = 0
    while True:
        show(answer)
        shown += 1
        if times is not None and shown >= times:
            return
        time.sleep(every)
        try:
            answer = api.get("delay")
        except CommandError as error:
            if error.exit_code != EXIT_UNREACHABLE:
                raise
            answer = str(error)


class _Looks:
    """Renders responses; keeps the previous one to compute rates."""

    def __init__(self) -> None:
        self._last: dict[str, Any] | None = None

    def picture(self, answer: dict[str, Any] | str) -> RenderableType:
        """Return the rendering of one response or error."""
        if isinstance(answer, str):
            return Text(visible(answer))
        before, self._last = self._last, answer
        as_of_ms = answer["asOfMs"]
        old = {} if before is None else {each["level"]: each["offset"] for each in before["levels"]}
        seconds = 0 if before is None else (as_of_ms - before["asOfMs"]) / 1_000
        rows = []
        for level in answer["levels"]:
            if not level["pending"] and not level["offset"]:
                continue
            delivered = level["offset"] - old.get(level["level"], level["offset"])
            rows.append((*status_row(level, as_of_ms), _rate(delivered, seconds)))
        timed = answer.get("timed")
        if timed and is_used(timed):
            earlier = (before or {}).get("timed") or timed
            rows.append((*timed_row(timed, as_of_ms), _rate(timed["delivered"] - earlier["delivered"], seconds)))
        return Group(
            table((*STATUS_COLUMNS, "delivered"), rows, left=0),
            Text(f"{format_time(as_of_ms)}  {total_line(answer)}"),
        )


def _rate(delivered: int, seconds: float) -> str:
    """Return messages per second; empty before the second response."""
    return f"{max(delivered, 0) / seconds:.0f}/s" if seconds > 0 else ""
