"""Consume queues: 20 bytes for each message of a queue (docs/formats/store.md, "Consume queue").

New entries are buffered in a byte array per queue and written in batches; readers check the buffer before the file.
Files are sparse. A queue without unwritten entries holds only a few numbers and no descriptor.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Final

from delaymq.message.errors import IllegalMessageError
from delaymq.message.names import topic_problem
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files, is_full

ENTRY = struct.Struct(
    ">q"  # physical offset
    "i"  # record size
    "q"  # tags code
)
ENTRY_BYTES: Final = 20
assert ENTRY.size == ENTRY_BYTES
BLANK_SIZE: Final = 2_147_483_647
BLANK_ENTRY: Final = ENTRY.pack(0, BLANK_SIZE, 0)
"""Replaces an entry whose record no longer exists."""
MAX_EXT_ADDRESS: Final = -(1 << 31) - 1
"""Tags codes up to this value are addresses in consumequeue_ext/ (enableConsumeQueueExt)."""
MAX_OPEN_FILES: Final = 256
"""Far below the usual limit of 1,024 descriptors per process, most of which connections need."""
MAX_GAP_ENTRIES: Final = 2_000_000
"""A damaged queue offset must not create a queue of terabytes."""
MAX_QUEUE_ID: Final = (1 << 31) - 1


class ConsumeQueue:
    """One queue. `number` is a queue offset: it counts from the queue's first message ever."""

    __slots__ = ("first_number", "max_number", "min_known_for", "min_number", "queue_id", "tail", "topic")

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.first_number = 0
        """Queue offset of the first entry of the first file."""
        self.max_number = 0
        """Queue offset of the next entry."""
        self.tail: bytearray | None = None
        """Entries not yet in a file: the last ones before `max_number`."""
        self.min_number = 0
        self.min_known_for = 0
        """Start offset of the log for which `min_number` was computed."""


