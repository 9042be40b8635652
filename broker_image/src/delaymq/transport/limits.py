"""Limits of one connection."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """What one connection may cost."""

    max_open_requests: int = 10_000
    """Requests of ours that wait for answers; more would only fill the peer's queue."""
    write_pause_bytes: int = 1 << 20
    """Unsent bytes above which the peer counts as behind."""
    write_max_bytes: int = 64 << 20
    """Unsent bytes at which the peer is cut off: a few of the largest frames."""
    write_stall_ms: int = 30_000
    """How long a peer may stay behind before it is cut off."""
    close_timeout_ms: int = 5_000
    """How long a close waits for the peer to take what was written."""
    read_while_behind: bool = True
    """Whether a peer that does not read its answers is still read from. Off for servers: no new work for it."""
