"""Location of the cache of expensive artifacts."""

import os
from pathlib import Path


def cache_root() -> Path:
    """Return ``$DELAYMQ_CACHE`` or ``~/.cache/delaymq``, which may be deleted while nothing runs."""
    configured = os.environ.get("DELAYMQ_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "delaymq"
