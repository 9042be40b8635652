"""Inflation of compressed bodies, complete and as previews."""

import builtins
import sys
import tracemalloc
import zlib
from typing import Any

import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard
from delaymq.message import compression, flags
from delaymq.message.compression import inflate, inflate_beginning
from delaymq.message.errors import RecordError

TEXT = b"a sentence that is worth being compressed. " * 2_000
PACKED = {
    0: zlib.compress(TEXT),
    flags.COMPRESSION_ZLIB: zlib.compress(TEXT),
    flags.COMPRESSION_LZ4: lz4.frame.compress(TEXT),
    flags.COMPRESSION_ZSTD: zstandard.ZstdCompressor().compress(TEXT),
}
by_each_kind = pytest.mark.parametrize("kind", PACKED)


@by_each_kind
def test_body_is_inflated_completely(kind: int) -> None:
    assert inflate(PACKED[kind], flags.COMPRESSED | kind) == TEXT


@by_each_kind
def test_truncated_or_foreign_body_is_reported(kind: int) -> None:
    for body in (PACKED[kind][:-10], b"", b"no such stream"):
        with pytest.raises(RecordError, match="compressed with"):
            inflate(body, flags.COMPRESSED | kind)


@by_each_kind
def test_body_inflating_beyond_the_limit_is_rejected(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_INFLATED_BYTES", len(TEXT) - 1)
    with pytest.raises(RecordError, match="more than"):
        inflate(PACKED[kind], flags.COMPRESSED | kind)


@by_each_kind
def test_preview_reports_whether_more_follows(kind: int) -> None:
    sys_flag = flags.COMPRESSED | kind
    for most_bytes in (0, 1, 1_000, len(TEXT) - 1):
        assert inflate_beginning(PACKED[kind], sys_flag, most_bytes) == (TEXT[:most_bytes], True)
    for most_bytes in (len(TEXT), len(TEXT) + 1):
        assert inflate_beginning(PACKED[kind], sys_flag, most_bytes) == (TEXT, False)


@by_each_kind
def test_compression_bomb_is_inflated_only_for_the_preview(kind: int) -> None:
    bomb = _bomb(kind)
    tracemalloc.start()
    try:
        content, is_more = inflate_beginning(bomb, flags.COMPRESSED | kind, 64 << 10)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (content, is_more) == (bytes(64 << 10), True)
    # One piece of the packed bytes may become 16 MiB of them.
    assert peak_bytes < 20 << 20


def _bomb(kind: int) -> bytes:
    """A hundred MiB of zeros."""
    pieces = [bytes(1 << 20)] * 100
    if kind == flags.COMPRESSION_LZ4:
        packer = lz4.frame.LZ4FrameCompressor()
        return b"".join((packer.begin(), *map(packer.compress, pieces), packer.flush()))
    packing = zstandard.ZstdCompressor().compressobj() if kind == flags.COMPRESSION_ZSTD else zlib.compressobj()
    return b"".join((*map(packing.compress, pieces), packing.flush()))


def test_unknown_compression_is_reported() -> None:
    with pytest.raises(RecordError, match="unknown compression type"):
        inflate(TEXT, flags.COMPRESSED | 0x700)


def test_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without_lz4(name: str, *rest: Any) -> Any:
        if name.startswith("lz4"):
            raise ImportError(name)
        return usual(name, *rest)

    for name in [name for name in sys.modules if name.startswith("lz4")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_lz4)
    with pytest.raises(RecordError, match=r"delaymq\[compression\]"):
        inflate(PACKED[flags.COMPRESSION_LZ4], flags.COMPRESSED | flags.COMPRESSION_LZ4)
