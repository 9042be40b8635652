"""Clients that take a replica for the master, because the address of the group still leads to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delaymq.protocol.codes import SEND_CODES, RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response

if TYPE_CHECKING:
    from delaymq.server.requests.client_session import ClientSession

PAUSE_S: Final = 0.4
"""Time before a connection is closed. RocketMQ's client repeats a send twice without a pause, and nodes may need longer
to direct new connections to the master."""
MASTER_CODES: Final = SEND_CODES | {
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
}
"""Requests of producers and consumers that they send to masters only, unlike pulls and heartbeats."""


class Redirection:
    """Closes connections with requests for the master, so that clients connect again."""

    def __init__(self, reply: Callable[[ClientSession, Command, Response], None], refusal: Callable[[], str]) -> None:
        """`refusal` returns the remark of responses."""
        self._reply = reply
        self._refusal = refusal
        self._closing: set[int] = set()

    def take(self, session: ClientSession, commands: list[Command]) -> list[Command]:
        """Return the requests that a replica handles. Only the first one of the others gets a response, after PAUSE_S;
        the end of the connection fails the rest.
        """
        for_master = [command for command in commands if command.code in MASTER_CODES]
        if not for_master:
            return commands
        if session.id not in self._closing:
            self._closing.add(session.id)
            first = for_master[0]
            first.body = b""
            asyncio.get_running_loop().call_later(PAUSE_S, self._close, session, first)
        return [command for command in commands if command.code not in MASTER_CODES]

    def _close(self, session: ClientSession, first: Command) -> None:
        self._closing.discard(session.id)
        self._reply(session, first, Response(ResponseCode.SERVICE_NOT_AVAILABLE, self._refusal()))
        session.connection.close()
