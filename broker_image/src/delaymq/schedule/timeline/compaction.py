"""Choice of the runs that are merged, and the merges in progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from delaymq.schedule.timeline.files import RunFiles
from delaymq.schedule.timeline.merging import Merge, Range
from delaymq.schedule.timeline.runs import Identities, Run, RunWriter, Sizes


class Compacted(Protocol):
    """The parts of the index that its compaction needs."""

    files: RunFiles
    runs: list[Run]
    sizes: Sizes

    def freeze(self) -> None: ...
    def positions(self, runs: Sequence[Run]) -> list[list[tuple[int, int, int]]]: ...
    def replace(self, inputs: Sequence[Run], run: Run) -> None: ...
    def drop_consumed(self) -> None: ...
    def discard(self, name: str) -> None: ...
    def next_name(self, suffix: str) -> str: ...


class Compaction:
    """Merges the newest runs whenever there are enough of similar size."""

    def __init__(self, timeline: Compacted) -> None:
        self._timeline = timeline
        self._merges: list[Merge] = []
        self.is_planned = True
        """Whether the runs have not changed since the last decision about merges."""
        self.merged_entries = 0
        """Number of entries that merges have read since the start."""

    @property
    def entries(self) -> int:
        """Number of entries in runs that are being merged."""
        return sum(run.left for merge in self._merges for run in merge.inputs)

    def step(self) -> bool:
        """Merge some entries; return whether there is more to merge. OSError, TimelineDamagedError."""
        if not self.is_planned:
            if not self._merges:
                self._timeline.drop_consumed()
            self._plan()
            self.is_planned = True
        if not self._merges:
            return False
        merge = self._merges[-1]
        try:
            merged = merge.step(self._timeline.sizes.step)
            if not merged:
                self._finish(merge)
        except OSError:
            self._merges.remove(merge)
            self.is_planned = False
            self._remove(merge.writer.name)
            raise
        self.merged_entries += merged
        return True

    def _remove(self, name: str) -> None:
        """Remove an incomplete file immediately: the disk may be full, and no snapshot be possible before."""
        try:
            if name:
                self._timeline.files.remove(name)
        except OSError:
            self._timeline.discard(name)

    def abandon(self) -> None:
        """Abandon the merges in progress, whose results would contain entries that have been taken meanwhile."""
        for merge in self._merges:
            self._timeline.discard(merge.writer.name)
        self._merges.clear()
        self.is_planned = False

    def _plan(self) -> None:
        merging = self._merges[-1].inputs[-1].age if self._merges else 0
        candidates = [run for run in self._timeline.runs if run.age > merging]
        sizes = self._timeline.sizes
        first, smaller, bound = len(candidates), 0, sizes.memory
        while first:
            similar = first
            while first and candidates[first - 1].left <= bound:
                first -= 1
            if sum(run.left > smaller for run in candidates[first:similar]) >= sizes.merged_runs:
                self._begin(candidates[first:])
                return
            bound, smaller = bound * sizes.merged_runs, bound

    def _begin(self, inputs: list[Run]) -> None:
        timeline = self._timeline
        ranges: dict[int, list[Range]] = {}
        for run, positions in zip(inputs, timeline.positions(inputs), strict=True):
            for partition, first, end in positions:
                ranges.setdefault(partition, []).append(Range(run, first, end))
        writer, entries = RunWriter(), sum(run.left for run in inputs)
        includes_oldest = inputs[0] is timeline.runs[0]
        if entries > timeline.sizes.run_in_memory:
            name, is_plain = timeline.next_name("run"), includes_oldest or all(run.is_plain for run in inputs)
            writer = RunWriter(name, timeline.files.create(name), None if is_plain else Identities(entries))
        self._merges.append(Merge(inputs, ranges, writer, includes_oldest=includes_oldest))

    def _finish(self, merge: Merge) -> None:
        run = merge.run
        assert run is not None
        run.age = merge.inputs[-1].age
        self._timeline.replace(merge.inputs, run)
        self._merges.remove(merge)
        self.is_planned = False
