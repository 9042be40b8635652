"""Which number of which queue each record gets at a start (docs/decisions/0025-a-lone-number-moves-no-queue.md).

No checksum covers queue id and queue offset. A record whose number fits neither what stands before it nor what
follows it gets the number that its queue lacks at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, Protocol

from delaymq.message.record import FIXED_BYTES
from delaymq.store.survey import Key, Run, Survey

# So many records that follow each other confirm a number that no earlier record leads to.
_CONFIRMED: Final = 3
# Fewer records than this could have been renumbered instead of believing that a topic was made anew.
_RESET_COST: Final = 3
# Two runs may claim as many numbers both: records that came from another queue by a damaged queue id.
_MAX_OVERLAP: Final = 4
# Runs that one may follow; more are passed over only in a log full of damage.
_MAX_PASSED_OVER: Final = 256
# Damaged bits in queue id and topic together.
_MAX_BITS: Final = 8


class Evidence(Protocol):
    """What besides the records' numbers tells where a record belongs."""

    def confirms(self, key: Key, number: int, at: int) -> bool | None:
        """Whether the record at `at` has this place; None: nothing tells."""

    def records(self, key: Key, first_at: int, last_at: int) -> Iterable[int]:
        """Physical offsets of the records of a queue, both ends included."""


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
    """The next number of what is known; None: any, since older log is gone or the queue's files are believed."""
    exact: bool = True
    """False: what is known may be wrong itself."""


@dataclass(slots=True)
class _Gap:
    """Numbers that a queue lacks between two physical offsets."""

    key: Key
    low: int
    high: float
    after: int
    before: float


@dataclass(slots=True)
class _Stray:
    """A record whose number is not believed."""

    key: Key
    number: int
    at: int


@dataclass(slots=True)
class _Queue:
    """A queue whose numbers do not follow each other."""

    key: Key
    start: Start
    kept: list[Run] = field(default_factory=list)
    dismissed: list[Run] = field(default_factory=list)
    resets: set[int] = field(default_factory=set)
    """Indices into `kept` at which the queue counts from 0 again."""
    strays: list[_Stray] = field(default_factory=list)


