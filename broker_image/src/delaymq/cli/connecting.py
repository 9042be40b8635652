"""How commands use the client: one event loop, and errors that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from delaymq.cli.errors import CommandError
from delaymq.cli.terminal import show_warnings
from delaymq.client import Client, ClientError, ClientOptions, RefusedError, SendError, UnreachableError
from delaymq.client.network import split_address
from delaymq.message.errors import IllegalMessageError
from delaymq.protocol.codes import ResponseCode

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
REQUEST_TIMEOUT_MS = 3_000


def with_client(name_servers: str, work: Callable[[Client], Awaitable[int]]) -> int:
    """Runs `work` with a client; its exit code. CommandError for what went wrong."""

    async def run() -> int:
        options = ClientOptions(request_timeout_ms=REQUEST_TIMEOUT_MS, connect_timeout_ms=REQUEST_TIMEOUT_MS)
        async with Client(name_servers, options) as client:
            return await work(client)

    show_warnings()
    for address in filter(None, map(str.strip, name_servers.split(";"))):
        try:
            split_address(address)
        except UnreachableError as error:
            raise CommandError(f"--namesrv {address}: write host:port, such as {DEFAULT_NAME_SERVER}", 2) from error
    try:
        return asyncio.run(run())
    except (ClientError, IllegalMessageError, ValueError) as error:
        raise CommandError(explain(error, name_servers)) from error


def explain(error: Exception, name_servers: str) -> str:
    """The error's text, with a hint where it is likely that the address is wrong."""
    cause = error.__cause__ if isinstance(error, SendError) else error
    if isinstance(cause, UnreachableError):
        if cause.address not in map(str.strip, name_servers.split(";")):
            return f"{cause}. The NameServer says that a broker is there: is it running, and reached from here?"
        return (
            f"{cause}. Is a broker running there?"
            " Start one with `delaymq standalone`, or name another NameServer with --namesrv."
        )
    if isinstance(cause, RefusedError) and cause.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return f"{cause}. Is this a broker's address? --namesrv takes the NameServer's (default port 9876)."
    return str(error)
