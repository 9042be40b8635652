"""Which runs of a queue's records are believed (docs/decisions/0025-confirm-queue-offsets-in-recovery.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from delaymq.message.record import FIXED_BYTES
from delaymq.store.recovery.gaps import Stray
from delaymq.store.recovery.queue_runs import Key, Run, Survey

# So many records that follow each other confirm a number that is larger than the log before it allows.
_CONFIRMED: Final = 3
# As many records may be renumbered instead of believing that a topic was made anew.
_RESET_COST: Final = 3
# Runs that one may follow; more are passed over only in a log full of damage.
_MAX_PASSED_OVER: Final = 256


class Evidence(Protocol):
    """What besides the records' numbers tells where a record belongs."""

    def confirms(self, key: Key, number: int, at: int) -> bool | None:
        """Whether the record at `at` has this place; None: nothing tells."""

    def queue_of(self, at: int) -> Key | None:
        """The queue that the properties of the record at `at` name; None: they name none."""

    def places(self, runs: Sequence[tuple[Key, Run]]) -> list[list[int]]:
        """Physical offsets of the records of each run."""


class Start(NamedTuple):
    """Where the numbers of a queue begin in a walk."""

    number: int | None
    """The next number of what is known; None: any, since older log is gone."""
    exact: bool = True
    """False: what is known may be wrong itself."""


class _Worth(NamedTuple):
    """What speaks for a choice of runs; the larger one is chosen."""

    records: int
    """Records that keep their number."""
    missing: int
    """Numbers that are missing and that neither lost bytes nor records passed over explain, negative."""
    confirmed: int
    """Lone records that something else confirms."""

    def plus(self, records: int, missing: int = 0, confirmed: int = 0) -> _Worth:
        return _Worth(self.records + records, self.missing - missing, self.confirmed + confirmed)


_NOTHING: Final = _Worth(0, 0, 0)
_REFUSED: Final = _Worth(-1, 0, 0)


@dataclass(slots=True)
class QueueRuns:
    """A queue whose numbers do not follow each other."""

    key: Key
    start: Start
    runs: list[Run]
    kept: list[Run] = field(default_factory=list)
    dismissed: list[Run] = field(default_factory=list)
    resets: set[int] = field(default_factory=set)
    """Indices into `kept` at which the queue counts from 0 again."""
    strays: list[Stray] = field(default_factory=list)


class RunChoice:
    """Chooses the runs of each queue of one survey."""

    def __init__(self, survey: Survey, evidence: Evidence, max_gap: int) -> None:
        self._survey = survey
        self._evidence = evidence
        self._max_gap = max_gap

    def may_begin(self, key: Key, start: Start, run: Run) -> bool:
        if run.start < 0:
            return False
        if start.number is None:
            # Each earlier message of the queue took its bytes of the log.
            possible = run.start <= run.first_at // FIXED_BYTES
            return possible or len(run) >= _CONFIRMED or self.confirms(key, run) is True
        if run.start < start.number:
            return not start.exact and len(run) >= 2
        return self.may_jump(key, start.number, -1, run)

    def may_jump(self, key: Key, number: int, after: int, run: Run) -> bool:
        """Whether a queue that ended before `number`, at `after`, may go on with `run`, which leaves a gap."""
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
        """The runs that leave as few records as possible to be given another number."""
        runs = queue.runs
        # Of each run, if it is the last one kept: what is kept, the run before it (-1: none), whether it counts anew.
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
                    # Both claim one number: a record came from another queue.
                    options.append((worth.plus(-1), before, False))
                elif overlap <= 0 and self.may_jump(queue.key, earlier.end, earlier.last_at, run):
                    missing = self._missing(earlier.end, earlier.last_at, run, index - before - 1)
                    options.append((worth.plus(0, missing), before, False))
                if run.start == 0 and (cost := self._reset_cost(queue.key, run)) is not None:
                    options.append((worth.plus(-cost), before, True))
            # Of equal ones that which passes over the later run.
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
        """How many numbers a queue lacks between `number` and `run` that nothing in between explains."""
        lacking = run.start - number
        return max(lacking - self._survey.may_be_lost(after, run.first_at) - passed_over, 0) if lacking > 0 else 0

    def _reset_cost(self, key: Key, run: Run) -> int | None:
        """What it costs to believe that the topic was deleted and made anew; None: it is not believed."""
        if self.confirms(key, run) is True:
            return 0
        return _RESET_COST if len(run) >= 2 else None
