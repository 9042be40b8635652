"""How far each group has consumed each queue: consumerOffset.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from delaymq.message.names import MAX_GROUP_LENGTH, MAX_TOPIC_LENGTH
from delaymq.protocol.bodies import ConsumerOffsets

FILE_NAME: Final = "consumerOffset.json"
# The file is read whole: 1,000,000 queues of groups have some 20 MB.
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
# Topic and group pairs that a client may make up by committing offsets.
MAX_KEYS: Final = 200_000
# Topic, separator, group: longer names are nobody's.
MAX_KEY_LENGTH: Final = MAX_TOPIC_LENGTH + 1 + MAX_GROUP_LENGTH
_SEPARATOR: Final = "@"


def parse_table(data: bytes) -> ConsumerOffsets:
    """consumerOffset.json; RequestError when it cannot be read."""
    return ConsumerOffsets.decode(data, max_bytes=MAX_FILE_BYTES)


class Offsets:
    """Next offset to consume, by `TOPIC@GROUP` and queue."""

    __slots__ = ("dirty", "table")

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self.dirty = False

    def restore(self, stored: ConsumerOffsets) -> None:
        """Takes what consumerOffset.json says."""
        self.table = stored.offset_table

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
        """consumerOffset.json, also the answer to 43."""
        return ConsumerOffsets(self.table).encode()

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Sets an offset, also back; False when it is not kept: the table is full or the names are too long."""
        key = f"{topic}@{group}"
        queues = self.table.get(key)
        if queues is None:
            if len(self.table) >= MAX_KEYS or len(key) > MAX_KEY_LENGTH:
                return False
            queues = self.table[key] = {}
        queues[queue_id] = offset
        self.dirty = True
        return True

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The offset, None when the group has none there."""
        queues = self.table.get(f"{topic}@{group}")
        return None if queues is None else queues.get(queue_id)

    def queues_of(self, topic: str, group: str) -> dict[int, int]:
        """Offsets of a group by queue of `topic`; empty without any."""
        return self.table.get(f"{topic}@{group}", {})

    def topics_of(self, group: str) -> list[str]:
        """Topics in which `group` has offsets."""
        return [topic for topic, _, other in self._keys() if other == group]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets in `topic`."""
        return [group for other, _, group in self._keys() if other == topic]

    def clone(self, topic: str, source: str, destination: str) -> bool:
        """Gives `destination` the offsets of `source` in `topic` in place of its own; False when they are not kept."""
        queues = self.table.get(f"{topic}@{source}")
        if queues is None:
            return True
        key = f"{topic}@{destination}"
        if (key not in self.table and len(self.table) >= MAX_KEYS) or len(key) > MAX_KEY_LENGTH:
            return False
        self.table[key] = dict(queues)
        self.dirty = True
        return True

    def remove_group(self, group: str) -> None:
        """Forgets all offsets of `group`."""
        for key in [key for key in self.table if key.partition(_SEPARATOR)[2] == group]:
            del self.table[key]
            self.dirty = True

    def _keys(self) -> Iterable[tuple[str, str, str]]:
        return (key.partition(_SEPARATOR) for key in self.table)
