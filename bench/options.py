"""Choices of a run that all scenarios share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """Durations and sizes; ``quick`` trades precision for time."""

    groups: frozenset[str]
    sizes: tuple[int, ...]
    quick: bool
    pending: int
    uvloop: bool = False
    """Whether the asyncio client runs on uvloop."""

    def wants(self, *groups: str) -> bool:
        return any(group in self.groups for group in groups)

    def scaled(self, full: float, quick: float) -> float:
        return quick if self.quick else full

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full
