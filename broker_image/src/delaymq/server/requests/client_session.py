"""Session of a connection for broker and NameServer, and its held pulls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from delaymq.message.ids import is_loopback
from delaymq.protocol.command import Command
from delaymq.transport import RemotingConnection, TransportError

if TYPE_CHECKING:
    from delaymq.access.accounts import Account
    from delaymq.broker.quotas.usage import AccountUsage
    from delaymq.broker.requests.results import Held

BUCKET_MS: Final = 500
"""Width of deadline buckets, by which a pull may wait longer than requested."""


class ClientSession:
    """Session of one connection."""

    __slots__ = (
        "_certificate_name",
        "client_id",
        "connection",
        "held",
        "held_bytes",
        "id",
        "idle_sweeps",
        "is_link",
        "remote_address",
        "remote_host",
        "signer",
        "usage",
    )

    def __init__(self, connection: RemotingConnection) -> None:
        self.connection = connection
        self.id = connection.id
        self.remote_host = connection.remote_host
        self.remote_address = connection.remote_address
        self.client_id: str | None = None
        self.held: set[HeldPull] = set()
        """Held pulls of the connection."""
        self.held_bytes = 0
        """Memory of the held pulls."""
        self.idle_sweeps = 0
        self.signer = ""
        """Account of the last signature that was verified."""
        self.is_link = False
        """Whether it is a link of another member of the group, which may be idle."""
        self.usage: AccountUsage | None = None
        self._certificate_name: str | None = None

    @property
    def certificate_name(self) -> str:
        """Common name of the client's verified certificate; empty without one, or if it cannot be an access key."""
        if self._certificate_name is None:
            if not self.connection.is_tls:
                return ""  # it may still be upgraded
            from delaymq.access.accounts import is_certificate_name  # most brokers have no accounts

            name = self.connection.peer_name()
            self._certificate_name = name if is_certificate_name(name) else ""
        return self._certificate_name

    @property
    def is_private(self) -> bool:
        """Whether the connection is protected from eavesdropping: TLS, or a peer on this machine."""
        return self.connection.is_tls or is_loopback(self.remote_host)

    def signed_by(self, account: str) -> None:
        """Assign the connection to the account's share of the server's time."""
        self.signer = account
        self.connection.charge_to(account)

    def pause(self, seconds: float) -> float:
        """Read no requests for this time; return the seconds by which this prolongs an earlier pause."""
        return self.connection.pause_reading_for(seconds)

    def shorten_pause(self, seconds: float) -> float | None:
        """End a pause after this time at the latest; return the seconds removed, None without a pause."""
        return self.connection.shorten_pause(seconds)

    def end(self) -> None:
        """Close the connection after the response to the current request."""
        asyncio.get_running_loop().call_soon(self.connection.close)

    def notify(self, command: Command) -> bool:
        """Send a one-way request; return False if the peer is disconnected or slow, or the request is too large."""
        try:
            self.connection.send_oneway(command)
        except (TransportError, ValueError):
            return False
        return True


class HeldPull:
    """One held pull; compared by identity."""

    __slots__ = ("account", "bucket", "bytes", "held", "request", "session", "units", "usage")

    def __init__(self, session: ClientSession, request: Command, held: Held, taken: int) -> None:
        self.session = session
        self.request = request
        self.held = held
        self.bytes = taken
        self.bucket = held.deadline_ms // BUCKET_MS
        self.units = 1 if held.properties is None else 2 + held.cost
        """Cost of testing a message."""
        self.account: Account | None = None
        """Account that signed the pull."""
        self.usage = session.usage
        """Usage to which the pull counts."""

    @property
    def is_waiting(self) -> bool:
        """Whether the pull was neither answered nor dropped."""
        return self in self.session.held
