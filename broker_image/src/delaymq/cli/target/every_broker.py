"""HTTP APIs of the brokers of a cluster, found by the settings that the brokers return."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

from delaymq.cli.errors import EXIT_UNREACHABLE, EXIT_USAGE, CommandError
from delaymq.cli.target.connection import with_client
from delaymq.cli.target.contexts import Target
from delaymq.cli.target.http_api import SEVERAL_BROKERS, ApiError, HttpApi
from delaymq.cli.terminal.output import counted
from delaymq.client import Admin, Client, ClientError
from delaymq.client.core.broker_delays import SETTING_OF_OURS
from delaymq.client.core.network import split_address
from delaymq.transport.addresses import host_and_port

TIMEOUT_S: Final = 2.0
"""Timeout of the request that identifies a broker."""
MAX_BROKERS: Final = 32
"""Maximum number of brokers that one command asks."""

T = TypeVar("T")
Identity: TypeAlias = tuple[str, str]
"""Name of a broker, and the address that it advertises. Brokers of different clusters often have the same name."""
Given: TypeAlias = dict[Identity, Target]
"""Brokers at the address of `--http`, and the address of each one's HTTP API."""


class Answers(NamedTuple, Generic[T]):
    """Answers of brokers."""

    by_broker: dict[str, T]
    """By the broker's name; by its address if it was given."""
    missing: list[str]
    """Sentences on brokers without an answer."""


def ask_every_broker(where: Target, is_single: bool, ask: Callable[[HttpApi], T]) -> Answers[T]:
    """Return what `ask`, which runs in threads, returns for each broker, or for that of `--http` if `is_single`.

    CommandError if no broker answers, or if those that do reject the request as wrong.
    """
    if is_single:
        api = HttpApi(where)
        return Answers({api.url: ask(api)}, [])
    answers: dict[str, T] = {}
    missing: list[str] = []
    wrong: list[CommandError] = []
    stopped = Event()

    async def work(client: Client) -> int:
        masters = await Admin(client).masters()
        given = await brokers_at(where)
        chosen = sorted(masters)[:MAX_BROKERS]
        if left := len(masters) - len(chosen):
            missing.append(f"{counted(left, 'more broker')} not asked")

        async def at_broker(name: str) -> None:
            try:
                found = await http_of(client, where, (name, masters[name]), given)
                if found is None:
                    raise CommandError("it is not a DelayMQ broker")
                answers[name] = await asyncio.to_thread(ask, HttpApi(found, is_stopped=stopped.is_set))
            except (ClientError, CommandError) as error:
                if isinstance(error, CommandError) and error.exit_code == EXIT_USAGE:
                    wrong.append(error)
                missing.append(f"no answer from broker {name} ({masters[name]}): {error}")

        try:
            await asyncio.gather(*map(at_broker, chosen))
        finally:
            stopped.set()  # Ctrl-C does not end the threads, and a list may have many pages
        if wrong and not answers:
            raise wrong[0]
        return 0

    try:
        with_client(where, work)
    except CommandError as error:
        if error.exit_code != EXIT_UNREACHABLE:
            raise
        raise CommandError(f"{error} To ask one broker without a NameServer, use --http.", EXIT_UNREACHABLE) from error
    if not answers:
        raise CommandError("; ".join(sorted(missing)), EXIT_UNREACHABLE)
    return Answers(dict(sorted(answers.items())), sorted(missing))


async def brokers_at(where: Target) -> Given:
    """Return the brokers at `where.http`: one, or all of a supervisor; none if no DelayMQ broker responds."""
    try:
        return await asyncio.to_thread(_brokers_at, where)
    except CommandError:
        return {}


def _brokers_at(where: Target) -> Given:
    api = HttpApi(where, timeout_s=TIMEOUT_S)
    try:
        return {_identity(api): where}
    except ApiError as error:
        if error.code != SEVERAL_BROKERS:
            raise
    rows = api.get("brokers").get("brokers")
    found: Given = {}
    for row in rows[:MAX_BROKERS] if isinstance(rows, list) else []:
        if isinstance(row, dict):
            name = str(row.get("brokerName"))
            # Not the path of the response, which could change the host of the address.
            found[name, str(row.get("address"))] = replace(where, http=f"{api.url}/brokers/{quote(name, safe='')}")
    return found


def _identity(api: HttpApi) -> Identity:
    try:
        about = api.get("broker")
    except ApiError as error:
        if error.code != "role_needed":
            raise
        about = api.get("session")
    return str(about.get("brokerName")), str(about.get("address"))


async def http_of(client: Client, where: Target, broker: Identity, given: Given) -> Target | None:
    """Return `where` with the HTTP address of a broker; None for a broker of RocketMQ. ClientError, CommandError.

    Only the brokers at `where.http` (`given`) receive the token or the secret key, because a NameServer must not choose
    their recipient.
    """
    if broker in given:
        return given[broker]
    address = broker[1]
    settings = await Admin(client).broker_config(address)
    if SETTING_OF_OURS not in settings:
        return None
    where = replace(where, http=_url(settings, address), token="", http_account=None)
    # 127.0.0.1 in the settings of another machine's broker would lead to a local broker.
    found = (await asyncio.to_thread(_brokers_at, where)).get(broker)
    if found is None:
        raise CommandError(f"from this machine, {where.http} reaches another broker")
    return found


def _url(settings: dict[str, str], address: str) -> str:
    port, host = settings[SETTING_OF_OURS], settings.get("httpHost", "")
    if port == "0":
        raise CommandError("its HTTP API is disabled (httpPort)")
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = not host
    scheme = "https" if settings.get("httpTls") == "true" else "http"
    return f"{scheme}://{host_and_port(split_address(address)[0] if everywhere else host, int(port))}"
