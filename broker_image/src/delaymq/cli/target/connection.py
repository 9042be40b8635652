"""Use of the client by commands: one event loop, and errors with instructions."""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from delaymq.cli.errors import EXIT_NOT_DONE, EXIT_UNREACHABLE, EXIT_USAGE, CommandError
from delaymq.cli.target.accounts import SIGNING_HELP
from delaymq.cli.target.contexts import DEFAULT_NAME_SERVER, Target
from delaymq.cli.terminal.output import show_warnings
from delaymq.client import (
    AccessDeniedError,
    Admin,
    AnswerTimeoutError,
    Client,
    ClientError,
    ClientOptions,
    Credentials,
    NoRouteError,
    NoSuchDelayError,
    RefusedError,
    SendError,
    TlsOptions,
    UnreachableError,
)
from delaymq.client.core.network import split_address
from delaymq.client.tls import TlsFilesError
from delaymq.message.errors import IllegalMessageError
from delaymq.message.names import RETRY_PREFIX, group_problem, topic_problem
from delaymq.protocol.codes import ResponseCode

REQUEST_TIMEOUT_MS = 3_000
SHOWN_NAMES = 3
"""Maximum number of similar names that an error suggests."""


def with_client(target: Target, work: Callable[[Client], Awaitable[int]]) -> int:
    """Run `work` with a client and return its exit code; raise CommandError for its errors."""

    async def run() -> int:
        options = ClientOptions(
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            connect_timeout_ms=REQUEST_TIMEOUT_MS,
            tls=tls_options(target),
            credentials=credentials_of(target),
        )
        async with Client(target.namesrv, options) as client:
            try:
                return await work(client)
            except NoRouteError as error:
                raise await _unknown_topic(client, error) from error

    show_warnings()
    check_name_servers(target.namesrv)
    try:
        return asyncio.run(run())
    except (ClientError, IllegalMessageError, ValueError) as error:
        raise CommandError(explain(error, target.namesrv), exit_code_of(error)) from error


def credentials_of(target: Target) -> Credentials | None:
    """Return the signing account, or None for unsigned requests."""
    account = target.account
    if account is None:
        return None
    return Credentials(
        account.access_key,
        account.secret_key,
        security_token=account.security_token,
        rocketmq_signature=account.rocketmq_signature,
    )


def tls_options(target: Target) -> TlsOptions | None:
    """Return the target's TLS options, or None for plaintext."""
    return None if target.tls is None else tls_options_of(target.tls)


def tls_options_of(given: Mapping[str, str]) -> TlsOptions:
    """Return TLS options that are given by keys of a context."""

    def path(key: str) -> Path | None:
        value = given.get(key)
        return Path(value).expanduser() if value else None

    return TlsOptions(
        ca_path=path("tls-ca"),
        certificate_path=path("tls-cert"),
        key_path=path("tls-key"),
        key_password=os.environ.get("DELAYMQ_TLS_KEY_PASSWORD", ""),
        server_name=given.get("tls-server-name", ""),
        insecure="tls-insecure" in given,
    )


def check_name_servers(name_servers: str) -> None:
    """Raise CommandError unless `name_servers` consists of addresses."""
    addresses = [word.strip() for word in name_servers.split(";") if word.strip()]
    for address in addresses or [name_servers]:
        try:
            split_address(address)
        except UnreachableError as error:
            raise CommandError(
                f"--namesrv {address}: use host:port, such as {DEFAULT_NAME_SERVER}", EXIT_USAGE
            ) from error


def exit_code_of(error: Exception) -> int:
    """Return the exit code for `error`: no connection, failure, or misuse."""
    cause = error.__cause__ if isinstance(error, SendError) else error
    if isinstance(cause, UnreachableError | AnswerTimeoutError):
        return EXIT_UNREACHABLE
    return EXIT_USAGE if isinstance(cause, ValueError | NoSuchDelayError | TlsFilesError) else EXIT_NOT_DONE


def explain(error: Exception, name_servers: str) -> str:
    """Return the error's text, with a hint where the address is probably wrong."""
    cause = error.__cause__ if isinstance(error, SendError) else error
    if isinstance(cause, UnreachableError) and " TLS" in str(cause):
        # A server is listening, but with other TLS requirements.
        return (
            f"{cause}. Options before the command set up TLS: `delaymq --tls --tls-ca FILE --tls-server-name NAME …`."
        )
    if isinstance(cause, UnreachableError) and " HTTP" in str(cause):
        return (
            f"{cause}. --namesrv takes the NameServer's address (default port 9876), --http the broker's HTTP address."
        )
    if isinstance(cause, UnreachableError):
        if cause.address not in map(str.strip, name_servers.split(";")):
            return f"{cause}. The NameServer lists a broker at this address: is it running and reachable from here?"
        return (
            f"{cause}. Is a NameServer running there?"
            " Start one with `delaymq standalone`, or specify another NameServer with --namesrv."
        )
    if isinstance(cause, AccessDeniedError) and "No accessKey is configured" in cause.remark:
        return f"{cause.address} requires a signature: {SIGNING_HELP}"
    if isinstance(cause, RefusedError) and cause.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return f"{cause}. Is this a broker's address? --namesrv takes the NameServer's address (default port 9876)."
    return str(error)


async def _unknown_topic(client: Client, error: NoRouteError) -> CommandError:
    """Return the error with names similar to the requested one."""
    problem = topic_problem(error.topic)
    if problem is not None:
        return CommandError(problem, EXIT_USAGE)
    try:
        known = await Admin(client).topics()
    except ClientError:
        return CommandError(str(error))
    if error.topic.startswith(RETRY_PREFIX):
        return unknown_group(error.topic.removeprefix(RETRY_PREFIX), known)
    near = closest_name(error.topic, known)
    return CommandError(f"{error}{f'; did you mean {near}?' if near else ''}")


def unknown_group(group: str, topics: Iterable[str]) -> CommandError:
    """Return the error for an unknown group; groups are listed by their retry topics."""
    problem = group_problem(group)
    if problem is not None:
        return CommandError(problem, EXIT_USAGE)
    groups = [topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)]
    near = closest_name(group, groups)
    text = f"no broker has group {group}: its first consumer creates it, or `delaymq group create`"
    return CommandError(f"{text}{f'; did you mean {near}?' if near else ''}")


def closest_name(wanted: str, names: Iterable[str]) -> str:
    """Return similar names, separated by commas; empty if there are none."""
    by_lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(wanted.lower(), by_lower, SHOWN_NAMES)
    return ", ".join(by_lower[name] for name in found)
