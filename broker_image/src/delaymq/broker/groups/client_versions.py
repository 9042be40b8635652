"""Versions of clients as their commands state them: numbers in the order of RocketMQ's releases, with snapshots."""

from __future__ import annotations

from typing import Final

V3_0_7: Final = 28
"""From here on clients can be told to go on elsewhere, and say how far they are."""
V3_1_8: Final = 62
"""From here on clients tell of themselves and consume messages on demand."""
_FIRST: Final = (
    *("V3_0_0_SNAPSHOT", "V3_0_0_ALPHA1", "V3_0_0_BETA1", "V3_0_0_BETA2", "V3_0_0_BETA3", "V3_0_0_BETA4"),
    *("V3_0_0_BETA5", "V3_0_0_BETA6_SNAPSHOT", "V3_0_0_BETA6", "V3_0_0_BETA7_SNAPSHOT", "V3_0_0_BETA7"),
    *("V3_0_0_BETA8_SNAPSHOT", "V3_0_0_BETA8", "V3_0_0_BETA9_SNAPSHOT", "V3_0_0_BETA9", "V3_0_0_FINAL"),
)
# Then a snapshot and a release of each, until 3.0.15 and on from 3.1.0.
_FIRST_OF_3_1: Final = 46


def version_name(version: int) -> str:
    """The name of a version before V3_1_8; a number as text for others, whose names nobody is told."""
    if 0 <= version < len(_FIRST):
        return _FIRST[version]
    if not 0 <= version < V3_1_8:
        return str(version)
    if version < _FIRST_OF_3_1:
        release, part = f"V3_0_{(version - len(_FIRST)) // 2 + 1}", version - len(_FIRST)
    else:
        release, part = f"V3_1_{(version - _FIRST_OF_3_1) // 2}", version - _FIRST_OF_3_1
    return release if part % 2 else f"{release}_SNAPSHOT"
