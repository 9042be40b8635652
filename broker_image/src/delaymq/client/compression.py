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
    kind = sys_flag & flags.COMPRESSION_MASK
    if kind not in _READERS:
        raise RecordError(f"the body is compressed in a way ({kind >> 8}) that is not known here")
    name, read = _READERS[kind]
    try:
        content = read(body)
    except ImportError as error:
        raise RecordError(f"the body is compressed with {name}: install delaymq[compression] to read it") from error
    except Exception as error:  # each library has errors of its own
        raise RecordError(f"the body compressed with {name} cannot be read: {error}") from error
    if content is None:
        raise RecordError(f"the body compressed with {name} is cut or has more than {MAX_INFLATED_BYTES} bytes inside")
    return content


def _zlib(body: bytes) -> bytes | None:
    inflater = zlib.decompressobj()
    content = inflater.decompress(body, MAX_INFLATED_BYTES)
    return content if inflater.eof else None


def _lz4(body: bytes) -> bytes | None:
    from lz4.frame import LZ4FrameDecompressor  # type: ignore[import-untyped]

    inflater = LZ4FrameDecompressor()
    content: bytes = inflater.decompress(body, MAX_INFLATED_BYTES)
    return content if inflater.eof else None


def _zstd(body: bytes) -> bytes | None:
    from zstandard import ZstdDecompressor

    inflater = ZstdDecompressor().decompressobj()
    parts = []
    total = 0
    for at in range(0, len(body), _ZSTD_PIECE_BYTES):
        part = inflater.decompress(body[at : at + _ZSTD_PIECE_BYTES])
        total += len(part)
        parts.append(part)
        if total > MAX_INFLATED_BYTES or inflater.eof:
            break
    return b"".join(parts) if inflater.eof and total <= MAX_INFLATED_BYTES else None


_READERS: Final = {
    # Clients before 4.9.4 state no kind.
    0: ("zlib", _zlib),
    flags.COMPRESSION_LZ4: ("LZ4", _lz4),
    flags.COMPRESSION_ZSTD: ("zstd", _zstd),
    flags.COMPRESSION_ZLIB: ("zlib", _zlib),
}
