"""Connected producers that receive checks of half messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from delaymq.broker.groups.client_registry import ClientRegistry
    from delaymq.broker.requests.session import Session
    from delaymq.protocol.command import Command

_MAX_TRIED: Final = 16
"""Producers of a group that are tried for one check. Bounds the cost if thousands of producers do not read."""


class Readers(Protocol):
    """Access control for checks, which contain the whole message."""

    def may_publish(self, session: Session, topic: str) -> bool:
        """Return whether the client on this connection may see messages for a topic."""


class Producers:
    """Producers of one broker. `access` is None without access control."""

    def __init__(self, clients: ClientRegistry, access: Readers | None) -> None:
        self._clients = clients
        self._access = access
        self._asked = 0

    def is_connected(self, group: str, topic: str | None) -> bool:
        """Return whether a producer of a group is connected and may see messages for a topic. None: for any topic."""
        members, access = self._clients.producers.get(group), self._access
        if not members or access is None or topic is None:
            return bool(members)
        return any(access.may_publish(client.session, topic) for client in members.values())

    def send_check(self, group: str, topic: str, question: Command) -> bool:
        """Send a check to one connected producer of a group, in rotation. Returns False if none of them accepts it."""
        members, access = self._clients.producers.get(group, {}), self._access
        sessions = [client.session for client in members.values()]
        if access is not None:
            sessions = [session for session in sessions if access.may_publish(session, topic)]
        for _ in range(min(len(sessions), _MAX_TRIED)):
            self._asked += 1
            if sessions[self._asked % len(sessions)].notify(question):
                return True
        return False