class ConsumeQueues:
    """All queues of a store."""

    def __init__(self, files: Files, folder: str, file_bytes: int, aside: AsideFolder) -> None:
        self._files = files
        self._aside = aside
        self.folder = folder
        self.file_bytes = file_bytes
        self.file_entries = file_bytes // ENTRY_BYTES
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self._dirty: deque[ConsumeQueue] = deque()
        self._open_files: OrderedDict[str, int] = OrderedDict()
        self.unsynced_files: set[str] = set()
        self.unsynced_folders: set[str] = set()
        self.written_count = 0
        """Total number of dirty queues that `write_behind` has written."""
        self.full = False
        """Whether the last batch failed because the disk is full; it is retried."""

    # -- the hot path ---------------------------------------------------------------------------------------------

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; a new one has no files yet. IllegalMessageError for an invalid topic or queue id."""
        queue = self.table.get((topic, queue_id))
        if queue is None:
            problem = topic_problem(topic)
            if problem:
                raise IllegalMessageError(problem)
            if not 0 <= queue_id <= MAX_QUEUE_ID:
                raise IllegalMessageError(f"invalid queue id {queue_id}: queue ids start at 0")
            queue = self.table[(topic, queue_id)] = ConsumeQueue(topic, queue_id)
        return queue

    def put(self, queue: ConsumeQueue, number: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Add entry `number`; return False if the queue already has it or its queue offset is implausible."""
        if number != queue.max_number and not self._make_room(queue, number, physical_offset):
            return False
        tail = queue.tail
        if tail is None:
            tail = queue.tail = bytearray()
            self._dirty.append(queue)
        tail += ENTRY.pack(physical_offset, size, tags_code)
        queue.max_number = number + 1
        return True

    def put_entries(self, queue: ConsumeQueue, entries: bytes) -> None:
        """Add encoded entries to the end of a queue."""
        if queue.tail is None:
            queue.tail = bytearray()
            self._dirty.append(queue)
        queue.tail += entries
        queue.max_number += len(entries) // ENTRY_BYTES

    def _make_room(self, queue: ConsumeQueue, number: int, physical_offset: int) -> bool:
        if number < queue.max_number:
            # The queue of a recreated topic counts from 0 again: its newer record has the larger offset.
            if number or physical_offset <= self.last_physical_offset(queue):
                return False
            self.cut(queue, 0)
            return True
        if queue.max_number == queue.first_number == 0 and queue.tail is None:
            # The older log is deleted: the queue starts in the file that holds the entry.
            queue.first_number = queue.max_number = number - number % self.file_entries
        if number - queue.max_number > max(MAX_GAP_ENTRIES, self.file_entries):
            return False
        if queue.tail is None:
            queue.tail = bytearray()
            self._dirty.append(queue)
        queue.tail += BLANK_ENTRY * (number - queue.max_number)
        queue.max_number = number
        return True

    def continue_at(self, queue: ConsumeQueue, number: int) -> None:
        """Let an empty queue continue at `number`, with blank entries before it in the last file."""
        if queue.max_number or queue.tail is not None or number <= 0:
            return
        queue.first_number = (number - 1) // self.file_entries * self.file_entries
        queue.tail = bytearray(BLANK_ENTRY * (number - queue.first_number))
        queue.max_number = number
        queue.min_known_for = -1
        self._dirty.append(queue)
        try:
            self._write_tail(queue)
        except OSError as error:
            if not is_full(error):
                raise

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, queue: ConsumeQueue, number: int, count: int) -> bytes:
        """Return up to `count` raw entries from `number`; fewer at the end of the queue or of a file."""
        if number < queue.first_number or number >= queue.max_number or count <= 0:
            return b""
        written = queue.max_number
        if queue.tail is not None:
            written -= len(queue.tail) // ENTRY_BYTES
            if number >= written:
                start = (number - written) * ENTRY_BYTES
                return bytes(queue.tail[start : start + count * ENTRY_BYTES])
        start = number % self.file_entries
        wanted = min(count, self.file_entries - start)
        count = min(wanted, written - number)
        descriptor = self._descriptor(queue, number - start, create=False)
        if descriptor is None:
            return b""
        data = self._files.pread(descriptor, count * ENTRY_BYTES, start * ENTRY_BYTES)
        if len(data) == count * ENTRY_BYTES and count < wanted and queue.tail is not None:
            return data + queue.tail[: (wanted - count) * ENTRY_BYTES]
        return data if len(data) % ENTRY_BYTES == 0 else data[: -(len(data) % ENTRY_BYTES)]

    def entry(self, queue: ConsumeQueue, number: int) -> tuple[int, int, int] | None:
        """Return physical offset, size and tags code of an entry; None if it does not exist."""
        data = self.read(queue, number, 1)
        return ENTRY.unpack(data) if len(data) == ENTRY_BYTES else None

    def last_physical_offset(self, queue: ConsumeQueue) -> int:
        """Return the physical offset of the newest entry that is not blank; -1 if there is none."""
        for number in range(queue.max_number - 1, queue.first_number - 1, -1):
            entry = self.entry(queue, number)
            if entry is not None and entry[1] != BLANK_SIZE:
                return entry[0]
        return -1

    def first_at(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """Return the first entry, except blank ones, whose record starts at or after `physical_offset`."""
        low, high = queue.first_number, queue.max_number
        while low < high:
            middle = (low + high) // 2
            number, offset = self._next_sound(queue, middle, high)
            if number == high or offset >= physical_offset:
                high = middle
            else:
                low = number + 1
        return self._next_sound(queue, low, queue.max_number)[0]

    def _next_sound(self, queue: ConsumeQueue, number: int, end: int) -> tuple[int, int]:
        """Return the first entry in number…end that is not blank, and its physical offset; `end` if there is none."""
        while number < end:
            data = self.read(queue, number, min(end - number, 512))
            if not data:
                return end, 0
            for offset, size, _ in ENTRY.iter_unpack(data):
                if size != BLANK_SIZE and size > 0:
                    return number, offset
                number += 1
        return end, 0

    def bounds(self, queue: ConsumeQueue, log_min_offset: int) -> tuple[int, int]:
        """Return the first entry whose record exists, and the queue offset of the next one."""
        if queue.min_known_for != log_min_offset or queue.min_number < queue.first_number:
            queue.min_number = self.first_at(queue, log_min_offset)
            queue.min_known_for = log_min_offset
        return queue.min_number, queue.max_number

    def end_before(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """Return the end of the entries whose records start before `physical_offset`."""
        last = self.entry(queue, queue.max_number - 1)
        if last is not None and last[1] != BLANK_SIZE and last[0] < physical_offset:
            return queue.max_number
        return self.first_at(queue, physical_offset)

    # -- files ----------------------------------------------------------------------------------------------------

    def path_of(self, queue: ConsumeQueue, number: int) -> str:
        """Return the path of the file that holds entry `number`."""
        start = number - number % self.file_entries
        return f"{self.folder}/{queue.topic}/{queue.queue_id}/{start * ENTRY_BYTES:020d}"

    def _descriptor(self, queue: ConsumeQueue, number: int, *, create: bool) -> int | None:
        path = self.path_of(queue, number)
        descriptor = self._open_files.get(path)
        if descriptor is not None:
            self._open_files.move_to_end(path)
            return descriptor
        try:
            descriptor = self._files.open(path)
        except FileNotFoundError:
            if not create:
                return None
            descriptor = self._create(path)
        self._open_files[path] = descriptor
        if len(self._open_files) > MAX_OPEN_FILES:
            self._files.close(self._open_files.popitem(last=False)[1])
        return descriptor

    def _create(self, path: str) -> int:
        queue_folder = path.rpartition("/")[0]
        topic_folder = queue_folder.rpartition("/")[0]
        if self._files.make_folder(topic_folder):
            self.unsynced_folders.add(self.folder)
        if self._files.make_folder(queue_folder):
            self.unsynced_folders.add(topic_folder)
        descriptor = self._files.open(path, create=True)
        self.unsynced_folders.add(queue_folder)
        self._files.set_size(descriptor, self.file_bytes)
        return descriptor

    def forget_descriptor(self, path: str) -> None:
        """Close a file that is about to be resized or deleted."""
        descriptor = self._open_files.pop(path, None)
        if descriptor is not None:
            self._files.close(descriptor)

    @property
    def dirty_count(self) -> int:
        """Return the number of queues with entries that are not in a file."""
        return len(self._dirty)

    def write_behind(self, budget_files: int) -> bool:
        """Write the new entries of up to `budget_files` queues; return whether more can be written now."""
        dirty = self._dirty
        for _ in range(min(budget_files, len(dirty))):
            queue = dirty[0]
            try:
                self._write_tail(queue)
            except OSError as error:
                if not is_full(error):
                    raise
                self.full = True
                return False
            dirty.popleft()
            self.written_count += 1
        self.full = False
        return bool(dirty)

    def _write_tail(self, queue: ConsumeQueue) -> None:
        tail = queue.tail
        if tail is None:
            return
        number = queue.max_number - len(tail) // ENTRY_BYTES
        position = 0
        with memoryview(tail) as view:
            while position < len(tail):
                start = number % self.file_entries
                count = min(len(tail) - position, (self.file_entries - start) * ENTRY_BYTES)
                descriptor = self._descriptor(queue, number - start, create=True)
                assert descriptor is not None
                with view[position : position + count] as piece:
                    self._files.pwrite(descriptor, piece, start * ENTRY_BYTES)
                self.unsynced_files.add(self.path_of(queue, number))
                position += count
                number += count // ENTRY_BYTES
        queue.tail = None

    def take_unsynced(self) -> tuple[set[str], set[str]]:
        """Return files and folders written since the last call; the caller must sync them."""
        taken = self.unsynced_files, self.unsynced_folders
        self.unsynced_files, self.unsynced_folders = set(), set()
        return taken

    # -- cutting and removing -------------------------------------------------------------------------------------

    def file_starts(self, queue: ConsumeQueue) -> list[int]:
        """Return the queue offsets at which the queue's files in the folder start."""
        names = self._files.names_in(f"{self.folder}/{queue.topic}/{queue.queue_id}")
        return [int(n) // ENTRY_BYTES for n in names if n.isdigit() and int(n) % self.file_bytes == 0]

    def cut(self, queue: ConsumeQueue, number: int) -> bool:
        """End the queue before entry `number` and zero what follows; return whether anything was overwritten.

        The overwritten bytes are moved aside.
        """
        if queue.tail is not None:
            self._write_tail(queue)
            if queue in self._dirty:
                self._dirty.remove(queue)
        changed = False
        for start in self.file_starts(queue):
            path = self.path_of(queue, start)
            if start >= number:
                self.forget_descriptor(path)
                self._aside.remove(path)
                self.unsynced_files.discard(path)
                self.unsynced_folders.add(path.rpartition("/")[0])
                changed = True
            elif start + self.file_entries > number:
                descriptor = self._descriptor(queue, start, create=False)
                if descriptor is not None and self._aside.zero(
                    descriptor, path, (number - start) * ENTRY_BYTES, self.file_bytes
                ):
                    self.unsynced_files.add(path)
                    changed = True
        queue.max_number = number
        if number <= queue.first_number:
            queue.first_number = queue.max_number = number - number % self.file_entries if number else 0
        queue.min_known_for = -1
        return changed

    def remove_files_below(self, queue: ConsumeQueue, log_min_offset: int) -> list[str]:
        """Delete files whose records no longer exist, but never the last file; return their paths."""
        removed = []
        while queue.first_number + self.file_entries < queue.max_number:
            last = self.entry(queue, queue.first_number + self.file_entries - 1)
            if last is None or (last[0] >= log_min_offset and last[1] != BLANK_SIZE):
                break
            path = self.path_of(queue, queue.first_number)
            self.forget_descriptor(path)
            self._files.unlink(path)
            self.unsynced_files.discard(path)
            queue.first_number += self.file_entries
            removed.append(path)
        return removed

    def remove_topic(self, topic: str) -> list[ConsumeQueue]:
        """Delete the topic's queues and their files; return the queues."""
        removed = [queue for (name, _), queue in self.table.items() if name == topic]
        for queue in removed:
            del self.table[(topic, queue.queue_id)]
            if queue in self._dirty:
                self._dirty.remove(queue)
            for start in self.file_starts(queue):
                path = self.path_of(queue, start)
                self.forget_descriptor(path)
                self._files.unlink(path)
                self.unsynced_files.discard(path)
            queue_folder = f"{self.folder}/{topic}/{queue.queue_id}"
            self.unsynced_folders.discard(queue_folder)
            self._files.remove_folder(queue_folder)
        if removed:
            self.unsynced_folders.discard(f"{self.folder}/{topic}")
            self._files.remove_folder(f"{self.folder}/{topic}")
            self.unsynced_folders.add(self.folder)
        return removed

    def folders(self) -> Iterator[tuple[str, int]]:
        """Iterate over topic and queue id of every queue that has a folder."""
        for topic in self._files.names_in(self.folder):
            if topic_problem(topic):
                continue
            for name in self._files.names_in(f"{self.folder}/{topic}"):
                if name.isascii() and name.isdigit() and int(name) <= MAX_QUEUE_ID and str(int(name)) == name:
                    yield topic, int(name)

    def close(self) -> None:
        """Release the descriptors."""
        for descriptor in self._open_files.values():
            self._files.close(descriptor)
        self._open_files.clear()
