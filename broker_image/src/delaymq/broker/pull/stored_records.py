"""Records at physical offsets that clients state: only confirmed records to which a consume queue refers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaymq.message import names
from delaymq.message.properties import decode_properties
from delaymq.message.record import Record

if TYPE_CHECKING:
    from delaymq.store.message_store import MessageStore
    from delaymq.store.untrusted_offsets import ReferencedHead


class StoredRecords:
    """Confirmed records of one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def head_at(self, physical_offset: int) -> ReferencedHead | None:
        """Return the head of the confirmed record at an offset that a client stated.

        Returns None if no record starts there, or if no queue refers to it: the offset lies within a body, or the topic
        was deleted.
        """
        return self._head_before(self._store.confirmed_offset, physical_offset)

    def producers_head_at(self, physical_offset: int) -> ReferencedHead | None:
        """Return the same, also for a record that replicas do not have: its producer may have a response already."""
        return self._head_before(self.producers_end, physical_offset)

    @property
    def producers_end(self) -> int:
        """Physical offset at which the records that producers may refer to end."""
        store = self._store
        return store.flushed_offset if store.options.sync_flush else store.end_offset

    def _head_before(self, end: int, physical_offset: int) -> ReferencedHead | None:
        if not self._store.min_offset <= physical_offset < end:
            return None
        head = self._store.referenced_head(physical_offset)
        return head if head is not None and physical_offset + head.size <= end else None

    def properties_of(self, head: ReferencedHead) -> dict[str, str]:
        """Return the properties of a record, read without its body."""
        return decode_properties(self._store.read_bytes(head.properties_at, head.properties_bytes))

    def record_at(self, physical_offset: int) -> Record | None:
        """Return the whole record at an offset, or None as `head_at` does or if it is damaged.

        Only for callers that may disclose the body.
        """
        return None if self.head_at(physical_offset) is None else self._store.record_at(physical_offset)

    def topic_at(self, physical_offset: int) -> str | None:
        """Return the topic of the record at an offset that a client stated.

        For a record that is pending in a system topic, this is its own topic.
        """
        return self._topic_of(self.head_at(physical_offset))

    def producers_topic_at(self, physical_offset: int) -> str | None:
        """Return the same for the record that `producers_head_at` returns."""
        return self._topic_of(self.producers_head_at(physical_offset))

    def _topic_of(self, head: ReferencedHead | None) -> str | None:
        if head is None:
            return None
        if head.topic in names.INTERNAL_TOPICS:
            return self.properties_of(head).get(names.REAL_TOPIC, head.topic)
        return head.topic
