"""Schedule of snapshots: one at a time, with queue files written in short steps beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ConsumeQueues
from delaymq.store.disk.files import Files
from delaymq.store.index.key_index import KeyIndex
from delaymq.store.model import KeepsFiles, LiveObserver, StoreTask
from delaymq.store.snapshot.snapshot import SnapshotTask

WRITTEN_AT_ONCE: Final = 64
"""Number of queues written per step on the event loop: about 20 ms for new ones. All of 80,000 would take seconds."""
WITHOUT_REPLICAS: Final = 1 << 62
"""In place of the offset up to which replicas have the log, if there are none."""


class Snapshotter:
    """Snapshots of one store. `end`: log end of the snapshot that recovery used; 0 without one."""

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
        """Observers whose states are saved."""
        self._end = end
        self.is_running = False
        """Whether a snapshot is captured and not finished; the files that it syncs must not be removed."""
        self.replicated = WITHOUT_REPLICAS
        """Physical offset up to which all required replicas have the log. A snapshot of more is not written: the log
        could be cut before its end."""
        self._gathering: tuple[SnapshotTask, int] | None = None
        """A captured snapshot whose queues are being written, and the `written_count` at which they are complete."""

    def task(self, interval_bytes: int, *, force: bool) -> StoreTask | None:
        """Return the next snapshot task; None if none is due or one is running. To be called in each loop iteration."""
        if self._gathering is not None:
            return self._gather(*self._gathering)
        if self.is_running or self._log.failure is not None:
            return None
        if not force and self._log.end_offset - self._end < interval_bytes:
            return None
        is_replicated = self._log.end_offset <= self.replicated
        if is_replicated and (force or self._queues.dirty_count <= WRITTEN_AT_ONCE):
            return self.full_task(write_slots=False)
        if self._index is not None:
            self._index.write_behind()
            if self._index.full:
                return None
        # Entries beyond the captured ends do no harm: recovery removes them.
        self._gathering = (
            self._capture(write_slots=False, is_gathered=True),
            self._queues.written_count + self._queues.dirty_count,
        )
        return None

    def full_task(self, *, write_slots: bool) -> StoreTask | None:
        """Write all queues now and return a task for a complete snapshot; None if the disk is too full for them.

        If replicas lack a part of the log, the task syncs all files, but the former snapshot remains.
        """
        while self._queues.write_behind(1_000):
            pass
        if self._index is not None:
            self._index.write_behind()
        if self._queues.full or (self._index is not None and self._index.full):
            return None
        return _Task(self, self._capture(write_slots=write_slots))

    def abandon(self) -> None:
        """Cancel a snapshot whose queues are being written."""
        if self._gathering is not None:
            self._gathering[0].abandon()
            self._gathering = None
            self.is_running = False

    def finished(self, end: int, failure: OSError | None) -> None:
        """Handle the end of a task."""
        self.is_running = False
        if failure is None:
            self._end = end

    def _gather(self, task: SnapshotTask, written_count: int) -> StoreTask | None:
        """Write until the queues that were dirty at the creation of `task`, the first ones, are in their files.

        Then wait until replicas have the log up to its end.
        """
        queues = self._queues
        queues.write_behind(WRITTEN_AT_ONCE)
        if queues.full or self._log.failure is not None:
            self.abandon()
            return None
        if queues.dirty_count and queues.written_count < written_count:
            return None
        if self.replicated < task.snapshot.log_end:
            return None
        self._gathering = None
        task.add_written()
        return _Task(self, task)

    def _capture(self, *, write_slots: bool, is_gathered: bool = False) -> SnapshotTask:
        self.is_running = True
        return SnapshotTask(
            self._files,
            self._path,
            self._log,
            self._queues,
            self._index,
            {observer.name: observer.state() for observer in self.observers},
            [
                files
                for observer in self.observers
                if isinstance(observer, KeepsFiles) and (files := observer.state_files()) is not None
            ],
            write_slots=write_slots,
            publish=is_gathered or self._log.end_offset <= self.replicated,
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
