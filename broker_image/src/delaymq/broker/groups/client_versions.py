"""Client versions in commands: numbers in the order of RocketMQ's releases, including snapshots."""

from __future__ import annotations

from typing import Final

V3_0_7: Final = 28
"""First version whose clients support offset resets and report their progress."""
V3_1_8: Final = 62
"""First version whose clients report their state and consume single messages on request."""
_FIRST: Final = (
    *("V3_0_0_SNAPSHOT", "V3_0_0_ALPHA1", "V3_0_0_BETA1", "V3_0_0_BETA2", "V3_0_0_BETA3", "V3_0_0_BETA4"),
    *("V3_0_0_BETA5", "V3_0_0_BETA6_SNAPSHOT", "V3_0_0_BETA6", "V3_0_0_BETA7_SNAPSHOT", "V3_0_0_BETA7"),
    *("V3_0_0_BETA8_SNAPSHOT", "V3_0_0_BETA8", "V3_0_0_BETA9_SNAPSHOT", "V3_0_0_BETA9", "V3_0_0_FINAL"),
)
_FIRST_OF_3_1: Final = 46
"""Followed by a snapshot and a release of each version up to 3.0.15, and from 3.1.0 on."""


def version_name(version: int) -> str:
    """Return the name of a version before V3_1_8, otherwise the number as text, which no remark uses."""
    if 0 <= version < len(_FIRST):
        return _FIRST[version]
    if not 0 <= version < V3_1_8:
        return str(version)
    if version < _FIRST_OF_3_1:
        release, part = f"V3_0_{(version - len(_FIRST)) // 2 + 1}", version - len(_FIRST)
    else:
        release, part = f"V3_1_{(version - _FIRST_OF_3_1) // 2}", version - _FIRST_OF_3_1
    return release if part % 2 else f"{release}_SNAPSHOT"
