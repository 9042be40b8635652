"""The NameServers of a client: queried sequentially, starting with the last one that responded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from delaymq.client.core.network import Network
from delaymq.client.errors import ClientError, ClosedError, RefusedError
from delaymq.protocol.command import Command

LEAST_MS = 500
"""Minimum time for the response of each of several NameServers; a part of the request timeout if that is longer."""


class NameServers:
    """Requests to NameServers. If `addresses` is empty, none are possible."""

    def __init__(self, network: Network, addresses: Sequence[str], timeout_ms: int) -> None:
        self.addresses = list(addresses)
        self._network = network
        self._timeout_ms = timeout_ms
        self._first = 0

    async def request(self, command: Command, *, unless_all: int | None = None) -> Command:
        """Return the first response with code 0.

        A NameServer does not respond to a request that it does not support: AnswerTimeoutError. With several
        NameServers, each has a time limit that lets the others be queried within the timeout of a send. A rejection
        with code `unless_all` is returned only if all that respond agree. Errors as Network.ask; ClientError without
        NameServers.
        """
        last: ClientError | None = None
        refused: RefusedError | None = None
        count = len(self.require())
        timeout_ms = max(self._timeout_ms // count, min(LEAST_MS, self._timeout_ms))
        for turn in range(count):
            index = (self._first + turn) % count
            try:
                answer = await self._network.request(self.addresses[index], command, timeout_ms)
            except asyncio.CancelledError:
                # The caller was cancelled while waiting: the next request starts with another NameServer.
                self._first = (index + 1) % count
                raise
            except RefusedError as error:
                if error.code != unless_all:
                    raise
                refused = error
            except ClosedError:
                raise
            except ClientError as error:
                last = error
            else:
                self._first = index
                return answer
        failed = refused or last
        assert failed is not None
        raise failed

    def require(self) -> list[str]:
        """Return the addresses. Raises ClientError if there are none."""
        if not self.addresses:
            raise ClientError("this client has no NameServers: create a Client with their addresses")
        return self.addresses
