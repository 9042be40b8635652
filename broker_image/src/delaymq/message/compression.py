"""Bodies as producers compressed them: zlib, and LZ4 and zstd by libraries that the extra `compression` installs."""

from __future__ import annotations

import zlib
from typing import Final

from delaymq.message import flags
from delaymq.message.errors import RecordError

# What one body may hold once it is inflated: a few KiB could otherwise fill the memory.
MAX_INFLATED_BYTES: Final = 64 << 20
# This library has no limit for what comes out: a block of 4 bytes may be one of 128 KiB.
_ZSTD_PIECE_BYTES: Final = 512


def inflate(body: bytes, sys_flag: int) -> bytes:
    """A compressed body's content; RecordError when it is cut, too large, or nothing here can read it."""
    name, content, is_whole = _read(body, sys_flag, MAX_INFLATED_BYTES)
    if not is_whole or len(content) > MAX_INFLATED_BYTES:
        raise RecordError(f"the body compressed with {name} is cut or has more than {MAX_INFLATED_BYTES} bytes inside")
    return content


def inflate_beginning(body: bytes, sys_flag: int, most_bytes: int) -> tuple[bytes, bool]:
    """At most so much of a compressed body's content, and whether there is more; of a cut one what is left of it.

    RecordError as by `inflate`, but whatever the size is.
    """
    name, content, is_whole = _read(body, sys_flag, most_bytes)
    if not is_whole and not content:
        raise RecordError(f"the body compressed with {name} is cut")
    return content[:most_bytes], not is_whole or len(content) > most_bytes


def _read(body: bytes, sys_flag: int, most_bytes: int) -> tuple[str, bytes, bool]:
    """The way of compressing, the content, which may be cut behind `most_bytes`, and whether it is all."""
    kind = sys_flag & flags.COMPRESSION_MASK
    if kind not in _READERS:
        raise RecordError(f"the body is compressed in a way ({kind >> 8}) that is not known here")
    name, read = _READERS[kind]
    try:
        # One byte more tells an end from a limit.
        return name, *read(body, most_bytes + 1)
    except ImportError as error:
        raise RecordError(f"the body is compressed with {name}: install delaymq[compression] to read it") from error
    except Exception as error:  # each library has errors of its own
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
    # Clients before 4.9.4 state no kind.
    0: ("zlib", _zlib),
    flags.COMPRESSION_LZ4: ("LZ4", _lz4),
    flags.COMPRESSION_ZSTD: ("zstd", _zstd),
    flags.COMPRESSION_ZLIB: ("zlib", _zlib),
}
