"""Unique ids of the runs of repeating messages (docs/formats/store.md)."""

from __future__ import annotations

from hashlib import sha256


def run_id(schedule_id: str, identity: int, run: int) -> str:
    """Return the unique id of a run: always the same for the same run, in the layout of RocketMQ's clients.

    They search for a message from the time in its id on, in ms since the start of the month. The id states the start.
    """
    digest = sha256(f"{schedule_id}:{identity}:{run}".encode("utf-8", "surrogateescape")).hexdigest().upper()
    return f"{digest[:20]}{0:08X}{digest[20:24]}"
