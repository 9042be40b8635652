"""Assignment of queue and offset to each record at a start (docs/decisions/0025-confirm-queue-offsets-in-recovery.md).

No checksum covers queue id and queue offset. A record whose queue offset fits neither the preceding nor the following
records gets the one that its queue lacks at that position. In this package, `number` is short for queue offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from delaymq.message.names import MARKS_TOPIC, SCHEDULE_DLQ_TOPIC, TIMER_TOPIC
from delaymq.store.recovery.gaps import MAX_LOOKUPS, Gap, Gaps, Stray, bits_between
from delaymq.store.recovery.queue_runs import Key, Run, Survey
from delaymq.store.recovery.run_selection import Evidence, QueueRuns, RunChoice, Start

_QUEUES_OF_STATEMENTS: tuple[Key, ...] = tuple(
    (topic.encode(), 0) for topic in (TIMER_TOPIC, SCHEDULE_DLQ_TOPIC, MARKS_TOPIC)
)
"""Queues that only records with a due time or mark belong to."""


class Place(NamedTuple):
    """Decision on one record whose queue offset is not trusted."""

    at: int
    """Physical offset of the record."""
    said: Key
    said_number: int
    key: Key | None
    """Queue of the record; None: it gets no entry."""
    number: int


class Numbering:
    """Decides on the records of one survey."""

    def __init__(self, survey: Survey, start_of: Callable[[Key], Start], evidence: Evidence, max_gap: int) -> None:
        self._survey = survey
        self._start_of = start_of
        self._evidence = evidence
        self._choice = RunChoice(survey, evidence, max_gap)
        self._gaps = Gaps(self._end_of)
        self._places: list[Place] = []
        self._ends: dict[Key, tuple[int, int]] = {}

    def decide(self) -> list[Place]:
        """Return the decisions on all records whose offsets are not trusted, in log order; empty without damage."""
        survey = self._survey
        survey.call_odd([])
        queues = []
        for key in survey.queues:
            start = self._start_of(key)
            runs = survey.runs(key)
            lacks_first = start.number is not None and start.number < runs[0].start
            if survey.is_broken(key) or lacks_first or not self._choice.may_begin(key, start, runs[0]):
                queues.append(QueueRuns(key, start, [part for run in runs for part in self._parts(key, start, run)]))
        survey.call_odd([run.first_at for queue in queues for run in queue.runs if len(run) == 1])
        lone, undecided = self._strays_of_sound_queues(queues)
        survey.call_odd([*undecided, *(run.first_at for queue in lone for run in queue.dismissed)])
        for queue in queues:
            self._choice.choose(queue)
        queues += lone
        for queue in queues:
            self._note_gaps(queue)
        for queue in queues:
            self._part_overlaps(queue)
            self._contest(queue)
        self._gather_strays(queues)
        left = [stray for queue in queues for stray in self._fill_own_gaps(queue)]
        left = [stray for stray in left if not self._fill_gap_elsewhere(stray)]
        for stray in self._strays_with_statements({queue.key for queue in queues}):
            self._fill_gap_elsewhere(stray)
        for stray in sorted(left, key=lambda each: each.at):
            self._append(stray)
        return sorted(self._places)

    def _parts(self, key: Key, start: Start, run: Run) -> list[Run]:
        """Split off a stray with the offset before the queue's next one; the rest of such a run is correct."""
        if not start.exact or start.number != run.start + 1 or len(run) == 1:
            return [run]
        second_at = self._evidence.places([(key, run)])[0][1]
        return [
            Run(run.start, run.start + 1, run.first_at, run.first_at),
            Run(run.start + 1, run.end, second_at, run.last_at),
        ]

    def _strays_of_sound_queues(self, queues: list[QueueRuns]) -> tuple[list[QueueRuns], list[int]]:
        """Find queues of a single record whose offset is missing there from a queue whose key differs in one bit.

        The first message of a queue looks like this if a bit of its topic is damaged. If the other queue lost its
        record to different damage, its gap is already explained. If there are several such records, any may be the
        damaged one.
        The second list contains physical offsets of records that may explain why a queue lacks one number before a lone
        record. Either record may be damaged, so both keep their numbers unless properties name the queue.
        """
        gaps = [each for queue in queues for each in self._unexplained_gaps(queue)]
        known = {queue.key for queue in queues}
        if len(gaps) * len(self._survey.queues) > MAX_LOOKUPS:
            return [], []
        fitting: dict[int, list[tuple[Key, Run]]] = {}
        undecided = []
        for key in self._survey.queues if gaps else ():
            runs = self._survey.runs(key)
            is_lone = len(runs) == 1 and len(runs[0]) == 1 and key not in known
            for index, (gap, following) in enumerate(gaps):
                if bits_between(gap.key, key) != 1:
                    continue
                fits = (
                    is_lone
                    and gap.has(runs[0].start, runs[0].first_at)
                    and self._choice.confirms(key, runs[0]) is not True
                )
                if fits and (len(following) > 1 or self._evidence.queue_of(runs[0].first_at) == gap.key):
                    fitting.setdefault(index, []).append((key, runs[0]))
                elif len(following) == 1:
                    edges = [edge for run in runs for edge in ((run.start, run.first_at), (run.end - 1, run.last_at))]
                    undecided += [at for number, at in edges if gap.high - gap.low == 1 and gap.has(number, at)]
        found: dict[Key, QueueRuns] = {}
        for index, lone in fitting.items():
            # If there are several, prefer one whose properties name the queue.
            named = {key: self._evidence.queue_of(run.first_at) for key, run in lone}
            sure = [each for each in lone if named[each[0]] == gaps[index][0].key]
            free = [each for each in lone if named[each[0]] is None]
            for key, run in sure or (free if len(free) == 1 else []):
                found[key] = QueueRuns(key, self._start_of(key), [run], dismissed=[run])
        return list(found.values()), undecided

    def _strays_with_statements(self, known: set[Key]) -> list[Stray]:
        """Find queues of a single record that, by its due time or mark, belongs to a known queue with a similar key.

        If the damaged record is the newest one of that queue, no gap shows that it is missing there.
        """
        strays = []
        for key in self._survey.queues:
            near = next((each for each in _QUEUES_OF_STATEMENTS if bits_between(key, each) == 1), None)
            if near is None or key in known:
                continue
            runs = self._survey.runs(key)
            if sum(map(len, runs)) == 1 and self._evidence.queue_of(runs[0].first_at) == near:
                strays.append(Stray(key, runs[0].start, runs[0].first_at))
        return sorted(strays, key=lambda stray: stray.at)

    def _unexplained_gaps(self, queue: QueueRuns) -> Iterator[tuple[Gap, Run]]:
        """Yield unexplained gaps of a queue, each with the run that follows."""
        low, after = queue.start.number, -1
        for run in queue.runs:
            if low is not None and 0 < run.start - low > self._survey.may_be_missing(after, run.first_at):
                yield Gap(queue.key, low, run.start, after, run.first_at), run
            low, after = run.end, run.last_at

    # -- places of the other records ------------------------------------------------------------------------------

    def _note_gaps(self, queue: QueueRuns) -> None:
        low, after = queue.start.number, -1
        for index, run in enumerate(queue.kept):
            if index in queue.resets:
                low = 0
            if low is not None and low < run.start:
                self._gaps.add(Gap(queue.key, low, run.start, after, run.first_at))
            low, after = run.end, run.last_at
        last = queue.kept[-1] if queue.kept else None
        self._ends[queue.key] = (last.end, last.last_at) if last else (queue.start.number or 0, -1)

    def _part_overlaps(self, queue: QueueRuns) -> None:
        """Separate records with the same offset: one is from another queue; without evidence, the later one."""
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

    def _contest(self, queue: QueueRuns) -> None:
        """Replace a stray at the start or end of a run by a dismissed record of this queue with the same offset."""
        for run in queue.dismissed:
            if len(run) > 1 or self._gaps.lacks(queue.key, run.first_at):
                continue
            index = bisect_right(queue.kept, run.first_at, key=lambda kept: kept.first_at)
            before = queue.kept[index - 1] if index else None
            behind = queue.kept[index] if index < len(queue.kept) else None
            if before and before.last_at < run.first_at and before.end == run.end:
                if self._is_from_elsewhere(queue.key, run.start, before.last_at, run.first_at):
                    _swap(run, before, before.last_at)
            elif (
                behind
                and behind.start == run.start
                and self._is_from_elsewhere(queue.key, run.start, behind.first_at, run.first_at)
            ):
                _swap(run, behind, behind.first_at)

    def _is_from_elsewhere(self, key: Key, number: int, one_at: int, other_at: int) -> bool:
        """Return whether, of two records that claim an offset, the first one is from another queue."""
        one = self._evidence.confirms(key, number, one_at)
        other = self._evidence.confirms(key, number, other_at)
        if one is not other:
            return one is False or other is True
        return self._fit_elsewhere(Stray(key, number, one_at)) > self._fit_elsewhere(Stray(key, number, other_at))

    def _elsewhere(self, stray: Stray) -> Gap | None:
        return self._gaps.elsewhere(stray, self._evidence.queue_of(stray.at))

    def _fit_elsewhere(self, stray: Stray) -> int:
        """Return how well a record fits another queue: 2: into a gap, 1: as its newest record, 0: not at all."""
        gap = self._elsewhere(stray)
        return 0 if gap is None else 1 if gap.before == inf else 2

    def _gather_strays(self, queues: list[QueueRuns]) -> None:
        """Collect the records of the dismissed runs, in log order."""
        longer = [(queue.key, run) for queue in queues for run in queue.dismissed if len(run) > 1]
        places = iter(self._evidence.places(longer) if longer else [])
        for queue in queues:
            for run in queue.dismissed:
                offsets = [run.first_at] if len(run) == 1 else next(places)
                queue.strays += [Stray(queue.key, run.start + index, at) for index, at in enumerate(offsets)]
            queue.strays.sort(key=lambda stray: stray.at)

    def _fill_own_gaps(self, queue: QueueRuns) -> list[Stray]:
        """Assign offsets missing at the strays' positions; return the strays without such an offset."""
        begin = queue.kept[max(queue.resets)].first_at if queue.resets else -1
        for stray in queue.strays:
            if stray.at < begin:
                self._places.append(Place(stray.at, stray.key, stray.number, None, -1))  # a record of the deleted topic
        left = []
        for stray, number in self._gaps.fill(queue.key, [each for each in queue.strays if each.at > begin]):
            if number is not None:
                self._place(stray, queue.key, number)
            else:
                left.append(stray)
        if queue.start.number is not None or not queue.kept or queue.resets:
            return left
        # Older log is deleted: the first strays get the offsets directly before the first trusted record.
        before = [stray for stray in left if stray.at < queue.kept[0].first_at]
        for below, stray in enumerate(reversed(before), 1):
            if (number := queue.kept[0].start - below) >= 0:
                self._place(stray, queue.key, number)
                left.remove(stray)
        return left

    def _fill_gap_elsewhere(self, stray: Stray) -> bool:
        gap = self._elsewhere(stray)
        if gap is None:
            return False
        self._place(stray, gap.key, stray.number)
        if gap.before == inf:
            self._ends[gap.key] = stray.number + 1, stray.at
        else:
            self._gaps.take(gap, stray)
        return True

    def _append(self, stray: Stray) -> None:
        """Assign the next offset of the queue if no trusted record follows; otherwise the record gets no entry."""
        number, last_at = self._end_of(stray.key) or (self._start_of(stray.key).number or 0, -1)
        if last_at < stray.at:
            self._place(stray, stray.key, number)
            self._ends[stray.key] = number + 1, stray.at
        else:
            self._places.append(Place(stray.at, stray.key, stray.number, None, -1))

    def _place(self, stray: Stray, key: Key, number: int) -> None:
        # A record that is distrusted only because others are damaged keeps its offset.
        if (key, number) != (stray.key, stray.number):
            self._places.append(Place(stray.at, stray.key, stray.number, key, number))

    def _end_of(self, key: Key) -> tuple[int, int] | None:
        """Return queue offset of the queue's next record and physical offset of its last one, from trusted records."""
        if key in self._ends:
            return self._ends[key]
        run = self._survey.last_run(key)
        if run is not None:
            return run.end, run.last_at
        number = self._start_of(key).number
        return (number, -1) if number else None


def _swap(lone: Run, run: Run, at: int) -> None:
    """Exchange the record of `lone` with the one at `at`, the first or last record of `run`."""
    run.first_at, run.last_at = (lone.first_at if each == at else each for each in (run.first_at, run.last_at))
    lone.first_at = lone.last_at = at
