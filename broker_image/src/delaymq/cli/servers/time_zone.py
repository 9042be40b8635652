"""Time zone of the process (TZ), used by `deleteWhen` and log timestamps, even without system time zone data.

Small containers have no /usr/share/zoneinfo; the C library then silently uses UTC for every TZ. This module falls back
to the data of the package tzdata.
"""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Final

SYSTEM_ZONES: Final = Path("/usr/share/zoneinfo")


def prepare_time_zone() -> list[str]:
    """Make the C library find the zone of TZ; return notes on an unknown TZ."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name or name.startswith("/") or "/" not in name:
        # Not a zone name, but a file or a rule such as CET-1CEST or UTC0, which needs no data.
        return []
    if _has(Path(os.environ.get("TZDIR", SYSTEM_ZONES)), name):
        return []
    own = _own_zones()
    if own is not None and _has(own, name):
        # Set as a file, because the C library does not reload a zone of the same name.
        os.environ["TZ"] = f":{own / name}"
        time.tzset()
        return []
    return [f"TZ={name[:100]} is an unknown time zone: log timestamps and deleteWhen use UTC"]


def _has(zones: Path, name: str) -> bool:
    return ".." not in Path(name).parts and (zones / name).is_file()


def _own_zones() -> Path | None:
    found = importlib.util.find_spec("tzdata")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "zoneinfo"