class Numbering:
    """Decides for one survey."""

    def __init__(self, survey: Survey, start_of: Callable[[Key], Start], evidence: Evidence, max_gap: int) -> None:
        self._survey = survey
        self._start_of = start_of
        self._evidence = evidence
        self._max_gap = max_gap
        self._gaps: list[_Gap] = []
        self._places: list[Place] = []
        self._ends: dict[Key, tuple[int, int]] = {}

    def decide(self) -> list[Place]:
        """What becomes of each record whose number is not believed, in log order; none in an undamaged log."""
        survey = self._survey
        queues = []
        for key in survey.queues:
            start = self._start_of(key)
            if survey.is_broken(key) or not self._may_begin(key, start, survey.runs(key)[0]):
                queues.append(_Queue(key, start))
        for queue in queues:
            for run in survey.runs(queue.key):
                if len(run) == 1:
                    survey.odd(run.first_at)
        for queue in queues:
            self._choose(queue)
            self._note_gaps(queue)
            last = queue.kept[-1] if queue.kept else None
            self._ends[queue.key] = (last.end, last.last_at) if last else (queue.start.number or 0, -1)
        for queue in queues:
            self._part_overlaps(queue)
            for run in queue.dismissed:
                offsets = [run.first_at] if len(run) == 1 else self._records(queue.key, run)
                queue.strays += [_Stray(queue.key, run.start + index, at) for index, at in enumerate(offsets)]
            queue.strays.sort(key=lambda stray: stray.at)
        left = [stray for queue in queues for stray in self._fill_own_gaps(queue)]
        left = [stray for stray in left if not self._fill_gap_elsewhere(stray)]
        for stray in sorted(left, key=lambda each: each.at):
            self._append(stray)
        return sorted(self._places)

    # -- which runs are believed ----------------------------------------------------------------------------------

    def _may_begin(self, key: Key, start: Start, run: Run) -> bool:
        if start.number is not None and run.start != start.number:
            if run.start < start.number and (start.exact or len(run) < 2):
                return False
            return run.start < start.number or self._may_jump(key, start.number, -1, run)
        if start.number is not None:
            return True
        # Each earlier message of the queue took its bytes of the log.
        possible = run.start <= run.first_at // FIXED_BYTES
        return (possible or len(run) >= _CONFIRMED) and (run.start >= 0) or self._confirms(key, run) is True

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
                if 0 < overlap <= _MAX_OVERLAP and overlap < min(len(run), len(runs[before])):
                    options.append((chosen[0] + len(run) - overlap, before, False))
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

    def _records(self, key: Key, run: Run) -> list[int]:
        return list(self._evidence.records(key, run.first_at, run.last_at))

    # -- where the others belong ----------------------------------------------------------------------------------

    def _note_gaps(self, queue: _Queue) -> None:
        low, after = queue.start.number, -1
        for index, run in enumerate(queue.kept):
            if index in queue.resets:
                low = 0
            if low is not None and low < run.start:
                self._gaps.append(_Gap(queue.key, low, run.start, after, run.first_at))
            low, after = run.end, run.last_at

    def _part_overlaps(self, queue: _Queue) -> None:
        """Of records with the same number one is from elsewhere; without evidence the later one."""
        for index in range(1, len(queue.kept)):
            before, run = queue.kept[index - 1], queue.kept[index]
            overlap = before.end - run.start
            if overlap <= 0 or index in queue.resets:
                continue
            if overlap == 1 and len(before) > 1 and len(run) > 1:
                tail = [before.last_at]
                head = [run.first_at]
            else:
                tail = self._records(queue.key, before)[-overlap:]
                head = self._records(queue.key, run)[:overlap]
            tail_is_odd = self._is_from_elsewhere(queue.key, run.start, tail[0], head[0])
            odd, numbers = (tail if tail_is_odd else head), range(run.start, run.start + overlap)
            queue.strays += [_Stray(queue.key, number, at) for number, at in zip(numbers, odd, strict=True)]
            if tail_is_odd:
                before.end -= overlap
            else:
                run.start += overlap

    def _is_from_elsewhere(self, key: Key, number: int, first_at: int, second_at: int) -> bool:
        """Whether of two records that claim a number the first one is the one that came from another queue."""
        first = self._evidence.confirms(key, number, first_at)
        second = self._evidence.confirms(key, number, second_at)
        if first is not second:
            return first is False or second is True
        return self._gap_elsewhere(_Stray(key, number, first_at)) is not None and (
            self._gap_elsewhere(_Stray(key, number, second_at)) is None
        )

    def _fill_own_gaps(self, queue: _Queue) -> list[_Stray]:
        """Gives numbers that the queue lacks at the strays' places; those for which there is none are left."""
        left = []
        strays = queue.strays
        for stray in strays:
            if queue.resets and stray.at < queue.kept[max(queue.resets)].first_at:
                self._places.append(Place(stray.at, stray.key, stray.number, None, -1))  # of the deleted topic
                continue
            gap = next(
                (g for g in self._gaps if g.key == queue.key and g.after < stray.at < g.before and g.low < g.high), None
            )
            if gap is not None:
                self._place(stray, gap.key, gap.low)
                gap.low += 1
            elif self._first_place(queue, stray):
                continue
            else:
                left.append(stray)
        return left

    def _first_place(self, queue: _Queue, stray: _Stray) -> bool:
        """Before the first record that is believed, where older log is gone: the numbers right below."""
        if queue.start.number is not None or not queue.kept or stray.at > queue.kept[0].first_at:
            return False
        behind = sum(stray.at < other.at < queue.kept[0].first_at for other in queue.strays)
        number = queue.kept[0].start - 1 - behind
        if number < 0:
            return False
        self._place(stray, queue.key, number)
        return True

    def _gap_elsewhere(self, stray: _Stray) -> _Gap | None:
        """The gap of another queue that has the stray's number at its place, by the fewest damaged bits."""
        found, fewest = None, _MAX_BITS + 1
        for gap in self._gaps:
            if gap.key != stray.key and gap.low <= stray.number < gap.high and gap.after < stray.at < gap.before:
                bits = _bits_between(gap.key, stray.key)
                if bits < fewest:
                    found, fewest = gap, bits
        if found is not None:
            return found
        # The newest record of a queue leaves no gap in it.
        for bit in range(31):
            key = stray.key[0], stray.key[1] ^ (1 << bit)
            end = self._end_of(key)
            if end is not None and end[0] == stray.number and end[1] < stray.at:
                return _Gap(key, end[0], end[0] + 1, end[1], inf)
        return None

    def _fill_gap_elsewhere(self, stray: _Stray) -> bool:
        gap = self._gap_elsewhere(stray)
        if gap is None:
            return False
        self._place(stray, gap.key, stray.number)
        if gap.before == inf:
            self._ends[gap.key] = stray.number + 1, stray.at
        else:
            self._gaps.append(_Gap(gap.key, stray.number + 1, gap.high, stray.at, gap.before))
            gap.high = stray.number
        return True

    def _append(self, stray: _Stray) -> None:
        """The next number of its queue, if no believed record follows there; else no entry."""
        number, last_at = self._end_of(stray.key) or (self._start_of(stray.key).number or 0, -1)
        if last_at < stray.at:
            self._place(stray, stray.key, number)
            self._ends[stray.key] = number + 1, stray.at
        else:
            self._places.append(Place(stray.at, stray.key, stray.number, None, -1))

    def _place(self, stray: _Stray, key: Key, number: int) -> None:
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


def _bits_between(one: Key, other: Key) -> int:
    """How many bits of queue id and topic differ; more than _MAX_BITS when no damage leads from one to the other."""
    if len(one[0]) != len(other[0]):
        return _MAX_BITS + 1
    topics = int.from_bytes(one[0], "big") ^ int.from_bytes(other[0], "big")
    return topics.bit_count() + ((one[1] ^ other[1]) & 0xFFFFFFFF).bit_count()
