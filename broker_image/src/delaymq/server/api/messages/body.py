"""Bodies for display: their beginning, decompressed."""

import base64
from typing import Final

from delaymq.api_types.messages import MessageBody
from delaymq.message import flags
from delaymq.message.compression import inflate_beginning
from delaymq.message.errors import RecordError
from delaymq.server.api.routing import Api
from delaymq.server.log_reader import SHOWN_BODY_BYTES, LogFiles, ReadRecord

MAX_PACKED_BYTES: Final = 16 << 20
"""Compressed bodies up to this size are read completely, because LZ4 compresses blocks of up to 4 MiB, and a partial
block cannot be decompressed. Only the beginning of larger ones is tried."""


async def body_of(api: Api, read: ReadRecord) -> MessageBody:
    """Return the first SHOWN_BODY_BYTES of a body, decompressed if the producer used zlib, LZ4 or zstd."""
    if not read.record.sys_flag & flags.COMPRESSED:
        return _shown(read.record.body, read.body_bytes, is_cut=read.body_bytes > SHOWN_BODY_BYTES)
    async with api.reading():
        return await api.in_thread(_unpacked, api.log_files(), read)


def _unpacked(files: LogFiles, read: ReadRecord) -> MessageBody:
    body = read.record.body
    if read.is_cut and read.body_bytes <= MAX_PACKED_BYTES:
        whole = files.whole(read.record.physical_offset)
        body = body if whole is None else whole.body
    try:
        beginning, is_more = inflate_beginning(body, read.record.sys_flag, SHOWN_BODY_BYTES)
    except RecordError as error:
        return _shown(body, read.body_bytes, is_cut=read.body_bytes > SHOWN_BODY_BYTES, not_unpacked=str(error))
    return _shown(beginning, read.body_bytes if is_more else len(beginning), is_cut=is_more)


def _shown(body: bytes, whole_bytes: int, *, is_cut: bool, not_unpacked: str | None = None) -> MessageBody:
    beginning = body[:SHOWN_BODY_BYTES]
    text = _text_of(beginning, is_cut)
    return MessageBody(
        text=text,
        base64=base64.b64encode(beginning).decode() if text is None else None,
        bytes=whole_bytes,
        truncated=is_cut,
        not_unpacked=not_unpacked,
    )


def _text_of(data: bytes, is_cut: bool) -> str | None:
    for dropped in range(4 if is_cut else 1):  # the cut may split a character
        try:
            text = data[: len(data) - dropped].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None
