"""Accounts for access control tests, and clients that use them."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from delaymq.client import Client, ClientOptions, Credentials
from harness.brokers import Cluster
from harness.driver import ClientError

ADMIN = {"accessKey": "operators", "secretKey": "operators-secret"}
APP = {"accessKey": "application", "secretKey": "12345678"}
LIMIT_S = 60.0


def shown(error: ClientError) -> str:
    """Return everything that the client reports; the text of a send error omits the broker's reason."""
    return f"{error} {error.remark}"


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; rejections by access control in the meantime are ignored."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            if condition():
                return
            problem: object = "the condition does not hold"
        except ClientError as error:
            problem = error
        if time.monotonic() > deadline:
            raise AssertionError(problem)
        time.sleep(0.2)


def asked(cluster: Cluster, account: dict[str, str] | None, scenario: Callable[[Client], Awaitable[None]]) -> None:
    """Run a scenario with a client that uses an account."""
    credentials = None if account is None else Credentials(account["accessKey"], account["secretKey"])

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            async with Client(cluster.namesrv_address, ClientOptions(credentials=credentials)) as client:
                await scenario(client)

    asyncio.run(run())
