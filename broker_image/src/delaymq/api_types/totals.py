"""Types of /api/v1/totals."""

from delaymq.api_types.base import Answer


class Pin(Answer):
    """A pin, which exempts segments from retention."""

    holder: str
    bytes: int


class Disk(Answer):
    """The store's disk, as df reports it to unprivileged users."""

    path: str
    total_bytes: int
    """Sum of used and free bytes."""
    free_bytes: int
    used_ratio: float
    """Disk usage on which retention and the rejection of sends are based."""
    log_bytes: int
    pinned_bytes: int
    pinned_by: list[Pin]


class Totals(Answer):
    """Sums since startup, and current state."""

    as_of_ms: int
    started_at_ms: int
    boot_id: str
    stored: int
    """Messages from producers, including retries."""
    stored_bytes: int
    delivered: int
    """Delivered delayed messages."""
    pulled: int
    """Messages returned to consumers."""
    pending: int
    next_due_ms: int | None
    connections: int
    held_pulls: int
    event_loop_lag_ms: float
    resident_bytes: int | None
    disk: Disk
    ready: bool
    not_ready: list[str]
