"""What the domain sees of a client's connection."""

from __future__ import annotations

from typing import Protocol

from delaymq.protocol.command import Command


class Session(Protocol):
    """One connection of a client, as the server hands it in; alive until `Broker.session_closed`."""

    id: int
    """Unique in this process, never used again."""
    remote_host: bytes
    """The peer's address and port, packed (message.ids.pack_host)."""
    remote_address: str
    """The same as `ip:port`."""
    client_id: str | None
    """Set by the first heartbeat."""

    @property
    def is_private(self) -> bool:
        """Whether nobody in between can read along: TLS, or a peer on this machine."""

    def signed_by(self, account: str) -> None:
        """An account's signature on one of its requests was good: what they cost counts as this account's from now."""

    def notify(self, command: Command) -> bool:
        """Sends a one-way request to the client; False, and nothing raised, when its connection is gone or behind."""
