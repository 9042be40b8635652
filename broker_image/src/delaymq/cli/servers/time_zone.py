"""The process's time zone, which `deleteWhen` and the times in logs are in: TZ, also where the system has no zones.

A small container has no /usr/share/zoneinfo: the C library then takes UTC for every TZ, and says nothing. The data that
comes with the installation (the package tzdata) stands in.
"""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Final

SYSTEM_ZONES: Final = Path("/usr/share/zoneinfo")


def prepare_time_zone() -> list[str]:
    """Has the C library find the zone of TZ; sentences about a TZ that names none."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name or name.startswith("/") or "/" not in name:
        # No zone by name: a file, or a rule such as CET-1CEST and UTC0, which need no data.
        return []
    if _has(Path(os.environ.get("TZDIR", SYSTEM_ZONES)), name):
        return []
    own = _own_zones()
    if own is not None and _has(own, name):
        # As a file: with the same name for the zone the C library would not look again.
        os.environ["TZ"] = f":{own / name}"
        time.tzset()
        return []
    return [f"TZ={name[:100]} is no time zone that is known here: times and deleteWhen are in UTC"]


def _has(zones: Path, name: str) -> bool:
    return ".." not in Path(name).parts and (zones / name).is_file()


def _own_zones() -> Path | None:
    found = importlib.util.find_spec("tzdata")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "zoneinfo"
