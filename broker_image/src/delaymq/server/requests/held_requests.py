"""Requests that wait, before anything of them is stored, while another member of the group takes over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delaymq.protocol.codes import LINK_CODES, ResponseCode
from delaymq.protocol.command import Command, Response

if TYPE_CHECKING:
    from delaymq.server.requests.client_session import ClientSession
    from delaymq.transport import RemotingConnection

MAX_HELD: Final = 10_000
"""Default maximum of held requests, as that of sends that wait for the disk."""
MAX_HELD_BYTES: Final = 64 << 20
"""Default maximum of the bodies of held requests."""
_REFUSED: Final = Response(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    remark="service not available now: the broker is about to hand over to a replica: try again",
)

Held = list[tuple["RemotingConnection", list[Command]]]


class HeldRequests:
    """Requests that are held once: they are taken, or forgotten when the broker stops."""

    def __init__(
        self,
        reply: Callable[[ClientSession, Command, Response], None],
        max_held: int = MAX_HELD,
        max_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        self._reply = reply
        self._held: Held = []
        self._left = max_held
        self._left_bytes = max_bytes

    def hold(self, connection: RemotingConnection, session: ClientSession, commands: list[Command]) -> list[Command]:
        """Hold requests, or answer those that exceed a limit with 14; return those of members, which do not wait."""
        passing, held = [], []
        for command in commands:
            if command.code in LINK_CODES:
                passing.append(command)
            elif self._left and len(command.body) <= self._left_bytes:
                self._left -= 1
                self._left_bytes -= len(command.body)
                held.append(command)
            else:
                self._reply(session, command, _REFUSED)
        if held:
            self._held.append((connection, held))
        return passing

    def taken(self) -> Held:
        """Return the requests in the order in which they arrived."""
        held, self._held = self._held, []
        return held
