"""Rules of repeating messages: when they run, which runs may be skipped, and what the records of runs state.

They are derived from docs/concepts.md and docs/formats/store.md, and share no code with the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from crash.managed_load import CRON, CRON_MS
from harness.commitlog import Mark, Record

_LATER_MS = 8
"""A next run at a time at which a run was due before is due a millisecond later; repeatedly, if several were moved."""
_SCHEDULE = ("DELAY_CRON", "DELAY_EVERY_MS", "DELAY_RUNS", "DELAY_MISSED", "DELAY_UNTIL_MS", "DELAY_ZONE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What a repeating message requests."""

    every_ms: int | None
    """None: the cron expression of the load."""
    runs: int | None
    missed: str
    late_ms: int | None
    """Lateness above which runs are skipped."""

    @classmethod
    def of(cls, properties: dict[str, str]) -> Schedule | None:
        """Return the schedule that properties request; None without one."""
        if "DELAY_EVERY_MS" not in properties and properties.get("DELAY_CRON") != CRON:
            return None
        return cls(
            every_ms=_optional(properties, "DELAY_EVERY_MS"), runs=_optional(properties, "DELAY_RUNS"),
            missed=properties.get("DELAY_MISSED", "latest"), late_ms=_optional(properties, "DELAY_EXPIRE_MS"),
        )  # fmt: skip

    def following(self, run_ms: int, after_ms: int | None = None) -> int:
        """Return the first time of a run after `after_ms`, or after the run at `run_ms`."""
        after_ms = run_ms if after_ms is None else after_ms
        if self.every_ms is None:
            return (after_ms // CRON_MS + 1) * CRON_MS
        return run_ms + ((after_ms - run_ms) // self.every_ms + 1) * self.every_ms

    def latest(self, run_ms: int, until_ms: int) -> int:
        """Return the last time of a run at or before `until_ms`, of the one at `run_ms` and those after it."""
        if self.following(run_ms) > until_ms:
            return run_ms
        if self.every_ms is None:
            return until_ms // CRON_MS * CRON_MS
        return run_ms + (until_ms - run_ms) // self.every_ms * self.every_ms


def problems_of_run(schedule: Schedule, record: Record, mark: Mark, number: int, key: str) -> list[str]:
    """Return what is wrong about a run, which is the `number`-th in the log of the message with a unique key."""
    properties, problems = record.properties, []
    run_ms = int(properties.get("TIMER_OUT_MS", "0"))
    if mark.details != {"run": str(number)} or properties.get("DELAY_RUN") != str(number):
        problems.append("wrong number of a run")
    digest = sha256(f"{key}:{mark.identity}:{number}".encode()).hexdigest().upper()
    if (record.unique_key, properties.get("DELAY_SCHEDULE_ID")) != (f"{digest[:20]}00000000{digest[20:24]}", key):
        problems.append("wrong id of a run")
    if any(name in properties for name in _SCHEDULE):
        problems.append("copy that would repeat")
    if record.stored_ms < run_ms:
        problems.append("early")
    is_late = schedule.late_ms is not None and mark.decided_ms - mark.due_ms > schedule.late_ms
    expected_ms = schedule.latest(mark.due_ms, mark.decided_ms) if schedule.missed == "latest" else mark.due_ms
    if is_late or run_ms != expected_ms:
        problems.append("wrong run")
    if not _is_next(mark.next_due_ms, None if number == schedule.runs else schedule.following(run_ms)):
        problems.append("wrong next run")
    return problems


def problems_of_skip(schedule: Schedule, mark: Mark) -> list[str]:
    """Return what is wrong about a mark that skips runs."""
    if schedule.late_ms is None or mark.decided_ms - mark.due_ms <= schedule.late_ms:
        return ["skipped in time"]
    next_ms = schedule.following(mark.due_ms, mark.decided_ms - schedule.late_ms - 1)
    return [] if _is_next(mark.next_due_ms, next_ms) and not mark.details else ["wrong next run"]


def _is_next(stated_ms: int | None, expected_ms: int | None) -> bool:
    if stated_ms is None or expected_ms is None:
        return stated_ms is expected_ms
    return expected_ms <= stated_ms <= expected_ms + _LATER_MS


def _optional(properties: dict[str, str], name: str) -> int | None:
    return int(properties[name]) if name in properties else None
