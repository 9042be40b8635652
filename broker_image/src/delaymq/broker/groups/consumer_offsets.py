"""How far each group has consumed each queue: consumerOffset.json.

Bounds: MAX_ENTRIES offsets under MAX_KEYS names of MAX_KEY_CHARACTERS in all, which are legal ones of a topic and a
group. All that the table can hold takes some 50 MB as a file, well below MAX_FILE_BYTES.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

import msgspec

from delaymq.message.names import MAX_GROUP_LENGTH, MAX_TOPIC_LENGTH, group_problem
from delaymq.protocol.bodies import ConsumerOffsets

FILE_NAME: Final = "consumerOffset.json"
# The file is read whole: 1,000,000 queues of groups have some 20 MB.
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
# Offsets of all groups in all queues; each takes some 100 bytes of memory.
MAX_ENTRIES: Final = 1_000_000
# Topic and group pairs that a client may make up by committing offsets.
MAX_KEYS: Final = 200_000
# Of all these pairs.
MAX_KEY_CHARACTERS: Final = 16 * 1024 * 1024
# Topic, separator, group: longer names are nobody's.
MAX_KEY_LENGTH: Final = MAX_TOPIC_LENGTH + 1 + MAX_GROUP_LENGTH
_SEPARATOR: Final = "@"
# Offsets that are encoded before other threads get their turn: about a millisecond's work.
_ENCODED_AT_ONCE: Final = 4_000
# Keys of the table that are looked at in one step: about half a millisecond's work.
KEYS_AT_ONCE: Final = 4_000


def parse_table(data: bytes) -> ConsumerOffsets:
    """consumerOffset.json; RequestError when it cannot be read."""
    return ConsumerOffsets.decode(data, max_bytes=MAX_FILE_BYTES)


def remedy(paths: Iterable[str]) -> str:
    """What is wrong, and how an administrator decides, when the table of `paths` cannot be read."""
    return (
        f"the consumer offsets cannot be read (kept in the store: {', '.join(paths)}): put a good {FILE_NAME} beside"
        " them and restart the broker, or give the offsets up with `delaymq group forget-offsets`"
    )


class OffsetTable:
    """Next offset to consume, by `TOPIC@GROUP` and queue."""

    __slots__ = ("_characters", "_keys", "dirty", "entries", "ignored", "table", "unreadable")

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self._keys: list[str] = []
        """Those of the table. It only grows, and is replaced when keys go: who walks along it in steps misses none."""
        self.entries = 0
        """Offsets in the table."""
        self._characters = 0
        self.ignored = 0
        """Commits that were not kept."""
        self.unreadable: tuple[str, ...] = ()
        """Files of a table that cannot be read: until somebody decides about them, nobody knows where groups are."""
        self.dirty = False

    def restore(self, stored: ConsumerOffsets) -> None:
        """Takes what consumerOffset.json says, also what is beyond the bounds of now."""
        self.table = stored.offset_table
        self._keys = list(self.table)
        self.entries = sum(map(len, self.table.values()))
        self._characters = sum(map(len, self.table))

    def clamp(self, max_offset: Callable[[str, int], int]) -> int:
        """Brings offsets that lie behind their queue's end back to it; how many.

        After a crash the offsets on the disk can be ahead of what the disk has of the log: consumers would skip the
        messages that are stored next.
        """
        count = 0
        for key, queues in self.table.items():
            topic = key.partition(_SEPARATOR)[0]
            for queue_id, offset in queues.items():
                end = max_offset(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    count += 1
        self.dirty = self.dirty or count > 0
        return count

    def encode(self) -> bytes:
        """consumerOffset.json, also the answer to 43. In any thread: others go on meanwhile, and may commit."""
        # Pieces in a list would take twice the memory for a moment.
        data = io.BytesIO()
        data.write(b'{"offsetTable":{')
        encoded, separator = 0, b""
        for key, queues in list(self.table.items()):
            data.write(b"%b%b:%b" % (separator, msgspec.json.encode(key), msgspec.json.encode(queues)))
            separator = b","
            encoded += len(queues) + 1
            if encoded >= _ENCODED_AT_ONCE:
                encoded = 0
                time.sleep(0)
        data.write(b"}}")
        return data.getvalue()

    def commit(self, topic: str, group: str, queue_id: int, offset: int, *, own: bool = False) -> bool:
        """Sets an offset, also back; False when it is not kept: the table is full, or `group` is no legal name.

        `own`: an offset that the broker itself needs.
        """
        key = f"{topic}@{group}"
        queues = self.table.get(key)
        if queues is None or queue_id not in queues:
            if self.entries >= MAX_ENTRIES and not own:
                return False
            if queues is None:
                if not own and not self._may_add(key, group):
                    return False
                queues = self.table[key] = {}
                self._keys.append(key)
                self._characters += len(key)
            self.entries += 1
        queues[queue_id] = offset
        self.dirty = True
        return True

    def _may_add(self, key: str, group: str) -> bool:
        if len(self.table) >= MAX_KEYS or self._characters + len(key) > MAX_KEY_CHARACTERS:
            return False
        return len(key) <= MAX_KEY_LENGTH and group_problem(group) is None

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The offset, None when the group has none there."""
        queues = self.table.get(f"{topic}@{group}")
        return None if queues is None else queues.get(queue_id)

    def queues_of(self, topic: str, group: str) -> dict[int, int]:
        """Offsets of a group by queue of `topic`; empty without any."""
        return self.table.get(f"{topic}@{group}", {})

    def key_steps(self, keys_at_once: int = KEYS_AT_ONCE) -> Iterator[list[str]]:
        """The keys of the table, some at a time; others may commit in between."""
        keys = self._keys
        for first in range(0, len(keys), keys_at_once):
            yield keys[first : first + keys_at_once]

    def topic_steps(self, group: str) -> Generator[None, None, list[str]]:
        """Topics in which `group` has offsets; each step looks at KEYS_AT_ONCE keys."""
        end = f"{_SEPARATOR}{group}"
        found: list[str] = []
        for number, keys in enumerate(self.key_steps()):
            if number:
                yield
            found += [key[: -len(end)] for key in keys if key.endswith(end)]
        return found

    def group_steps(self, topic: str) -> Generator[None, None, list[str]]:
        """Groups that have offsets in `topic`, in steps of the same size."""
        begin = f"{topic}{_SEPARATOR}"
        found: list[str] = []
        for number, keys in enumerate(self.key_steps()):
            if number:
                yield
            found += [key[len(begin) :] for key in keys if key.startswith(begin)]
        return found

    def groups_of(self, topic: str) -> list[str]:
        """The same in one step."""
        begin = f"{topic}{_SEPARATOR}"
        return [key[len(begin) :] for key in self.table if key.startswith(begin)]

    def clone(self, topic: str, source: str, destination: str) -> bool:
        """Gives `destination` the offsets of `source` in `topic` in place of its own; False when they are not kept."""
        queues = self.table.get(f"{topic}@{source}")
        if queues is None:
            return True
        key = f"{topic}@{destination}"
        before = self.table.get(key)
        if before is None and not self._may_add(key, destination):
            return False
        more = len(queues) - len(before or ())
        if more > 0 and self.entries + more > MAX_ENTRIES:
            return False
        if before is None:
            self._characters += len(key)
            self._keys.append(key)
        self.table[key] = dict(queues)
        self.entries += more
        self.dirty = True
        return True

    def remove_group(self, group: str) -> None:
        """Forgets all offsets of `group`."""
        for key in [key for key in self.table if key.partition(_SEPARATOR)[2] == group]:
            self.entries -= len(self.table.pop(key))
            self._characters -= len(key)
            self.dirty = True
        self._keys = list(self.table)
