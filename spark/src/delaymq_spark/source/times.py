"""Times given by users in options and arguments."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_MAX_DIGITS: Final = 15
"""Up to the year 33658; a number of more digits is not a time in ms."""


def parse_time_ms(text: str) -> int:
    """Parse ms since 1970 or an ISO 8601 time (in UTC unless it has an offset); return ms since 1970. ValueError."""
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    time = datetime.fromisoformat(text)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
