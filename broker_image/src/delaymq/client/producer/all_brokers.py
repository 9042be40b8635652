"""Requests to all brokers of a topic, some of which may not respond."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from delaymq.client.errors import AnswerTimeoutError, ClientError, UnreachableError

T = TypeVar("T")


async def from_all(requests: Mapping[str, Awaitable[T]]) -> tuple[list[T], dict[str, ClientError]]:
    """Return the results of requests by broker name, and the errors of the brokers that did not respond.

    The first other error is raised when all requests have ended.
    """
    results = await asyncio.gather(*requests.values(), return_exceptions=True)
    found: list[T] = []
    lost: dict[str, ClientError] = {}
    for name, result in zip(requests, results, strict=True):
        if isinstance(result, UnreachableError | AnswerTimeoutError):
            lost[name] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            found.append(result)
    return found, lost
