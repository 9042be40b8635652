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
    """All that the client says; a send's own text leaves the broker's out."""
    return f"{error} {error.remark}"


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until it holds; what access control refuses meanwhile is no failure."""
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
    """Runs a scenario with a client of an account."""
    credentials = None if account is None else Credentials(account["accessKey"], account["secretKey"])

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            async with Client(cluster.namesrv_address, ClientOptions(credentials=credentials)) as client:
                await scenario(client)

    asyncio.run(run())
