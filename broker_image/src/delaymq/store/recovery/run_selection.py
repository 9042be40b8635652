"""Selection of trusted runs of a queue's records (docs/decisions/0025-confirm-queue-offsets-in-recovery.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from delaymq.message.record import FIXED_BYTES
from delaymq.store.recovery.gaps import Stray
from delaymq.store.recovery.queue_runs import Key, Run, Survey

_CONFIRMED: Final = 3
"""Number of consecutive records that confirm a queue offset larger than the preceding log allows."""
_RESET_COST: Final = 3
"""Number of records that may be renumbered rather than assuming that a topic was recreated."""
_MAX_PASSED_OVER: Final = 256
"""Limit of preceding runs to examine; only a severely damaged log exceeds it."""


class Evidence(Protocol):
    """Evidence, other than the queue offsets of records, of the queue that a record belongs to."""

    def confirms(self, key: Key, number: int, at: int) -> bool | None:
        """Return whether the record at `at` has this queue offset; None if unknown."""

    def queue_of(self, at: int) -> Key | None:
        """Return the queue named in the properties of the record at `at`; None if there is none."""

    def places(self, runs: Sequence[tuple[Key, Run]]) -> list[list[int]]:
        """Return the physical offsets of the records of each run."""


class Start(NamedTuple):
    """Start of a queue's offsets in a walk."""

    number: int | None
    """Next known queue offset; None: any, because older log is deleted."""
    exact: bool = True
    """False: the known offset may be wrong."""


class _Worth(NamedTuple):
    """Score of a selection of runs; the highest wins."""

    records: int
    """Number of records that keep their queue offset."""
    missing: int
    """Negative count of missing queue offsets that neither lost bytes nor dismissed records explain."""
    confirmed: int
    """Number of lone records with other evidence."""

    def plus(self, records: int, missing: int = 0, confirmed: int = 0) -> _Worth:
        return _Worth(self.records + records, self.missing - missing, self.confirmed + confirmed)


_NOTHING: Final = _Worth(0, 0, 0)
_REFUSED: Final = _Worth(-1, 0, 0)


@dataclass(slots=True)
class QueueRuns:
    """A queue whose offsets are not consecutive."""

    key: Key
    start: Start
    runs: list[Run]
    kept: list[Run] = field(default_factory=list)
    dismissed: list[Run] = field(default_factory=list)
    resets: set[int] = field(default_factory=set)
    """Indices into `kept` at which the queue restarts from 0."""
    strays: list[Stray] = field(default_factory=list)


class RunChoice:
    """Selects the runs of each queue of one survey."""

    def __init__(self, survey: Survey, evidence: Evidence, max_gap: int) -> None:
        self._survey = survey
        self._evidence = evidence
        self._max_gap = max_gap

    def may_begin(self, key: Key, start: Start, run: Run) -> bool:
        if run.start < 0:
            return False
        if start.number is None:
            # Each earlier message of the queue occupied log space.
            possible = run.start <= run.first_at // FIXED_BYTES
            return possible or len(run) >= _CONFIRMED or self.confirms(key, run) is True
        if run.start < start.number:
            return not start.exact and len(run) >= 2
        return self.may_jump(key, start.number, -1, run)

    def may_jump(self, key: Key, number: int, after: int, run: Run) -> bool:
        """Return whether a queue that ended before `number`, at `after`, may continue with `run` after a gap."""
        gap = run.start - number
        if gap == 0:
            return True
        if not 0 < gap <= self._max_gap:
            return False
        if len(run) >= 2 or self.confirms(key, run) is True:
            return True
        return self._survey.may_be_missing(after, run.first_at) >= gap

    def confirms(self, key: Key, run: Run) -> bool | None:
        return self._evidence.confirms(key, run.start, run.first_at)

    def choose(self, queue: QueueRuns) -> None:
        """Select the runs that require the fewest records to be renumbered."""
        runs = queue.runs
        # For each run as the last one: best score, previous run (-1: none), and whether the queue restarts from 0.
        best: list[tuple[_Worth, int, bool] | None] = []
        for index, run in enumerate(runs):
            confirmed = self.confirms(queue.key, run) if len(run) == 1 else None
            if confirmed is False:
                best.append(None)
                continue
            own = _NOTHING.plus(len(run), 0, confirmed is True)
            options = []
            if self.may_begin(queue.key, queue.start, run):
                low = run.start if queue.start.number is None else queue.start.number
                options.append((own.plus(0, self._missing(low, -1, run, index)), -1, False))
            for before in range(index - 1, max(index - 1 - _MAX_PASSED_OVER, -1), -1):
                chosen = best[before]
                if chosen is None:
                    continue
                worth, earlier = chosen[0].plus(*own), runs[before]
                overlap = earlier.end - run.start
                if overlap == 1 and len(run) > 1 and len(earlier) > 1:
                    # Both claim one offset: one record is from another queue.
                    options.append((worth.plus(-1), before, False))
                elif overlap <= 0 and self.may_jump(queue.key, earlier.end, earlier.last_at, run):
                    missing = self._missing(earlier.end, earlier.last_at, run, index - before - 1)
                    options.append((worth.plus(0, missing), before, False))
                if run.start == 0 and (cost := self._reset_cost(queue.key, run)) is not None:
                    options.append((worth.plus(-cost), before, True))
            # If scores are equal, dismiss the later run.
            best.append(max(options, key=lambda option: (option[0], -option[1])) if options else None)
        last = max(range(len(best)), key=lambda each: (best[each] or (_REFUSED,))[0], default=-1)
        kept = []
        while last >= 0 and (step := best[last]) is not None:
            kept.append((runs[last], step[2]))
            last = step[1]
        kept.reverse()
        queue.kept = [Run(run.start, run.end, run.first_at, run.last_at) for run, _ in kept]
        queue.resets = {place for place, (_, anew) in enumerate(kept) if anew}
        chosen_runs = {id(run) for run, _ in kept}
        queue.dismissed = [run for run in runs if id(run) not in chosen_runs]

    def _missing(self, number: int, after: int, run: Run, passed_over: int) -> int:
        """Return the number of missing queue offsets between `number` and `run` that nothing in between explains."""
        lacking = run.start - number
        return max(lacking - self._survey.may_be_lost(after, run.first_at) - passed_over, 0) if lacking > 0 else 0

    def _reset_cost(self, key: Key, run: Run) -> int | None:
        """Return the score penalty for assuming that the topic was deleted and recreated; None: not assumed."""
        if self.confirms(key, run) is True:
            return 0
        return _RESET_COST if len(run) >= 2 else None
