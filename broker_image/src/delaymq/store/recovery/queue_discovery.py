"""Queue files found at a start: accepted as left by a snapshot or a clean stop, or measured for a rebuild."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.store.commit_log import CommitLog
from delaymq.store.consume_queue import ENTRY_BYTES, MAX_EXT_ADDRESS, ConsumeQueue, ConsumeQueues
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files
from delaymq.store.model import Correction
from delaymq.store.recovery.queue_runs import Key

_NOT_CUT = 1 << 62


@dataclass(kw_only=True)
class FoundQueues:
    """Queue files of one store during one recovery."""

    files: Files
    store_path: str
    log: CommitLog
    queues: ConsumeQueues
    aside: AsideFolder
    corrections: list[Correction]
    known_until: dict[tuple[str, int], int] = field(default_factory=dict)
    """Physical offset of the last record in an accepted queue; its older records have entries."""
    entries_cut: bool = False
    """Whether the snapshot was dropped because of queue entries that are now zeroes."""
    _cut_at: int = _NOT_CUT
    """First entry missing from a truncated file of the last checked queue; now zeroes, to be rebuilt."""

    def _correct(self, what: str, file: str, offset: int, detail: str) -> None:
        self.corrections.append(Correction(what, file, offset, detail))

    def resume(self, topic: str, queue_id: int, end: int) -> bool:
        """Accept a queue with the end that a snapshot states; return False if its files do not reach it."""
        queue = self.queues.get_or_make(topic, queue_id)
        starts = self._sound_starts(queue)
        if not starts:
            return end == 0
        if self._cut_at < end:
            self.entries_cut = True
            return False
        queue.first_number, queue.max_number = starts[0], end
        queue.min_known_for = -1
        if end <= starts[0]:
            return end == starts[0]
        entry = self.queues.entry(queue, end - 1)
        return entry is not None and entry[0] >= 0 and entry[1] > 0

    def _sound_starts(self, queue: ConsumeQueue) -> list[int]:
        """Return the starts of the queue's files after the last gap; resize files of a wrong size."""
        starts = self.queues.file_starts(queue)
        self._cut_at = _NOT_CUT
        for start in starts:
            path = self.queues.path_of(queue, start)
            facts = self.files.facts(path)
            if facts is not None and facts.file_bytes != self.queues.file_bytes:
                if facts.file_bytes < self.queues.file_bytes:
                    self._cut_at = min(self._cut_at, start + facts.file_bytes // ENTRY_BYTES)
                descriptor = self.files.open(path)
                try:
                    self.aside.cut(descriptor, path, facts.file_bytes, self.queues.file_bytes)
                finally:
                    self.files.close(descriptor)
                shown = path.removeprefix(self.store_path + "/")
                self._correct("queue-size", shown, facts.file_bytes, "the file had another size: resized to full size")
        for position in range(len(starts) - 1, 0, -1):
            if starts[position] - starts[position - 1] != self.queues.file_entries:
                return starts[position:]
        return starts

    def take_as_they_are(self) -> bool:
        """Derive queue ends from the files of a clean stop; return False if the entries are not reliable."""
        extended = bool(self.files.names_in(f"{self.store_path}/consumequeue_ext"))
        for topic, queue_id in self.queues.folders():
            queue = self.queues.get_or_make(topic, queue_id)
            starts = self._sound_starts(queue)
            if not starts:
                continue
            queue.first_number = starts[0]
            queue.max_number = self._end_of_entries(queue, starts[-1])
            queue.min_known_for = -1
            if self._cut_at < queue.max_number:
                return False
            self.known_until[topic, queue_id] = self.queues.last_physical_offset(queue)
            last = self.queues.entry(queue, queue.max_number - 1)
            extended = extended or (last is not None and last[2] <= MAX_EXT_ADDRESS)
        if extended:
            detail = "tags codes are addresses of an extension: queues are rebuilt from the log"
            self._correct("queue-extension", "consumequeue_ext", 0, detail)
        return not extended

    def _end_of_entries(self, queue: ConsumeQueue, last_start: int) -> int:
        """Return the first invalid entry of the last file by binary search: a clean stop leaves no holes."""
        low, high = last_start, last_start + self.queues.file_entries
        queue.max_number = high
        while low < high:
            middle = (low + high) // 2
            entry = self.queues.entry(queue, middle)
            if entry is not None and entry[0] >= 0 and entry[1] > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def measure(self) -> dict[Key, int]:
        """Return the number of entries of each queue that cannot be rebuilt because their log is deleted."""
        self.queues.table.clear()
        self.known_until.clear()
        kept: dict[Key, int] = {}
        for topic, queue_id in self.queues.folders():
            queue = self.unsynced(topic, queue_id)
            starts = self._sound_starts(queue)
            end = 0
            if starts:
                queue.first_number = starts[0]
                queue.max_number = starts[-1] + self.queues.file_entries
                end = self._entries_below(queue, self.log.min_offset) if self.log.min_offset else 0
            kept[topic.encode(), queue_id] = end
        return kept

    def clear(self, kept: dict[Key, int]) -> None:
        """Remove all entries except those measured, so that the queue offsets continue and do not restart at 0."""
        rebuilt = 0
        for queue in self.queues.table.values():
            rebuilt += self.queues.cut(queue, kept[queue.topic.encode(), queue.queue_id])
        if rebuilt:
            self._correct("queues-rebuilt", "consumequeue", 0, f"{rebuilt} queues are rebuilt from the log")

    def unsynced(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue whose files and folder names may not be synced, as after a kill."""
        queue = self.queues.get_or_make(topic, queue_id)
        topic_folder = f"{self.queues.folder}/{topic}"
        self.queues.unsynced_folders |= {self.queues.folder, topic_folder, f"{topic_folder}/{queue_id}"}
        self.queues.unsynced_files |= {self.queues.path_of(queue, start) for start in self.queues.file_starts(queue)}
        return queue

    def _entries_below(self, queue: ConsumeQueue, log_min_offset: int) -> int:
        """Return the end of the queue's first entries whose records are below the log's start."""
        low, high = queue.first_number, queue.max_number
        while low < high:
            middle = (low + high) // 2
            entry = self.queues.entry(queue, middle)
            if entry is not None and entry[1] > 0 and 0 <= entry[0] < log_min_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def cut_beyond(self, log_end: int) -> None:
        """Remove entries of records that are not in the log."""
        for queue in self.queues.table.values():
            number = queue.max_number
            while number > queue.first_number:
                entry = self.queues.entry(queue, number - 1)
                if entry is None or entry[0] < log_end:
                    break
                number -= 1
            if number < queue.max_number:
                shown = f"consumequeue/{queue.topic}/{queue.queue_id}"
                detail = f"{queue.max_number - number} entries beyond the log's end: removed"
                self._correct("queue-beyond-log", shown, number * ENTRY_BYTES, detail)
                self.queues.cut(queue, number)
