"""Interface of a client's connection for the broker's domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from delaymq.protocol.command import Command

if TYPE_CHECKING:
    from delaymq.broker.quotas.usage import AccountUsage


class Session(Protocol):
    """A client's connection, provided by the server and valid until `Broker.session_closed`."""

    id: int
    """Unique in this process, never reused."""
    remote_host: bytes
    """The peer's address and port, packed (message.ids.pack_host)."""
    remote_address: str
    """The same as `ip:port`."""
    client_id: str | None
    """Set by the first heartbeat."""
    usage: AccountUsage | None
    """Usage of the account of the last request; None before the first one, and without access control."""

    @property
    def certificate_name(self) -> str:
        """Common name of the client's verified certificate; empty without one, or if it cannot be an access key."""

    @property
    def is_private(self) -> bool:
        """Whether the connection is protected from eavesdropping: TLS, or a peer on this machine."""

    def signed_by(self, account: str) -> None:
        """Record that an account signed a request. The connection's costs are attributed to it from now on."""

    def pause(self, seconds: float) -> float:
        """Read no requests of the client for this time. Returns the seconds by which this prolongs an earlier pause."""

    def shorten_pause(self, seconds: float) -> float | None:
        """End a pause after this time at the latest. Returns the seconds removed; None if there is no pause."""

    def end(self) -> None:
        """Close the connection after the response to the current request."""

    def notify(self, command: Command) -> bool:
        """Send a one-way request to the client. Never raises.

        Returns False if its connection is closed or too far behind.
        """
