"""Schedules of repeating messages: what a producer requests with properties, and which runs follow from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from delaymq.broker.delivery.repeating.cron import cron_of, never_runs
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError

LEAST_INTERVAL_MS: Final = 1_000
MAX_MISSED_RUNS: Final = 1_000
"""Missed runs that are delivered with DELAY_MISSED=all: the latest ones."""
LATE_MS: Final = 60_000
"""With DELAY_MISSED=none, the lateness above which a run is skipped, unless DELAY_EXPIRE_MS states another one."""
_COUNTED: Final = 100
"""Skipped runs of one decision that are counted."""
_NUMBER: Final = re.compile(r"[0-9]{1,15}\Z", re.ASCII)


class Missed(StrEnum):
    """Treatment of runs that were not delivered in time, such as during a downtime (DELAY_MISSED)."""

    LATEST = "latest"
    """Of several missed runs, only the latest one is delivered."""
    ALL = "all"
    """All of them are delivered, up to the MAX_MISSED_RUNS latest ones."""
    NONE = "none"
    """Runs that are later than DELAY_EXPIRE_MS are skipped."""


class Rhythm(Protocol):
    """Times of the runs, in ms since the epoch. `base_ms` is the time of an earlier run."""

    def following(self, base_ms: int, after_ms: int) -> int | None:
        """Return the first time after `after_ms`; None if there is none."""

    def latest(self, first_ms: int, until_ms: int) -> int:
        """Return the last time at or before `until_ms`; `first_ms` is one of the times."""

    def count(self, base_ms: int, until_ms: int, most: int) -> int:
        """Return about the number of times after `base_ms` and up to `until_ms`, at most `most`."""

    def oldest_of(self, first_ms: int, until_ms: int, count: int) -> int:
        """Return the first of the last `count` times up to `until_ms`, but none before `first_ms`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Runs at a fixed distance in ms from each other."""

    every_ms: int

    def following(self, base_ms: int, after_ms: int) -> int | None:
        return base_ms + (max(after_ms - base_ms, 0) // self.every_ms + 1) * self.every_ms

    def latest(self, first_ms: int, until_ms: int) -> int:
        return first_ms + max(until_ms - first_ms, 0) // self.every_ms * self.every_ms

    def count(self, base_ms: int, until_ms: int, most: int) -> int:
        return min(max(until_ms - base_ms, 0) // self.every_ms, most)

    def oldest_of(self, first_ms: int, until_ms: int, count: int) -> int:
        return max(self.latest(first_ms, until_ms) - (count - 1) * self.every_ms, first_ms)


@dataclass(frozen=True, slots=True)
class ByCron:
    """Runs at the times of a cron expression, which do not depend on earlier runs."""

    expression: str
    zone: str

    def following(self, base_ms: int, after_ms: int) -> int | None:
        return cron_of(self.expression, self.zone).next_after(after_ms)

    def latest(self, first_ms: int, until_ms: int) -> int:
        return self.oldest_of(first_ms, until_ms, 1)

    def count(self, base_ms: int, until_ms: int, most: int) -> int:
        return cron_of(self.expression, self.zone).count(base_ms, until_ms, most)

    def oldest_of(self, first_ms: int, until_ms: int, count: int) -> int:
        return cron_of(self.expression, self.zone).oldest_of(first_ms, until_ms, count)


class Plan(NamedTuple):
    """Decision about a due message: one run at `run_ms`, or none, and the time of the next one."""

    run_ms: int | None
    """Time of the run to deliver; None: it is skipped."""
    next_ms: int | None
    """None: the schedule ends."""
    skipped: int
    """Number of skipped runs, at most _COUNTED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A repeating schedule."""

    rhythm: Rhythm
    until_ms: int | None = None
    """Time in ms since the epoch after which the schedule has no run."""
    runs: int | None = None
    """Number of runs."""
    missed: Missed = Missed.LATEST
    late_ms: int | None = None
    """Lateness in ms above which a run is skipped."""

    def first_ms(self, now_ms: int) -> int | None:
        """Return the time of the first run of a message that is sent now, or of the next run of one that is touched."""
        return self._within(self.rhythm.following(now_ms, now_ms))

    def following(self, run_ms: int, after_ms: int, run: int) -> int | None:
        """Return the first time after `after_ms`; None if the schedule ends. The newest run is `run`, at `run_ms`."""
        if self.runs is not None and run >= self.runs:
            return None
        return self._within(self.rhythm.following(run_ms, after_ms))

    def _within(self, time_ms: int | None) -> int | None:
        return None if time_ms is None or (self.until_ms is not None and time_ms > self.until_ms) else time_ms

    def plan(
        self,
        due_ms: int,
        now_ms: int,
        run: int,
        dropped_up_to_ms: int | None = None,
        *,
        is_limited: bool = False,
    ) -> Plan:
        """Decide about a message that is due at `due_ms`, after `run` runs.

        Runs at or before `dropped_up_to_ms` are not delivered. `is_limited`: at most MAX_MISSED_RUNS runs are left.
        A due time after `until_ms` was requested by a change, so that the run is delivered, as the last one.
        """
        if self.runs is not None and run >= self.runs:
            return Plan(None, None, 1)
        end_ms = now_ms if self.until_ms is None else min(now_ms, self.until_ms)
        least_ms = due_ms
        if self.late_ms is not None:
            least_ms = max(least_ms, now_ms - self.late_ms)
        if dropped_up_to_ms is not None:
            least_ms = max(least_ms, dropped_up_to_ms + 1)
        if self.missed is Missed.ALL and not is_limited:
            least_ms = max(least_ms, self.rhythm.oldest_of(due_ms, end_ms, MAX_MISSED_RUNS))
        if least_ms > due_ms:
            next_ms = self.following(due_ms, least_ms - 1, run)
            return Plan(None, next_ms, 1 + self.rhythm.count(due_ms, least_ms - 1, _COUNTED))
        following_ms, run_ms, skipped = self.following(due_ms, due_ms, run + 1), due_ms, 0
        later_ms = self.following(due_ms, due_ms, run) if self.missed is Missed.LATEST else None
        if later_ms is not None and later_ms <= end_ms:
            run_ms = self.rhythm.latest(later_ms, end_ms)
            skipped = 1 + self.rhythm.count(due_ms, run_ms - 1, _COUNTED)
            following_ms = self.following(run_ms, run_ms, run + 1)
        return Plan(run_ms, following_ms, skipped)


def schedule_of(properties: Mapping[str, str]) -> Schedule:
    """Return the schedule that a message requests. IllegalMessageError."""
    cron, every = properties.get(names.DELAY_CRON), properties.get(names.DELAY_EVERY_MS)
    if cron is not None and every is not None:
        raise IllegalMessageError(
            f"the message has both {names.DELAY_CRON} and {names.DELAY_EVERY_MS}: send one of them"
        )
    rhythm: Rhythm
    if cron is not None:
        zone = properties.get(names.DELAY_ZONE, "UTC")
        cron_of(cron, zone)
        rhythm = ByCron(cron, zone)
    else:
        if names.DELAY_ZONE in properties:
            raise IllegalMessageError(f"{names.DELAY_ZONE} needs {names.DELAY_CRON}: an interval has no time zone")
        rhythm = Interval(_number(properties, names.DELAY_EVERY_MS, LEAST_INTERVAL_MS, "milliseconds"))
    missed = _missed(properties.get(names.DELAY_MISSED, Missed.LATEST))
    late_ms = LATE_MS if missed is Missed.NONE else None
    if names.DELAY_EXPIRE_MS in properties:
        late_ms = _number(properties, names.DELAY_EXPIRE_MS, 0, "milliseconds")
    return Schedule(
        rhythm=rhythm,
        until_ms=_optional(properties, names.DELAY_UNTIL_MS, "milliseconds since the epoch"),
        runs=_optional(properties, names.DELAY_RUNS, "runs"),
        missed=missed,
        late_ms=late_ms,
    )


def check_alone(properties: Mapping[str, str], level: int) -> None:
    """Raise IllegalMessageError if a repeating message has another schedule, such as delay level `level` (0: none)."""
    others = [names.DELAY] * (level > 0) + [name for name in names.TIMER_PROPERTIES if name in properties]
    if others:
        repeats_by = " and ".join(sorted(names.REPEATING.intersection(properties)))
        raise IllegalMessageError(
            f"the message has {repeats_by} next to {' and '.join(others)}: send only one schedule"
        )


def first_run_ms(properties: Mapping[str, str], now_ms: int) -> int:
    """Return the time of the first run of a message that is sent now. IllegalMessageError if it never runs."""
    schedule = schedule_of(properties)
    first_ms = schedule.first_ms(now_ms)
    if first_ms is not None:
        return first_ms
    if schedule.rhythm.following(now_ms, now_ms) is None:
        raise never_runs(properties.get(names.DELAY_CRON, ""))
    raise IllegalMessageError(
        f"{names.DELAY_UNTIL_MS} is {schedule.until_ms}, which is before the first run: choose a later time, in ms"
        " since the epoch"
    )


def check_move(properties: Mapping[str, str], time_ms: int) -> None:
    """Raise IllegalMessageError if the next run of a repeating message is to be moved after its last permitted time."""
    until_ms = schedule_of(properties).until_ms
    if until_ms is not None and time_ms > until_ms:
        raise IllegalMessageError(
            f"the run would be moved to {time_ms} ms, after {names.DELAY_UNTIL_MS}={until_ms}: choose an earlier time"
        )


def check_no_schedule(properties: Mapping[str, str], beside: str) -> None:
    """Raise IllegalMessageError if a message has properties of a schedule next to another request."""
    if found := [name for name in names.SCHEDULE_PROPERTIES if name in properties]:
        raise IllegalMessageError(
            f"the message has {beside} next to {' and '.join(found)}: change the pending message, or send a schedule"
        )


def _missed(text: str) -> Missed:
    try:
        return Missed(text)
    except ValueError:
        raise IllegalMessageError(f"{names.DELAY_MISSED} is {text[:32]!r}: use {', '.join(Missed)}") from None


def _optional(properties: Mapping[str, str], name: str, unit: str) -> int | None:
    return _number(properties, name, 1, unit) if name in properties else None


def _number(properties: Mapping[str, str], name: str, least: int, unit: str) -> int:
    text = properties[name]
    if _NUMBER.match(text) is None or int(text) < least:
        raise IllegalMessageError(f"{name} is {text[:32]!r}: use a number of {unit}, at least {least}")
    return int(text)
