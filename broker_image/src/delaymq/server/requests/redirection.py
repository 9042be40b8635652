"""Clients that take a replica for the master, because the address of the group still leads to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from delaymq.protocol.codes import SEND_CODES, RequestCode
from delaymq.protocol.command import Command

if TYPE_CHECKING:
    from delaymq.server.requests.client_session import ClientSession

PAUSE_S: Final = 0.4
"""Time before a connection is reset. RocketMQ's client repeats a send twice without a pause, and nodes may need longer
to direct new connections to the master."""
MASTER_CODES: Final = SEND_CODES | {
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
}
"""Requests of producers and consumers that they send to masters only, unlike pulls and heartbeats."""


class Redirection:
    """Resets connections with requests for the master, so that clients connect again."""

    def __init__(self) -> None:
        self._closing: set[int] = set()

    def take(self, session: ClientSession, commands: list[Command]) -> list[Command]:
        """Return the requests that a replica handles. A reset of the connection, after PAUSE_S, fails the others.

        They get no response, because RocketMQ's client does not repeat an asynchronous send that was refused. It does
        not notice an orderly end either: open requests then wait for their timeouts.
        """
        handled = [command for command in commands if command.code not in MASTER_CODES]
        if len(handled) < len(commands) and session.id not in self._closing:
            self._closing.add(session.id)
            asyncio.get_running_loop().call_later(PAUSE_S, self._close, session)
        return handled

    def _close(self, session: ClientSession) -> None:
        self._closing.discard(session.id)
        session.connection.abort()
