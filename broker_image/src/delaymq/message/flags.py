"""Bits of the sys flag (docs/formats/store.md, record field 8)."""

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_IPV6 = 0x10
STORE_HOST_IPV6 = 0x20
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300
COMPRESSION_MASK = 0x700
HOST_MASK = BORN_HOST_IPV6 | STORE_HOST_IPV6


def transaction_type(sys_flag: int) -> int:
    """Return the transaction bits: 0 none, 4 prepared, 8 commit, 12 rollback."""
    return sys_flag & TRANSACTION_MASK
