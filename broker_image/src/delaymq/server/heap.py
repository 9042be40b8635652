"""Setting of the C library's heap."""

from typing import Final

MMAP_THRESHOLD_BYTES: Final = 128 * 1024
_M_MMAP_THRESHOLD: Final = -3
"""The number of the parameter in glibc's malloc.h."""


def keep_large_blocks_apart() -> None:
    """Let blocks from 128 KiB on be mapped one by one, so that freeing one returns its memory to the system.

    This is glibc's default only until the first such block is freed: from then on, larger and larger blocks come from
    the heap, where smaller ones that are still in use keep their memory. Other C libraries are left as they are.
    """
    import ctypes  # takes milliseconds

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
