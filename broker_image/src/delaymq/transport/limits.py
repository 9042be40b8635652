"""Limits of one connection."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Resource limits of one connection."""

    max_open_requests: int = 10_000
    """Limit of this side's requests without a response; more would only fill the peer's queue."""
    write_pause_bytes: int = 1 << 20
    """Number of unsent bytes above which the peer counts as behind."""
    write_max_bytes: int = 64 << 20
    """Number of unsent bytes at which the peer is disconnected: several of the largest frames."""
    write_stall_ms: int = 30_000
    """Time for which a peer may stay behind before it is disconnected."""
    close_timeout_ms: int = 5_000
    """Time for which a close waits until the peer has received what was written."""
    read_while_behind: bool = True
    """Whether to read from a peer that does not read its responses. Off for servers, which then accept no new work."""
