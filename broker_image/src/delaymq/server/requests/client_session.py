"""One connection as broker and NameServer see it, and its pulls that wait for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from delaymq.message.ids import is_loopback
from delaymq.protocol.command import Command
from delaymq.transport import RemotingConnection, TransportError

if TYPE_CHECKING:
    from delaymq.access.accounts import Account
    from delaymq.broker.results import Held

BUCKET_MS: Final = 500
"""Deadlines are kept in buckets this wide: a pull waits at most this much longer than it asked for."""


class ClientSession:
    """One connection."""

    __slots__ = ("client_id", "connection", "held", "held_bytes", "id", "idle_sweeps", "remote_address", "remote_host")

    def __init__(self, connection: RemotingConnection) -> None:
        self.connection = connection
        self.id = connection.id
        self.remote_host = connection.remote_host
        self.remote_address = connection.remote_address
        self.client_id: str | None = None
        self.held: set[HeldPull] = set()
        """Its pulls that wait for messages."""
        self.held_bytes = 0
        """What they take."""
        self.idle_sweeps = 0

    @property
    def is_private(self) -> bool:
        """Whether nobody in between can read along: TLS, or a peer on this machine."""
        return self.connection.is_tls or is_loopback(self.remote_host)

    def signed_by(self, account: str) -> None:
        """Its requests share the server's time with this account's other connections."""
        self.connection.charge_to(account)

    def notify(self, command: Command) -> bool:
        """Sends a one-way request; False: the connection is gone or behind, or it fits no frame."""
        try:
            self.connection.send_oneway(command)
        except (TransportError, ValueError):
            return False
        return True


class HeldPull:
    """One pull that waits; compared by identity."""

    __slots__ = ("account", "bucket", "bytes", "held", "request", "session", "units")

    def __init__(self, session: ClientSession, request: Command, held: Held, taken: int) -> None:
        self.session = session
        self.request = request
        self.held = held
        self.bytes = taken
        self.bucket = held.deadline_ms // BUCKET_MS
        self.units = 1 if held.properties is None else 2 + held.cost
        """What a test of a message costs."""
        self.account: Account | None = None
        """By whose signature it was let in."""

    @property
    def is_waiting(self) -> bool:
        """Whether it was neither answered nor dropped."""
        return self in self.session.held
