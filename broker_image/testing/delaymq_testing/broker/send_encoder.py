"""Twin of the kernel `SendEncoder`: plain sends among received bytes, for the log (docs/kernels.md).

Only tests use it. Without the kernel, each request is decoded, admitted, appended and answered alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from delaymq.message.flags import HOST_MASK, TRANSACTION_MASK
from delaymq.message.hashing import index_key_hash, tags_code
from delaymq.message.names import KEYS, MAX_TOPIC_LENGTH, TAGS, UNIQUE_KEY
from delaymq.message.properties import (
    MAX_PROPERTIES_BYTES,
    PAIR_SEPARATOR,
    encode_properties,
    parse_properties,
)
from delaymq.message.record import IPV4_HOST_BYTES, encode_record
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, decode_command
from delaymq.protocol.errors import ProtocolError, RequestError
from delaymq.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from delaymq.store.consume_queue import ENTRY
from delaymq.store.index.index_file import INDEXED_KEY
from delaymq.store.index.key_index import indexed_keys
from delaymq.store.plain_runs import Sent

MAX_PAIRS: Final = 64
"""Maximum number of properties of a message."""
MAX_QUEUES: Final = 64
"""Maximum number of queues of the sends of one call."""
MAX_HEADER_BYTES: Final = 0xFFFF

_INTEGER = r"(?:0|-?[1-9][0-9]*)"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_FIELD = rf'"[a-n]":{_STRING}'
_MEMBER = (
    rf'"(?:code|flag|opaque|version)":{_INTEGER}|"(?:language|serializeTypeCurrentRPC)":{_STRING}'
    rf'|"extFields":\{{{_FIELD}(?:,{_FIELD})*\}}'
)
_USUAL = re.compile(rf"\{{(?:{_MEMBER})(?:,(?:{_MEMBER}))*\}}").fullmatch
_NAMES = re.compile(rf'("[a-zA-Z]+"):(?:{_STRING}|{_INTEGER}|\{{)').findall
_is_integer = re.compile(_INTEGER).fullmatch
_INTEGER_FIELDS: Final = "defghjl"


class _Place(NamedTuple):
    """Sends to one queue."""

    first: int
    entries: list[bytes]


class SendEncoder:
    """Encoder of sends that need no rules but those given to the constructor."""

    def __init__(
        self,
        ruled: Collection[str],
        own_prefix: str,
        closed: Collection[str],
        retry_prefix: str,
        names: tuple[str, str],
    ) -> None:
        """`ruled`: names of properties that need rules of the broker, as do those that start with `own_prefix`.

        `closed`: topics that need rules, as do those that start with `retry_prefix`. `names` are those of the
        properties that the broker removes and sets.
        """
        self._ruled = frozenset(ruled)
        self._own_prefix = own_prefix
        self._closed = frozenset(closed)
        self._retry_prefix = retry_prefix
        self._wait, self._cluster = names

    def encode(
        self,
        data: bytes,
        topics: Mapping[str, Any],
        born_host: bytes,
        store_host: bytes,
        max_body_bytes: int,
        cluster: str,
        answer: tuple[bytes, bytes, bytes, bytes, bytes],
        queues: Mapping[tuple[str, int], Any],
        physical_offset: int,
        store_ms: int,
        max_record_bytes: int,
        room_bytes: int,
    ) -> Sent:
        """Return the records of the plain sends at the start of `data`, up to the first frame that is no such send.

        `topics` maps names to configurations, `queues` maps topic and queue id to queues with a `max_number`. `answer`
        are the parts of a response: up to the id's offset, between it and the queue id, between it and the queue
        offset, up to the opaque, and the end.
        """
        places: dict[tuple[str, int], _Place] = {}
        sums: dict[str, tuple[int, int]] = {}
        records: list[bytes] = []
        keys: list[bytes] = []
        responses: list[bytes] = []
        read = at = last_at = 0
        while frame := _frame_at(data, read):
            found = self._plain_send(frame, topics, max_body_bytes)
            if found is None or len(born_host) != IPV4_HOST_BYTES or len(store_host) != IPV4_HOST_BYTES:
                break
            command, header, properties = found
            properties.pop(self._wait, None)
            properties[self._cluster] = cluster
            encoded = encode_properties(properties)
            if len(properties) > MAX_PAIRS or len(encoded) > MAX_PROPERTIES_BYTES:
                break
            key = header.topic, header.queue_id
            queue = queues.get(key)
            if queue is None or (key not in places and len(places) == MAX_QUEUES):
                break
            place = places.get(key) or _Place(queue.max_number, [])
            offset, number = physical_offset + at, place.first + len(place.entries)
            record = encode_record(
                header.topic.encode(), header.queue_id, number, offset, header.flag, header.sys_flag,
                header.born_timestamp, born_host, store_ms, store_host, header.reconsume_times or 0, 0, command.body,
                encoded,
            )  # fmt: skip
            if len(record) > max_record_bytes or at + len(record) > room_bytes:
                break
            places[key] = place
            place.entries.append(ENTRY.pack(offset, len(record), tags_code(properties.get(TAGS, ""))))
            texts = [properties.get(UNIQUE_KEY, ""), *indexed_keys(properties.get(KEYS, ""))]
            keys += [INDEXED_KEY.pack(index_key_hash(header.topic, text), offset, store_ms) for text in texts if text]
            responses.append(_response(answer, offset, header.queue_id, number, command.opaque))
            messages, size = sums.get(header.topic, (0, 0))
            sums[header.topic] = messages + 1, size + len(record)
            records.append(record)
            last_at, at, read = at, at + len(record), read + 4 + len(frame)
        stretches = []
        for (topic, queue_id), (first, entries) in places.items():
            first_at, last = ENTRY.unpack(entries[0])[0], ENTRY.unpack(entries[-1])[0]
            stretches.append((topic, queue_id, first, len(entries), first_at, last, b"".join(entries)))
        of_topics = [(topic, *each) for topic, each in sums.items()]
        return read, last_at, b"".join(records), b"".join(keys), stretches, of_topics, b"".join(responses)

    def _plain_send(
        self, frame: bytes, topics: Mapping[str, Any], max_body_bytes: int
    ) -> tuple[Command, SendMessageRequestHeader, dict[str, str]] | None:
        """Return a plain send, its header and its properties; None for anything else."""
        if not _is_usual(frame):
            return None
        try:
            command = decode_command(frame)
            header = SendMessageRequestHeaderV2.from_fields(command.fields)
        except (ProtocolError, RequestError):
            return None
        topic, config, text = header.topic, topics.get(header.topic), header.properties or ""
        is_plain = (
            command.code == RequestCode.SEND_MESSAGE_V2
            and command.flag == 0
            and all(_is_integer(command.fields.get(name, "0")) for name in _INTEGER_FIELDS)
            and command.fields.get("k", "true") in ("true", "false")
            and command.fields.get("m", "false") == "false"
            and not header.sys_flag & (HOST_MASK | TRANSACTION_MASK)
            and len(command.body) <= max_body_bytes
            and len(topic.encode()) <= MAX_TOPIC_LENGTH
            and not topic.startswith(self._retry_prefix)
            and topic not in self._closed
            and text.count(PAIR_SEPARATOR) < MAX_PAIRS
        )
        if not is_plain or config is None or config.order or config.topic_filter_type == "MULTI_TAG":
            return None
        if not 0 <= header.queue_id < max(config.write_queue_nums, config.read_queue_nums):
            return None
        properties = parse_properties(text)
        if any(name.startswith(self._own_prefix) or name in self._ruled for name in properties):
            return None
        return command, header, properties


def _frame_at(data: bytes, at: int) -> bytes:
    """Return the complete frame at a position, without its length; empty if there is none."""
    length = int.from_bytes(data[at : at + 4])
    frame = data[at + 4 : at + 4 + length]
    return frame if len(data) >= at + 4 and len(frame) == length else b""


def _is_usual(frame: bytes) -> bool:
    """Return whether the header is compact JSON without unusual or repeated names."""
    size = int.from_bytes(frame[:4])
    header = frame[4 : 4 + size]
    if len(frame) < 4 or len(header) != size or size > MAX_HEADER_BYTES:
        return False
    try:
        text = header.decode()
    except UnicodeDecodeError:
        return False
    if _USUAL(text) is None:
        return False
    # Within strings, quotes are escaped, so that no text in them looks like a name.
    names = _NAMES(text)
    return len(names) == len(set(names)) and {'"code"', '"extFields"'} <= set(names)


def _response(
    answer: tuple[bytes, bytes, bytes, bytes, bytes], offset: int, queue_id: int, queue_offset: int, opaque: int
) -> bytes:
    to_id, to_queue_id, to_queue_offset, to_opaque, end = answer
    header = b"%b%016X%b%d%b%d%b%d%b" % (
        to_id, offset, to_queue_id, queue_id, to_queue_offset, queue_offset, to_opaque, opaque, end,
    )  # fmt: skip
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
