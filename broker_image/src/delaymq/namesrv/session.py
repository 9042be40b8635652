"""A connection as the NameServer sees it."""

from typing import Protocol


class NamesrvSession(Protocol):
    """One connection of a broker or client."""

    id: int
    """Unique in this process, never reused."""
    remote_address: str
    remote_host: bytes
    """Packed by message.ids.pack_host."""

    @property
    def is_private(self) -> bool:
        """Whether the connection is protected from eavesdropping."""
