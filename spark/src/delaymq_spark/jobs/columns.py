"""Tables of records in tasks: the columns to read, masks over rows, and packing for a shuffle.

Tables are Arrow tables with the columns of the data source (source/schema.py). Nothing here requires Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from delaymq.message.flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from delaymq.message.names import DLQ_PREFIX, RETRY_PREFIX

Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

_VOLUME: Final = ("topic", "size", "segment", "store_time")
_DELAYED: Final = (
    "topic", "queue_id", "queue_offset", "physical_offset", "segment", "size", "store_time", "born_time", "sys_flag",
    "reconsume_times", "body_bytes", "kind", "real_topic", "real_queue_id", "delay_level", "due_time", "unique_key",
    "origin_queue_id", "origin_offset", "body_crc", "mark", "timer_record", "timer_out_ms", "recalled_key",
    "identity", "mark_identity", "mark_due_time", "next_due_time", "delay_group", "run", "schedule_id",
)  # fmt: skip
_TRAFFIC: Final = ("sys_flag", "queue_id", "reconsume_times", "body_bytes", "kind", "keys")
OF_SECTION: Final[Mapping[str, tuple[str, ...]]] = {
    "compaction": (*_VOLUME, *_DELAYED, "half_offset"),
    "delay": (*_VOLUME, *_DELAYED),
    "traffic": (*_VOLUME, *_TRAFFIC),
}
"""Columns required by each section of a summary; compaction with keyed topics also requires `keys`."""
HOUR_US: Final = 3_600_000_000
TIME: Final = pa.timestamp("us", tz="UTC")
_GROUP_OF_TOPIC: Final = f"^({RETRY_PREFIX}|{DLQ_PREFIX})"
CHUNK_ROWS: Final = 32_768
"""Rows of a table processed in one call: enough to make calls of Arrow cheap, few enough to fit in a cache."""


def columns_of(sections: Iterable[str], *, keyed: bool) -> tuple[str, ...]:
    """Return the columns to read for these sections: each has a cost, highest for those that need properties."""
    wanted = dict.fromkeys(name for section in sections for name in OF_SECTION[section])
    return tuple(wanted | ({"keys": None} if keyed else {}))


def chunks(batches: Iterable[pa.RecordBatch], rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """Split into tables of about `rows` rows."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(held).combine_chunks()
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def mask_of(values: pa.ChunkedArray) -> Mask:
    """Return a column of booleans as a mask; null is false."""
    mask: Mask = pc.fill_null(values, False).to_numpy()
    return mask


def integers(values: pa.ChunkedArray, null: int = 0) -> Integers:
    """Return a column of integers, or of times in µs since 1970."""
    found: Integers = pc.fill_null(values.cast(pa.int64()), null).to_numpy()
    return found


def is_filler(rows: pa.Table) -> Mask:
    """Return a mask of fillers, which recovery wrote over damage."""
    filler: Mask = (integers(rows["sys_flag"]) & TRANSACTION_MASK) == TRANSACTION_ROLLBACK
    return filler


def is_topic(rows: pa.Table, *topics: str) -> Mask:
    """Return a mask of records in one of these topics."""
    return mask_of(pc.is_in(rows["topic"], pa.array(topics, pa.string())))


def where(rows: pa.Table, mask: Mask) -> pa.Table:
    """Return the rows selected by the mask."""
    return rows if mask.all() else rows.filter(pa.array(mask))


def codes(values: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str | None]]:
    """Return a column of texts as numbers, and the text of each number; null has its own number."""
    encoded = values.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()


def hour_of(times: pa.ChunkedArray) -> pa.Array:
    """Return the hour, in UTC, of each time; null where there is none."""
    micros = integers(times)
    missing = mask_of(pc.is_null(times))
    hours = np.where(missing, 0, micros // HOUR_US * HOUR_US)
    return pa.array(hours, pa.int64(), mask=missing).cast(TIME)


def milliseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times in ms since 1970."""
    return times.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())


def place_of_texts(values: pa.ChunkedArray, count: int) -> Integers:
    """Return the partition (of `count`) of each text: the same in every process."""
    if count == 1:
        return np.zeros(len(values), np.int64)
    numbers, texts = codes(values)
    places = np.array([crc32((text or "").encode()) % count for text in texts], np.int64)
    return places[numbers] if len(places) else np.zeros(0, np.int64)


def place_of_topics(topics: pa.ChunkedArray, count: int) -> Integers:
    """Return the partition of each topic: a group's retries and dead letters are in the same one."""
    if count == 1:
        return np.zeros(len(topics), np.int64)
    return place_of_texts(pc.replace_substring_regex(topics, _GROUP_OF_TOPIC, ""), count)


def place_of_integers(values: pa.ChunkedArray, count: int) -> Integers:
    """Return the partition of each number."""
    return integers(values) % count


def scattered(rows: pa.Table, places: Integers, count: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each partition that has any."""
    if not rows.num_rows:
        return
    if count == 1:
        yield 0, rows
        return
    order = np.argsort(places, kind="stable")
    ends = np.cumsum(np.bincount(places, minlength=count))
    sorted_rows = rows.take(pa.array(order))
    begin = 0
    for place, end in enumerate(ends.tolist()):
        if end > begin:
            yield place, sorted_rows.slice(begin, end - begin)
        begin = end


def pack(rows: pa.Table) -> bytes:
    """Return the table in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(packed: bytes) -> pa.Table:
    """Return the table packed by `pack`."""
    with pa.ipc.open_stream(packed) as reader:
        return reader.read_all()
