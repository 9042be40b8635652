"""Interface of a register: a linearizable read, and a write that takes place only if nothing has changed."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from delaymq.replication import Record


class RegisterError(Exception):
    """A read failed; the text says why and what to do."""


class Content(NamedTuple):
    """Content of the register."""

    version: str
    """Changed by each write, also of an equal record, and never used again. Compared for equality only."""
    record: Record | None
    """None if there is no record: none has been written yet, or it was deleted."""


class Written(NamedTuple):
    """The write took place."""

    version: str


class Conflict(NamedTuple):
    """The write did not and will not take place, because the register has another version."""


class Unknown(NamedTuple):
    """The write took place, will take place, or neither. Only another version of the register excludes it."""

    reason: str


Outcome: TypeAlias = Written | Conflict | Unknown


class Register(Protocol):
    """The register of one group."""

    async def read(self, timeout_s: float) -> Content:
        """Return the content at a time between call and return. Raises RegisterError."""
        ...

    async def write(self, record: Record, expected: str, timeout_s: float) -> Outcome:
        """Replace the content if the version is `expected`, with a single request.

        Raises ValueError for a record that the register cannot hold, without sending it.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
