"""Consumer offsets: the progress of each group in each queue (consumerOffset.json).

Limits: MAX_ENTRIES offsets under MAX_KEYS keys with MAX_KEY_CHARACTERS in total. Each key consists of a legal topic and
a legal group. The largest possible table takes about 50 MB as a file, well below MAX_FILE_BYTES.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from delaymq.message.names import MAX_GROUP_LENGTH, MAX_TOPIC_LENGTH, group_problem
from delaymq.protocol.bodies import ConsumerOffsets

FILE_NAME: Final = "consumerOffset.json"
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""The file is read as a whole. The offsets of 1,000,000 queues take about 20 MB."""
MAX_ENTRIES: Final = 1_000_000
"""Offsets of all groups in all queues. Each takes about 100 bytes of memory."""
MAX_KEYS: Final = 200_000
"""Pairs of topic and group, which clients may make up by committing offsets."""
MAX_KEY_CHARACTERS: Final = 16 * 1024 * 1024
"""Total length of all keys."""
MAX_KEY_LENGTH: Final = MAX_TOPIC_LENGTH + 1 + MAX_GROUP_LENGTH
"""Maximum length of topic, separator and group. Longer keys are not legal."""
_SEPARATOR: Final = "@"
_ENCODED_AT_ONCE: Final = 4_000
"""Offsets that are encoded before other threads may run: about 1 ms of work."""
KEYS_AT_ONCE: Final = 4_000
"""Keys that are examined in one step: about 0.5 ms of work."""


def parse_table(data: bytes) -> ConsumerOffsets:
    """Parse consumerOffset.json. Raises RequestError if it is unreadable."""
    return ConsumerOffsets.decode(data, max_bytes=MAX_FILE_BYTES)


def remedy(paths: Iterable[str]) -> str:
    """Return the error and the administrator's options if the table in `paths` is unreadable."""
    return (
        f"the consumer offsets cannot be read (kept in the store: {', '.join(paths)}): put a valid {FILE_NAME} next to"
        " them and restart the broker, or discard the offsets with `delaymq group forget-offsets`"
    )


class OffsetTable:
    """Next offset to consume, by `TOPIC@GROUP` and queue."""

    __slots__ = ("_characters", "_keys", "changed", "dirty", "entries", "ignored", "table", "unreadable")

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self._keys: list[str] = []
        """Keys of the table. The list only grows, and is replaced when keys are removed, so iteration in steps misses
        none."""
        self.entries = 0
        """Number of offsets in the table."""
        self._characters = 0
        self.ignored = 0
        """Number of rejected commits."""
        self.unreadable: tuple[str, ...] = ()
        """Files of an unreadable table. Until an administrator decides about them, the groups' offsets are unknown."""
        self.dirty = False
        self.changed: set[str] | None = None
        """Keys whose offsets have changed since the set was last taken; None if nobody takes it."""

    def restore(self, stored: ConsumerOffsets) -> None:
        """Restore the offsets of consumerOffset.json, even those beyond the current limits."""
        self.table = stored.offset_table
        self._keys = list(self.table)
        self.entries = sum(map(len, self.table.values()))
        self._characters = sum(map(len, self.table))

    def clamp(self, max_offset: Callable[[str, int], int]) -> int:
        """Reset offsets beyond the end of their queue to that end. Returns the number of changed offsets.

        After a crash, the stored offsets can be ahead of the recovered log. Consumers would then skip the messages that
        are stored next.
        """
        count = 0
        for key, queues in self.table.items():
            topic = key.partition(_SEPARATOR)[0]
            for queue_id, offset in queues.items():
                end = max_offset(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    count += 1
                    if self.changed is not None:
                        self.changed.add(key)
        self.dirty = self.dirty or count > 0
        return count

    def encode(self) -> bytes:
        """Return consumerOffset.json, which is also the body of response 43.

        Callable from any thread. Commits may happen meanwhile.
        """
        # A list of pieces would briefly need twice the memory.
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
        """Set an offset, which may move backwards. Returns False if the table is full or `group` is not a legal name.

        `own`: the broker itself needs the offset.
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
        if self.changed is not None:
            self.changed.add(key)
        return True

    def _may_add(self, key: str, group: str) -> bool:
        if len(self.table) >= MAX_KEYS or self._characters + len(key) > MAX_KEY_CHARACTERS:
            return False
        return len(key) <= MAX_KEY_LENGTH and group_problem(group) is None

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the offset, or None if the group has none in this queue."""
        queues = self.table.get(f"{topic}@{group}")
        return None if queues is None else queues.get(queue_id)

    def queues_of(self, topic: str, group: str) -> dict[int, int]:
        """Return the offsets of a group by queue of `topic`."""
        return self.table.get(f"{topic}@{group}", {})

    def key_steps(self, keys_at_once: int = KEYS_AT_ONCE) -> Iterator[list[str]]:
        """Yield the keys of the table in batches. Commits may happen in between."""
        keys = self._keys
        for first in range(0, len(keys), keys_at_once):
            yield keys[first : first + keys_at_once]

    def topic_steps(self, group: str) -> Generator[None, None, list[str]]:
        """Return the topics in which `group` has offsets. Each step examines KEYS_AT_ONCE keys."""
        end = f"{_SEPARATOR}{group}"
        found: list[str] = []
        for number, keys in enumerate(self.key_steps()):
            if number:
                yield
            found += [key[: -len(end)] for key in keys if key.endswith(end)]
        return found

    def group_steps(self, topic: str) -> Generator[None, None, list[str]]:
        """Return the groups that have offsets in `topic`, in steps of the same size."""
        begin = f"{topic}{_SEPARATOR}"
        found: list[str] = []
        for number, keys in enumerate(self.key_steps()):
            if number:
                yield
            found += [key[len(begin) :] for key in keys if key.startswith(begin)]
        return found

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in `topic`, in one step."""
        begin = f"{topic}{_SEPARATOR}"
        return [key[len(begin) :] for key in self.table if key.startswith(begin)]

    def clone(self, topic: str, source: str, destination: str) -> bool:
        """Replace `destination`'s offsets in `topic` by those of `source`. Returns False if a limit prevents it."""
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
        if self.changed is not None:
            self.changed.add(key)
        return True

    def replicate(self, changed: Mapping[str, dict[int, int] | None]) -> None:
        """Adopt the master's offsets of some keys, or their removal (None)."""
        self.dirty = True
        is_removed = False
        for key, queues in changed.items():
            before = self.table.get(key)
            self.entries += len(queues or ()) - len(before or ())
            if queues is None:
                if before is not None:
                    del self.table[key]
                    self._characters -= len(key)
                    is_removed = True
                continue
            self.table[key] = queues
            if before is None:
                self._characters += len(key)
                self._keys.append(key)
        if is_removed:
            self._keys = list(self.table)

    def remove_group(self, group: str) -> None:
        """Remove all offsets of `group`."""
        for key in [key for key in self.table if key.partition(_SEPARATOR)[2] == group]:
            self.entries -= len(self.table.pop(key))
            self._characters -= len(key)
            self.dirty = True
            if self.changed is not None:
                self.changed.add(key)
        self._keys = list(self.table)
