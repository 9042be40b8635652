"""Times as a person writes them, in options and arguments alike."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

# The year 33658; whatever has more digits is not meant as ms.
_MAX_DIGITS: Final = 15


def parse_time_ms(text: str) -> int:
    """ms since 1970, from such or from an ISO time (UTC unless it says otherwise). ValueError when it is neither."""
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    time = datetime.fromisoformat(text)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
