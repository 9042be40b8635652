"""When snapshots are made, and what stands in the files before: one at a time, in turns that hold nobody up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ConsumeQueues
from delaymq.store.disk.files import Files
from delaymq.store.index.key_index import KeyIndex
from delaymq.store.model import LiveObserver, StoreTask
from delaymq.store.snapshot.snapshot import SnapshotTask

WRITTEN_AT_ONCE: Final = 64
"""Queues written in one turn of the loop for a snapshot: some 20 ms if they are new. All of 80,000 would take seconds.
"""


class Snapshotter:
    """Those of one store. `end`: up to where the one that recovery has used reaches; 0: there was none."""

    def __init__(
        self,
        files: Files,
        store_path: str,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex | None,
        observers: Sequence[LiveObserver],
        end: int,
    ) -> None:
        self._files = files
        self._path = store_path
        self._log = log
        self._queues = queues
        self._index = index
        self.observers = observers
        """Whose states are kept."""
        self._end = end
        self.is_running = False
        """Whether one is captured and not finished: files that it syncs must stay."""
        self._gathering: tuple[SnapshotTask, int] | None = None
        """A captured snapshot whose queues are being written, and `written_count` when they are."""

    def task(self, interval_bytes: int, *, force: bool) -> StoreTask | None:
        """The next one; None when it is not time yet, or one is under way. To be asked for in every turn."""
        if self._gathering is not None:
            return self._gather(*self._gathering)
        if self.is_running or self._log.failure is not None:
            return None
        if not force and self._log.end_offset - self._end < interval_bytes:
            return None
        if force or self._queues.dirty_count <= WRITTEN_AT_ONCE:
            return self.full_task(write_slots=False)
        if self._index is not None:
            self._index.write_behind()
            if self._index.full:
                return None
        # What stands in the files beyond the captured ends does no harm: recovery cuts it off.
        self._gathering = self._capture(write_slots=False), self._queues.written_count + self._queues.dirty_count
        return None

    def full_task(self, *, write_slots: bool) -> StoreTask | None:
        """One of all there is, with all queues written in this turn; None when the disk is too full for them."""
        while self._queues.write_behind(1_000):
            pass
        if self._index is not None:
            self._index.write_behind()
        if self._queues.full or (self._index is not None and self._index.full):
            return None
        return _Task(self, self._capture(write_slots=write_slots))

    def abandon(self) -> None:
        """Ends one whose queues are being written."""
        if self._gathering is not None:
            self._gathering[0].abandon()
            self._gathering = None
            self.is_running = False

    def finished(self, end: int, failure: OSError | None) -> None:
        """A task came back."""
        self.is_running = False
        if failure is None:
            self._end = end

    def _gather(self, task: SnapshotTask, written_count: int) -> StoreTask | None:
        """Write on until the queues that were dirty when `task` was made, the first in the row, are in their files."""
        queues = self._queues
        queues.write_behind(WRITTEN_AT_ONCE)
        if queues.full or self._log.failure is not None:
            self.abandon()
            return None
        if queues.dirty_count and queues.written_count < written_count:
            return None
        self._gathering = None
        task.add_written()
        return _Task(self, task)

    def _capture(self, *, write_slots: bool) -> SnapshotTask:
        self.is_running = True
        return SnapshotTask(
            self._files,
            self._path,
            self._log,
            self._queues,
            self._index,
            {observer.name: observer.state() for observer in self.observers},
            write_slots=write_slots,
        )


class _Task:
    def __init__(self, snapshots: Snapshotter, task: SnapshotTask) -> None:
        self._snapshots = snapshots
        self._task = task

    def run(self) -> None:
        self._task.run()

    def finish(self) -> OSError | None:
        failure = self._task.finish()
        self._snapshots.finished(self._task.snapshot.log_end, failure)
        return failure
