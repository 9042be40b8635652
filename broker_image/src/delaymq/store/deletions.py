"""Deletions of topics: the log keeps their records, but these no longer have queue entries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from delaymq.store.layout import DELETED_TOPICS

if TYPE_CHECKING:
    from delaymq.store.commit_log import CommitLog
    from delaymq.store.consume_queue import ConsumeQueues
    from delaymq.store.disk.config_files import ConfigFiles
    from delaymq.store.dispatch import Dispatcher
    from delaymq.store.snapshot.snapshotter import Snapshotter


class Deletions:
    """Deletions of topics of which the log still has records. OSError of all methods: the file cannot be written."""

    def __init__(
        self, files: ConfigFiles, log: CommitLog, queues: ConsumeQueues, dispatcher: Dispatcher, snapshots: Snapshotter
    ) -> None:
        self._files = files
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._snapshots = snapshots
        self.on_delete: Callable[[str], None] = lambda topic: None
        """Called with each topic that `delete` has deleted."""

    @property
    def offsets(self) -> Mapping[str, int]:
        """Topic → physical offset before which its records have no queue entries: the log's end at its deletion."""
        return self._dispatcher.deleted_topics

    def delete(self, topic: str) -> None:
        """Delete a topic's queues; a later topic with that name counts from 0, even after a recovery."""
        if any(name == topic for name, _ in self._queues.table):  # otherwise, recovery could not restore a queue
            self.follow({topic: self._log.end_offset})
            self.on_delete(topic)

    def follow(self, deleted: Mapping[str, int]) -> None:
        """Delete topics as another broker did when the log that this one receives ended at the given offsets.

        The log need not have reached them: the records that are missing will get no entries either.
        """
        if not deleted:
            return
        # Recovery would reject a snapshot that names deleted queues.
        self._snapshots.abandon()
        self._save({**self.offsets, **deleted})
        for topic in deleted:
            self._queues.remove_topic(topic)

    def forget(self) -> None:
        """Forget all deletions, because the log is empty."""
        if self.offsets:
            self._save({})

    def end(self) -> None:
        """Move deletions behind the log's end to it, because the log continues with records of this broker."""
        end = self._log.end_offset
        if any(offset > end for offset in self.offsets.values()):
            self._save({topic: min(offset, end) for topic, offset in self.offsets.items()})

    def save(self) -> None:
        """Save the deletions of topics of which the log still has records."""
        self._save(self.offsets)

    def _save(self, deleted: Mapping[str, int]) -> None:
        kept = {topic: end for topic, end in deleted.items() if end > self._log.min_offset}
        self._files.save(DELETED_TOPICS, json.dumps(kept).encode())
        self._dispatcher.deleted_topics = kept
