"""Shift of the wall clock of a Python program, by CLOCK_SHIFT_MS; use this folder as its PYTHONPATH.

The interpreter imports it before the program, also after the program has executed itself again. Only `time.time` and
`time.time_ns` are shifted: timers use monotonic time, which no clock changes.
"""

import os
import time

_SHIFT_NS = int(os.environ.get("CLOCK_SHIFT_MS", "0")) * 1_000_000
_time_ns = time.time_ns


def _shifted_ns() -> int:
    return _time_ns() + _SHIFT_NS


def _shifted() -> float:
    return _shifted_ns() / 1e9


time.time_ns = _shifted_ns
time.time = _shifted
