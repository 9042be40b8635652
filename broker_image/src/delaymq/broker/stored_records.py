"""Records at physical offsets that clients state: only what the store has confirmed, and what a queue names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaymq.message import names
from delaymq.message.properties import decode_properties
from delaymq.message.record import Record

if TYPE_CHECKING:
    from delaymq.store.message_store import MessageStore
    from delaymq.store.untrusted_offsets import NamedHead


class StoredRecords:
    """The confirmed records of one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def head_at(self, physical_offset: int) -> NamedHead | None:
        """The head of the confirmed record at an offset that a client stated.

        None where no record begins, and for one that no queue names: it stands within a body, or its topic was deleted.
        """
        store = self._store
        if not store.min_offset <= physical_offset < store.confirmed_offset:
            return None
        head = store.named_head(physical_offset)
        return head if head is not None and physical_offset + head.size <= store.confirmed_offset else None

    def properties_of(self, head: NamedHead) -> dict[str, str]:
        """The properties of a record, read without its body."""
        return decode_properties(self._store.read_bytes(head.properties_at, head.properties_bytes))

    def record_at(self, physical_offset: int) -> Record | None:
        """As `head_at`, the whole record; None also when it is not sound. For those who may see the body."""
        return None if self.head_at(physical_offset) is None else self._store.record_at(physical_offset)

    def topic_at(self, physical_offset: int) -> str | None:
        """The topic of the record at an offset that a client stated, also while it waits in one of the broker's own."""
        head = self.head_at(physical_offset)
        if head is None:
            return None
        if head.topic in names.INTERNAL_TOPICS:
            return self.properties_of(head).get(names.REAL_TOPIC, head.topic)
        return head.topic
