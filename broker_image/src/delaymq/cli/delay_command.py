"""`delaymq delay status`: what waits at a broker, by its HTTP interface."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from datetime import datetime
from typing import Annotated, Any

import typer

from delaymq.cli.errors import CommandError
from delaymq.cli.terminal import console, duration, print_json, table
from delaymq.client.delays import delay_text

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""1,000 levels need some 300 KiB; another program on the port must not fill the memory."""


def status(
    url: Annotated[
        str, typer.Option("--http", envvar="DELAYMQ_HTTP", help="The broker's HTTP address.")
    ] = "http://127.0.0.1:8080",
    token: Annotated[
        str, typer.Option(envvar="DELAYMQ_HTTP_TOKEN", help="Where the broker asks for one (httpToken).")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The broker's answer as it is.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Levels at which nothing waits, too.")] = False,
) -> None:
    """Show for each delay level how many messages wait, when the next is due, and how late they were."""
    answer = fetch(url, token)
    if as_json:
        print_json(answer)
        return
    try:
        _show(answer, everything)
    except (KeyError, TypeError, AttributeError) as error:
        raise CommandError(f"{url} answers something else than delays: is it a DelayMQ broker?") from error


def fetch(url: str, token: str = "") -> dict[str, Any]:
    """The answer of /api/v1/delay. CommandError says what is wrong."""
    if "://" not in url:
        url = f"http://{url}"
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"{url} is not an HTTP address: write one such as http://127.0.0.1:8080", 2)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/api/v1/delay", headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            answer = json.loads(response.read(MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        hint = ": give the broker's httpToken with --token" if error.code in (401, 403) else ""
        raise CommandError(f"{url} answers {error.code} {error.reason}{hint}") from error
    except (http.client.HTTPException, ConnectionResetError) as error:
        raise CommandError(
            f"{url} does not speak HTTP ({error}): name the broker's HTTP address with --http (default port 8080)"
        ) from error
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise CommandError(
            f"no broker at {url} ({reason}): is it running? Start one with `delaymq standalone`,"
            " or name its HTTP address with --http."
        ) from error
    except ValueError as error:
        raise CommandError(f"{url} answers no JSON: is it a DelayMQ broker?") from error
    if not isinstance(answer, dict):
        raise CommandError(f"{url} answers something else than delays: is it a DelayMQ broker?")
    return answer


def _show(answer: dict[str, Any], everything: bool) -> None:
    out = console()
    as_of_ms = answer["asOfMs"]
    levels = answer["levels"]
    rows = [_row(level, as_of_ms) for level in levels if everything or level["pending"] or level["offset"]]
    pending = sum(level["pending"] for level in levels)
    columns = ("level", "delay", "pending", "next due", "late p50", "p99", "max", "offset")
    if rows:
        out.print(table(columns, rows, left=0))
    dues = [level["nextDueMs"] for level in levels if level["nextDueMs"] is not None]
    when = f", the next is due in {duration(min(dues) - as_of_ms)}" if dues else ""
    out.print(f"{pending} pending{when}", markup=False)
    for each in answer.get("corrected", ()):
        out.print(
            f"level {each['level']}: the offset was corrected from {each['from']} to {each['to']}"
            f" at the start ({each['reason']})",
            markup=False,
        )


def _row(level: dict[str, Any], as_of_ms: int) -> tuple[str, ...]:
    due_ms = level["nextDueMs"]
    due = "" if due_ms is None else datetime.fromtimestamp(due_ms / 1000).strftime("%H:%M:%S")
    if due_ms is not None and due_ms - as_of_ms > 86_400_000:
        due = datetime.fromtimestamp(due_ms / 1000).strftime("%Y-%m-%d %H:%M")
    lateness = (level.get("lateness") or {}) if level["offset"] else {}  # nothing was handed over: nothing was late
    late = [lateness.get(name) for name in ("p50Ms", "p99Ms", "maxMs")]
    number = str(level["level"]) if level.get("inTable", True) else f"{level['level']} (gone)"
    return (
        number,
        delay_text(level["delayMs"]) if level["delayMs"] else "",
        str(level["pending"]),
        due,
        *("" if each is None else duration(each) for each in late),
        f"{level['offset']}/{level['maxOffset']}",
    )
