"""/api/v1/totals."""

from delaymq.api_types.base import Answer


class Pin(Answer):
    """Who keeps the log from being deleted."""

    holder: str
    bytes: int


class Disk(Answer):
    """The store's disk, as df counts it for a user who is not root."""

    path: str
    total_bytes: int
    """Used and free bytes."""
    free_bytes: int
    used_ratio: float
    """Disk usage on which retention and refusals of sends are based."""
    log_bytes: int
    pinned_bytes: int
    pinned_by: list[Pin]


class Totals(Answer):
    """Sums since the start, and how things stand."""

    as_of_ms: int
    started_at_ms: int
    boot_id: str
    stored: int
    """Messages of producers, and those sent back."""
    stored_bytes: int
    delivered: int
    """Delayed ones."""
    pulled: int
    """Messages handed to consumers."""
    pending: int
    next_due_ms: int | None
    connections: int
    held_pulls: int
    event_loop_lag_ms: float
    resident_bytes: int | None
    disk: Disk
    ready: bool
    not_ready: list[str]
