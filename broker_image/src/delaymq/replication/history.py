"""Epoch histories: the epoch of each part of a log, by which diverged logs are compared.

Bytes of an epoch are appended by one process only, the master of the epoch. Two logs that contain the start of the same
epoch are therefore identical up to the end of this epoch in the log in which it ends first.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class EpochStart(NamedTuple):
    """An epoch and the offset of its first byte."""

    epoch: int
    start: int


History: TypeAlias = tuple[EpochStart, ...]
"""Epochs of a log in ascending order. Bytes before the first entry belong to epoch 0, which precedes replication."""


def trimmed(history: History, end: int) -> History:
    """Return the history of a log that ends at `end`."""
    return tuple(entry for entry in history if entry.start <= end)


def last_epoch(history: History) -> int:
    """Return the newest epoch; 0 without entries."""
    return history[-1].epoch if history else 0


def consistent_end(own: History, own_end: int, other: History, other_end: int) -> int:
    """Return the offset up to which two logs are certain to be identical."""
    own_ends, other_ends = _ends(own, own_end), _ends(other, other_end)
    common = max(own_ends.keys() & other_ends.keys())
    return min(own_ends[common], other_ends[common])


def _ends(history: History, end: int) -> dict[EpochStart, int]:
    starts = (EpochStart(0, 0), *history)
    return {entry: following.start for entry, following in zip(starts, (*history, EpochStart(0, end)), strict=True)}
