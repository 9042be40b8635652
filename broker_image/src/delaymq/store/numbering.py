"""Which number of which queue each record gets at a start (docs/decisions/0025-a-lone-number-moves-no-queue.md).

No checksum covers queue id and queue offset. A record whose number fits neither what stands before it nor what
follows it gets the number that its queue lacks at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, Protocol

from delaymq.message.record import FIXED_BYTES
from delaymq.store.gaps import MAX_LOOKS, Gap, Gaps, Stray, bits_between
from delaymq.store.survey import Key, Run, Survey

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

    def places(self, runs: Sequence[tuple[Key, Run]]) -> list[list[int]]:
        """Physical offsets of the records of each run."""


class Place(NamedTuple):
    """The decision on one record whose number is not believed."""

    at: int
    """Physical offset of the record."""
    said: Key
    said_number: int
    key: Key | None
    """Queue that it belongs to; None: it gets no entry."""
    number: int


class Start(NamedTuple):
    """Where the numbers of a queue begin in a walk."""

    number: int | None
    """The next number of what is known; None: any, since older log is gone."""
    exact: bool = True
    """False: what is known may be wrong itself."""


@dataclass(slots=True)
class _Queue:
    """A queue whose numbers do not follow each other."""

    key: Key
    start: Start
    kept: list[Run] = field(default_factory=list)
    dismissed: list[Run] = field(default_factory=list)
    resets: set[int] = field(default_factory=set)
    """Indices into `kept` at which the queue counts from 0 again."""
    strays: list[Stray] = field(default_factory=list)


class Numbering:
    """Decides for one survey."""

    def __init__(self, survey: Survey, start_of: Callable[[Key], Start], evidence: Evidence, max_gap: int) -> None:
        self._survey = survey
        self._start_of = start_of
        self._evidence = evidence
        self._max_gap = max_gap
        self._gaps = Gaps(self._end_of)
        self._places: list[Place] = []
        self._ends: dict[Key, tuple[int, int]] = {}

    def decide(self) -> list[Place]:
        """What becomes of each record whose number is not believed, in log order; none in an undamaged log."""
        survey = self._survey
        survey.call_odd([])
        queues = []
        for key in survey.queues:
            start = self._start_of(key)
            if survey.is_broken(key) or not self._may_begin(key, start, survey.runs(key)[0]):
                queues.append(_Queue(key, start))
        survey.call_odd([run.first_at for queue in queues for run in survey.runs(queue.key) if len(run) == 1])
        lone = self._lone_strays(queues)
        survey.call_odd([run.first_at for queue in lone for run in queue.dismissed])
        for queue in queues:
            self._choose(queue)
        queues += lone
        for queue in queues:
            self._note_gaps(queue)
        for queue in queues:
            self._part_overlaps(queue)
        self._gather_strays(queues)
        left = [stray for queue in queues for stray in self._fill_own_gaps(queue)]
        left = [stray for stray in left if not self._fill_gap_elsewhere(stray)]
        for stray in sorted(left, key=lambda each: each.at):
            self._append(stray)
        return sorted(self._places)

    def _lone_strays(self, queues: list[_Queue]) -> list[_Queue]:
        """Queues of one record whose number fits, while a queue with one other bit lacks just that number there.

        So does the first message of a queue when a bit of its topic is damaged. A queue that lost its record to other
        damage does not lack anything that is not explained.
        """
        gaps = [gap for queue in queues for gap in self._unexplained_gaps(queue)]
        known = {queue.key for queue in queues}
        lone = [key for key in self._survey.queues if gaps and key not in known and len(self._survey.runs(key)[0]) == 1]
        if len(gaps) * len(lone) > MAX_LOOKS:
            return []
        found = []
        for key in lone:
            run = self._survey.runs(key)[0]
            if self._confirms(key, run) is not True and any(
                gap.has(run.start, run.first_at) and bits_between(gap.key, key) == 1 for gap in gaps
            ):
                found.append(_Queue(key, self._start_of(key), dismissed=[run]))
        return found

    def _unexplained_gaps(self, queue: _Queue) -> Iterator[Gap]:
        low, after = queue.start.number, -1
        for run in self._survey.runs(queue.key):
            if low is not None and 0 < run.start - low > self._survey.may_be_missing(after, run.first_at):
                yield Gap(queue.key, low, run.start, after, run.first_at)
            low, after = run.end, run.last_at

    # -- which runs are believed ----------------------------------------------------------------------------------

    def _may_begin(self, key: Key, start: Start, run: Run) -> bool:
        if run.start < 0:
            return False
        if start.number is None:
            # Each earlier message of the queue took its bytes of the log.
            possible = run.start <= run.first_at // FIXED_BYTES
            return possible or len(run) >= _CONFIRMED or self._confirms(key, run) is True
        if run.start < start.number:
            return not start.exact and len(run) >= 2
        return self._may_jump(key, start.number, -1, run)

    def _may_jump(self, key: Key, number: int, after: int, run: Run) -> bool:
        """Whether a queue that ended before `number`, at `after`, may go on with `run`, which leaves a gap."""
        gap = run.start - number
        if gap == 0:
            return True
        if not 0 < gap <= self._max_gap:
            return False
        if len(run) >= 2 or self._confirms(key, run) is True:
            return True
        return self._survey.may_be_missing(after, run.first_at) >= gap

    def _confirms(self, key: Key, run: Run) -> bool | None:
        return self._evidence.confirms(key, run.start, run.first_at)

    def _choose(self, queue: _Queue) -> None:
        """The runs that leave as few records as possible to be given another number."""
        runs = self._survey.runs(queue.key)
        # Of each run: records kept if it is the last one kept, the run before it (-1: none), whether it counts anew.
        best: list[tuple[int, int, bool] | None] = []
        for index, run in enumerate(runs):
            options = []
            if self._may_begin(queue.key, queue.start, run):
                options.append((len(run), -1, False))
            for before in range(index - 1, max(index - 1 - _MAX_PASSED_OVER, -1), -1):
                chosen = best[before]
                if chosen is None:
                    continue
                overlap = runs[before].end - run.start
                if overlap == 1 and len(run) > 1 and len(runs[before]) > 1:
                    # Both claim one number: a record came from another queue.
                    options.append((chosen[0] + len(run) - 1, before, False))
                elif overlap <= 0 and self._may_jump(queue.key, runs[before].end, runs[before].last_at, run):
                    options.append((chosen[0] + len(run), before, False))
                if run.start == 0 and (cost := self._reset_cost(queue.key, run)) is not None:
                    options.append((chosen[0] + len(run) - cost, before, True))
            # Of equal ones that which passes over the later run: what it passed over has a gap to go to.
            best.append(max(options, key=lambda option: (option[0], -option[1])) if options else None)
        index = max(range(len(best)), key=lambda each: (best[each] or (-inf,))[0], default=-1)
        kept = []
        while index >= 0 and (step := best[index]) is not None:
            kept.append((runs[index], step[2]))
            index = step[1]
        kept.reverse()
        queue.kept = [Run(run.start, run.end, run.first_at, run.last_at) for run, _ in kept]
        queue.resets = {place for place, (_, anew) in enumerate(kept) if anew}
        chosen_runs = {id(run) for run, _ in kept}
        queue.dismissed = [run for run in runs if id(run) not in chosen_runs]

    def _reset_cost(self, key: Key, run: Run) -> int | None:
        """What it costs to believe that the topic was deleted and made anew; None: it is not believed."""
        if self._confirms(key, run) is True:
            return 0
        return _RESET_COST if len(run) >= 2 else None

    # -- where the others belong ----------------------------------------------------------------------------------

    def _note_gaps(self, queue: _Queue) -> None:
        low, after = queue.start.number, -1
        for index, run in enumerate(queue.kept):
            if index in queue.resets:
                low = 0
            if low is not None and low < run.start:
                self._gaps.add(Gap(queue.key, low, run.start, after, run.first_at))
            low, after = run.end, run.last_at
        last = queue.kept[-1] if queue.kept else None
        self._ends[queue.key] = (last.end, last.last_at) if last else (queue.start.number or 0, -1)

    def _part_overlaps(self, queue: _Queue) -> None:
        """Of two records with the same number one is from elsewhere; without evidence the later one."""
        for index in range(1, len(queue.kept)):
            before, run = queue.kept[index - 1], queue.kept[index]
            if before.end <= run.start or index in queue.resets:
                continue
            if self._is_from_elsewhere(queue.key, run.start, before.last_at, run.first_at):
                queue.strays.append(Stray(queue.key, run.start, before.last_at))
                before.end -= 1
            else:
                queue.strays.append(Stray(queue.key, run.start, run.first_at))
                run.start += 1

    def _is_from_elsewhere(self, key: Key, number: int, first_at: int, second_at: int) -> bool:
        """Whether of two records that claim a number the first one is the one that came from another queue."""
        first = self._evidence.confirms(key, number, first_at)
        second = self._evidence.confirms(key, number, second_at)
        if first is not second:
            return first is False or second is True
        return self._gaps.elsewhere(Stray(key, number, first_at)) is not None and (
            self._gaps.elsewhere(Stray(key, number, second_at)) is None
        )

    def _gather_strays(self, queues: list[_Queue]) -> None:
        """The records of the runs that are not kept, in log order."""
        longer = [(queue.key, run) for queue in queues for run in queue.dismissed if len(run) > 1]
        places = iter(self._evidence.places(longer) if longer else [])
        for queue in queues:
            for run in queue.dismissed:
                offsets = [run.first_at] if len(run) == 1 else next(places)
                queue.strays += [Stray(queue.key, run.start + index, at) for index, at in enumerate(offsets)]
            queue.strays.sort(key=lambda stray: stray.at)

    def _fill_own_gaps(self, queue: _Queue) -> list[Stray]:
        """Gives numbers that the queue lacks at the strays' places; those for which there is none are left."""
        begin = queue.kept[max(queue.resets)].first_at if queue.resets else -1
        for stray in queue.strays:
            if stray.at < begin:
                self._places.append(Place(stray.at, stray.key, stray.number, None, -1))  # of the deleted topic
        left = []
        for stray, number in self._gaps.fill(queue.key, [each for each in queue.strays if each.at > begin]):
            if number is not None:
                self._place(stray, queue.key, number)
            else:
                left.append(stray)
        if queue.start.number is not None or not queue.kept or queue.resets:
            return left
        # Older log is gone: before the first record that is believed, the numbers right below it.
        before = [stray for stray in left if stray.at < queue.kept[0].first_at]
        for below, stray in enumerate(reversed(before), 1):
            if (number := queue.kept[0].start - below) >= 0:
                self._place(stray, queue.key, number)
                left.remove(stray)
        return left

    def _fill_gap_elsewhere(self, stray: Stray) -> bool:
        gap = self._gaps.elsewhere(stray)
        if gap is None:
            return False
        self._place(stray, gap.key, stray.number)
        if gap.before == inf:
            self._ends[gap.key] = stray.number + 1, stray.at
        else:
            self._gaps.take(gap, stray)
        return True

    def _append(self, stray: Stray) -> None:
        """The next number of its queue, if no believed record follows there; else no entry."""
        number, last_at = self._end_of(stray.key) or (self._start_of(stray.key).number or 0, -1)
        if last_at < stray.at:
            self._place(stray, stray.key, number)
            self._ends[stray.key] = number + 1, stray.at
        else:
            self._places.append(Place(stray.at, stray.key, stray.number, None, -1))

    def _place(self, stray: Stray, key: Key, number: int) -> None:
        # One that would have been believed, had others not been damaged, keeps what it says.
        if (key, number) != (stray.key, stray.number):
            self._places.append(Place(stray.at, stray.key, stray.number, key, number))

    def _end_of(self, key: Key) -> tuple[int, int] | None:
        """Number of the queue's next record and physical offset of its last one, as far as believed."""
        if key in self._ends:
            return self._ends[key]
        run = self._survey.last_run(key)
        if run is not None:
            return run.end, run.last_at
        number = self._start_of(key).number
        return (number, -1) if number else None
