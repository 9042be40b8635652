"""Appending of records that state changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from delaymq.broker.delivery.reader import DeliveryStore
    from delaymq.store.model import NewRecord


class Stated(NamedTuple):
    """A change that the log states."""

    place: int
    """Physical offset of its record."""
    end: int
    """Physical offset of the end of the record."""
    failure: Exception | None = None
    """Failure of a step after the append. The log decides: the change is made."""


def append_statement(store: DeliveryStore, record: NewRecord, version: int) -> Stated:
    """Append the record of a change, which requires a store of at least this format version.

    If it raises StoreError, nothing is in the log.
    """
    if store.format_version < version:
        store.raise_format_version(version)
    last_before = store.last_offset
    try:
        appended = store.append(record)
    except Exception as error:
        if store.last_offset == last_before:
            raise
        return Stated(store.last_offset, store.end_offset, error)
    return Stated(appended.physical_offset, appended.physical_offset + appended.size)
