"""Which dead letters were sent to their group again: found by the mark that the new message carries."""

from typing import Final

from delaymq.broker.dead_letter_resend import is_resent_from, key_of
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.server.api.messages.index_search import search_index
from delaymq.server.api.routing import Api
from delaymq.server.log_reader import LogFiles
from delaymq.server.time_slices import TimeSlices

_MAX_EXAMINED: Final = 64
"""Messages of one unique id in a retry topic: a group tries 16 times by default."""


async def resent_as(api: Api, group: str, dead_letters: list[Record]) -> list[Record | None]:
    """The newest message that each dead letter was sent again as; None: none that the index and the log still have."""
    store, topic = api.broker.store, names.retry_topic(group)
    slices = TimeSlices()
    offsets = [await search_index(store, topic, key_of(each), _MAX_EXAMINED, slices) for each in dead_letters]
    # One that is not on the disk yet was sent all the same.
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
    """When each of these dead letters was last sent again."""
    found = await resent_as(api, group, dead_letters)
    return [None if each is None else each.store_timestamp_ms for each in found]
