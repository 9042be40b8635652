"""`delaymq acl usage`: usage and quotas of accounts, on all brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, end_if_missing, print_json
from delaymq.cli.terminal.tables import table

COLUMNS: Final = ("broker", "account", "quota", "usage", "of", "delays", "delayed", "rejected")
_PAGE: Final = 1_000
_RATES: Final = {
    "sendBytesPerSecond": "sendBytes",
    "sendRequestsPerSecond": "sends",
    "pullBytesPerSecond": "pullBytes",
    "pullRequestsPerSecond": "pulls",
    "requestsPerSecond": "requests",
    "eventLoopPercent": "eventLoopSeconds",
}
"""Totals from which the usage of rates follows."""
_COUNTS: Final = ("connections", "heldPulls", "createdTopics", "createdGroups")


def usage(
    account: Annotated[
        str | None, typer.Option("--account", metavar="TEXT", help="Only accounts whose names contain this text.")
    ] = None,
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.1, max=60, metavar="SECONDS", help="Time over which rates are measured."),
    ] = 1.0,
    limited: Annotated[bool, typer.Option("--limited", help="Only quotas that the rule files limit.")] = False,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show what each account uses, its quotas, and how often they delayed and rejected its requests.

    Asks all brokers of the cluster, or only the one at --http, twice: rates are those between the two responses.
    Delays and rejections count from the start of each broker. With --json, the second response is printed with the
    rates. Example: delaymq acl usage --account orders
    """
    from delaymq.cli.target.every_broker import ask_every_broker

    def ask(api: HttpApi) -> list[dict[str, Any]]:
        before = _all(api, account)
        time.sleep(interval)
        return _with_rates(before, _all(api, account))

    found = ask_every_broker(target(namesrv, http, token_file, context), http is not None, ask)
    accounts = [(name, each) for name, rows in found.by_broker.items() for each in rows]
    if as_json:
        for name, each in accounts:
            print_json({**each, "broker": name})
    elif rows := [row for name, each in accounts for row in _rows(name, each, limited=limited)]:
        console().print(table(COLUMNS, rows, left=3))
    elif accounts:
        console().print("no quota limits these accounts: add `quotas` to a rule file")
    else:
        console().print("no account matches, or the brokers have no access control (aclEnable)")
    end_if_missing(found.missing)


def _all(api: HttpApi, contains: str | None) -> dict[str, Any]:
    """Return the response with the accounts of all pages."""
    rows: list[dict[str, Any]] = []
    after = ""
    while True:
        answer = api.get("accounts", contains=contains or "", limit=_PAGE, after=after)
        rows += answer["accounts"]
        if answer["next"] is None:
            return {**answer, "accounts": rows}
        after = answer["next"]


def _with_rates(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the accounts of the second response with `rates`, which are null if the broker was restarted."""
    seconds = (after["asOfMs"] - before["asOfMs"]) / 1000
    earlier = {each["account"]: each for each in before["accounts"]} if before["bootId"] == after["bootId"] else {}
    accounts = []
    for each in after["accounts"]:
        then = earlier.get(each["account"])
        rates = None
        if then is not None and seconds > 0:
            rates = {quota: max(each[total] - then[total], 0) / seconds for quota, total in _RATES.items()}
            rates["eventLoopPercent"] *= 100
        accounts.append({**each, "rates": rates})
    return accounts


def _rows(broker: str, account: dict[str, Any], *, limited: bool) -> Iterator[tuple[str, ...]]:
    quotas = {each["quota"]: each for each in account["quotas"]}
    for quota in (*_RATES, *_COUNTS):
        own = quotas.get(quota)
        if quota in _COUNTS:
            used = str(account[quota])
        else:
            used = "" if account["rates"] is None else f"{account['rates'][quota]:.1f}"
        is_limited = own is not None and own["limit"] is not None
        if not is_limited and (limited or (own is None and used in ("", "0", "0.0"))):
            continue
        limit, delays, delayed, rejected = "", "", "", ""
        if own is not None:
            limit = "" if own["limit"] is None else str(own["limit"])
            delays, delayed, rejected = str(own["delays"]), f"{own['delayedSeconds']:.1f} s", str(own["rejected"])
        yield broker, account["account"], quota, used, limit, delays, delayed, rejected
