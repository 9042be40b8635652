"""Encoding of batches whose messages need no rules, by one call for each batch, of a compiled kernel if there is one.

`BatchEncoder` is the twin of the kernel (docs/kernels.md). Both return None for a batch that contains anything unusual,
including any error: its messages are then admitted and appended one at a time, which also reports the error.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from zlib import crc32

from delaymq import kernels
from delaymq.broker.sending.admission import RULED
from delaymq.message import names
from delaymq.message.flags import HOST_MASK, TRANSACTION_MASK
from delaymq.message.hashing import index_key_hash, tags_code
from delaymq.message.properties import (
    MAX_PROPERTIES_BYTES,
    PAIR_SEPARATOR,
    encode_properties,
    format_properties,
    parse_properties,
)
from delaymq.message.record import (
    BODY_CRC_MASK,
    FIXED_BYTES,
    HEAD,
    IPV4_HOST_BYTES,
    MESSAGE_MAGIC,
    PROPERTIES_LENGTH,
)
from delaymq.protocol.batch import read_batch
from delaymq.protocol.errors import RequestError
from delaymq.store.consume_queue import ENTRY
from delaymq.store.index.index_file import INDEXED_KEY
from delaymq.store.index.key_index import indexed_keys
from delaymq.store.plain_runs import Encoded

MAX_PAIRS: Final = 64
"""Maximum number of properties of a message, and of these together with those of its batch."""


class BatchEncoder:
    """Encoder of batches whose messages need no rules but those given to the constructor."""

    def __init__(self, ruled: Collection[str], own_prefix: str) -> None:
        """`ruled`: names of properties that need rules of the broker, as do those that start with `own_prefix`."""
        self._ruled = frozenset(ruled)
        self._own_prefix = own_prefix

    def encode(
        self,
        body: bytes,
        most: int,
        shared: dict[str, str],
        topic: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        store_ms: int,
        store_host: bytes,
        reconsume_times: int,
        max_record_bytes: int,
        room_bytes: int,
        id_prefix: str,
    ) -> Encoded | None:
        """Return the batch `body` as it is to be stored at `physical_offset`, from `queue_offset` on.

        None if it has more than `most` messages, does not fit into `room_bytes`, or needs rules. `shared` are the
        properties of the batch, which take precedence.
        """
        raw_topic = topic.encode()
        is_plain = (
            len(born_host) == len(store_host) == IPV4_HOST_BYTES
            and not sys_flag & (HOST_MASK | TRANSACTION_MASK)
            and len(raw_topic) <= names.MAX_TOPIC_LENGTH
            and not any(name.startswith(self._own_prefix) for name in shared)
        )
        if not is_plain:
            return None
        try:
            format_properties(shared).encode()
            messages, read = read_batch(body, 0, most)
        except (RequestError, UnicodeEncodeError):
            return None
        if read < len(body):
            return None
        topic_part = len(raw_topic).to_bytes(1, "big") + raw_topic
        records: list[bytes] = []
        entries: list[bytes] = []
        keys: list[bytes] = []
        ids: list[str] = []
        at = last_at = 0
        for number, (flag, content, raw) in enumerate(messages, queue_offset):
            properties = self._merged(raw, shared)
            if properties is None:
                return None
            property_bytes = encode_properties(properties)
            size = FIXED_BYTES + len(content) + len(raw_topic) + len(property_bytes)
            if len(property_bytes) > MAX_PROPERTIES_BYTES or size > max_record_bytes or at + size > room_bytes:
                return None
            offset = physical_offset + at
            head = HEAD.pack(
                size, MESSAGE_MAGIC, crc32(content) & BODY_CRC_MASK, queue_id, flag, number, offset, sys_flag, born_ms,
                born_host, store_ms, store_host, reconsume_times, 0, len(content),
            )  # fmt: skip
            records += (head, content, topic_part, PROPERTIES_LENGTH.pack(len(property_bytes)), property_bytes)
            entries.append(ENTRY.pack(offset, size, tags_code(properties.get(names.TAGS, ""))))
            unique, more = properties.get(names.UNIQUE_KEY), properties.get(names.KEYS)
            if unique is not None:
                keys.append(INDEXED_KEY.pack(index_key_hash(topic, unique), offset, store_ms))
            if more is not None:
                hashes = [index_key_hash(topic, key) for key in indexed_keys(more) if key]
                keys += [INDEXED_KEY.pack(key_hash, offset, store_ms) for key_hash in hashes]
            ids.append(f"{id_prefix}{offset:016X}")
            last_at, at = at, at + size
        return len(ids), last_at, b"".join(records), b"".join(entries), b"".join(keys), ",".join(ids)

    def _merged(self, raw: bytes, shared: dict[str, str]) -> dict[str, str] | None:
        """Return a message's properties and those of the batch; None if they need rules."""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return None
        if "\0" in text or text.count(PAIR_SEPARATOR) >= MAX_PAIRS:
            return None
        properties = parse_properties(text)
        properties.update(shared)
        if len(properties) > MAX_PAIRS or not self._ruled.isdisjoint(properties):
            return None
        if self._own_prefix in text and any(name.startswith(self._own_prefix) for name in properties):
            return None
        return properties


encoder: Final = kernels.choose("BatchEncoder", BatchEncoder)(
    [*RULED, names.RETRY_TOPIC, names.DELAY_SCHEDULE_ID], names.OWN_PREFIX
)
"""The encoder of this process: compiled or not."""
