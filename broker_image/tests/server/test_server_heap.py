"""Memory of large blocks, in a process of its own, since the setting cannot be undone."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import re
from pathlib import Path
from delaymq.server.heap import keep_large_blocks_apart

def heap_bytes():
    found = re.findall(r"^(\\w+)-(\\w+) .*\\[heap]$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    return sum(int(end, 16) - int(start, 16) for start, end in found)

if {is_set}:
    keep_large_blocks_apart()
large = bytearray(8 << 20)
del large
before = heap_bytes()
blocks = [bytearray(256 << 10) for _ in range(32)]
print(heap_bytes() - before)
"""


def heap_growth(*, is_set: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(is_set=is_set)], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_large_blocks_are_kept_off_the_heap_after_a_larger_one_was_freed() -> None:
    assert heap_growth(is_set=False) > 4 << 20
    assert heap_growth(is_set=True) < 1 << 20
