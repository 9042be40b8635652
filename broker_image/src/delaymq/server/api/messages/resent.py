"""Lookup of resent dead letters, by the mark in the new message."""

from typing import Final

from delaymq.broker.sending.dead_letter_resend import is_resent_from, key_of
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.server.api.messages.index_search import search_index
from delaymq.server.api.routing import Api
from delaymq.server.log_reader import LogFiles
from delaymq.server.time_slices import TimeSlices

_MAX_EXAMINED: Final = 64
"""Maximum messages per unique id in a retry topic that are checked; a group retries 16 times by default."""


async def resent_as(api: Api, group: str, dead_letters: list[Record]) -> list[Record | None]:
    """Return the newest resent message of each dead letter; None: none in the index and the log."""
    store, topic = api.broker.store, names.retry_topic(group)
    slices = TimeSlices()
    offsets = [await search_index(store, topic, key_of(each), _MAX_EXAMINED, slices) for each in dead_letters]
    # Include resent messages that are not flushed yet.
    files = LogFiles(store, unconfirmed=True)
    async with api.reading():
        read = await api.in_thread(files.records, [offset for each in offsets for offset in each])
    rest = iter(read)
    found: list[Record | None] = []
    for dead_letter, there in zip(dead_letters, offsets, strict=True):
        candidates = [next(rest) for _ in there]
        sent = [each.record for each in candidates if each is not None and is_resent_from(each.record, dead_letter)]
        found.append(max(sent, key=lambda record: record.physical_offset, default=None))
    return found


async def resent_times_ms(api: Api, group: str, dead_letters: list[Record]) -> list[int | None]:
    """Return when each dead letter was last resent; None: never."""
    found = await resent_as(api, group, dead_letters)
    return [None if each is None else each.store_timestamp_ms for each in found]
