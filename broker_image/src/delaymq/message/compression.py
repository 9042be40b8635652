"""Decompression of bodies: zlib, and LZ4 and zstd with the libraries of the extra `compression`."""

from __future__ import annotations

import zlib
from typing import Final

from delaymq.message import flags
from delaymq.message.errors import RecordError

MAX_INFLATED_BYTES: Final = 64 << 20
"""Maximum size of a decompressed body; otherwise a few KiB could fill the memory."""
_ZSTD_PIECE_BYTES: Final = 512
"""Input per call: the library does not limit its output, and a block of 4 bytes may expand to 128 KiB."""


def inflate(body: bytes, sys_flag: int) -> bytes:
    """Return the content of a compressed body. RecordError if it is truncated, too large or unreadable."""
    name, content, is_whole = _read(body, sys_flag, MAX_INFLATED_BYTES)
    if not is_whole or len(content) > MAX_INFLATED_BYTES:
        raise RecordError(
            f"the body compressed with {name} is truncated or expands to more than {MAX_INFLATED_BYTES} bytes"
        )
    return content


def inflate_beginning(body: bytes, sys_flag: int, most_bytes: int) -> tuple[bytes, bool]:
    """Return at most `most_bytes` of a compressed body's content, and whether there is more.

    A truncated body yields its readable part. RecordError as in `inflate`, except that the size is not limited.
    """
    name, content, is_whole = _read(body, sys_flag, most_bytes)
    if not is_whole and not content:
        raise RecordError(f"the body compressed with {name} is truncated")
    return content[:most_bytes], not is_whole or len(content) > most_bytes


def _read(body: bytes, sys_flag: int, most_bytes: int) -> tuple[str, bytes, bool]:
    """Return the compression's name, the content up to about `most_bytes`, and whether it is complete."""
    kind = sys_flag & flags.COMPRESSION_MASK
    if kind not in _READERS:
        raise RecordError(f"the body has an unknown compression type ({kind >> 8})")
    name, read = _READERS[kind]
    try:
        # One byte more distinguishes the end from the limit.
        return name, *read(body, most_bytes + 1)
    except ImportError as error:
        raise RecordError(f"the body is compressed with {name}: install delaymq[compression] to read it") from error
    except Exception as error:  # each library raises its own errors
        raise RecordError(f"the body compressed with {name} cannot be read: {error}") from error


def _zlib(body: bytes, limit_bytes: int) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj()
    content = inflater.decompress(body, limit_bytes)
    return content, inflater.eof


def _lz4(body: bytes, limit_bytes: int) -> tuple[bytes, bool]:
    from lz4.frame import LZ4FrameDecompressor  # type: ignore[import-untyped]

    inflater = LZ4FrameDecompressor()
    content: bytes = inflater.decompress(body, limit_bytes)
    return content, inflater.eof


def _zstd(body: bytes, limit_bytes: int) -> tuple[bytes, bool]:
    from zstandard import ZstdDecompressor

    inflater = ZstdDecompressor().decompressobj()
    parts = []
    total = 0
    for at in range(0, len(body), _ZSTD_PIECE_BYTES):
        part = inflater.decompress(body[at : at + _ZSTD_PIECE_BYTES])
        total += len(part)
        parts.append(part)
        if total >= limit_bytes or inflater.eof:
            break
    return b"".join(parts), inflater.eof


_READERS: Final = {
    # Clients before 4.9.4 do not state the compression type.
    0: ("zlib", _zlib),
    flags.COMPRESSION_LZ4: ("LZ4", _lz4),
    flags.COMPRESSION_ZSTD: ("zstd", _zstd),
    flags.COMPRESSION_ZLIB: ("zlib", _zlib),
}
