"""Location of the cache of expensive artifacts."""

import os
from pathlib import Path


def cache_root() -> Path:
    """``$DELAYMQ_CACHE`` or ``~/.cache/delaymq``; safe to delete while nothing runs."""
    configured = os.environ.get("DELAYMQ_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "delaymq"
