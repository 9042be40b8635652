"""JSON of a record, as described in docs/formats/register.md."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from delaymq.replication import Record

VERSION: Final = 1
MAX_TEXT_BYTES: Final = 16 << 10
MAX_MEMBERS: Final = 16
"""A group has at most 5 members; more can be in a set only for a short time, if ever."""
MAX_NUMBER: Final = (1 << 31) - 1
"""`leaseTransitions` of a Lease has 32 bits."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,253}\Z")]
_NameOrEmpty = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{0,253}\Z")]


class RecordError(ValueError):
    """A text is no record, or a record is invalid; the text says why."""


class _Version(msgspec.Struct):
    version: int


class _Stored(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    version: int
    epoch: _Number
    master: _NameOrEmpty
    incarnation: _Number
    in_sync: Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]


def encode(record: Record) -> str:
    """Return the JSON of a record. Raises RecordError if `decode` would reject it."""
    stored = _Stored(VERSION, record.epoch, record.master, record.incarnation, sorted(record.in_sync))
    text = msgspec.json.encode(stored).decode()
    decode(text)
    return text


def decode(text: str | bytes) -> Record:
    """Return the record of a JSON text. Raises RecordError."""
    if len(text) > MAX_TEXT_BYTES:
        raise RecordError(f"{len(text)} bytes exceed the limit of {MAX_TEXT_BYTES}")
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version != VERSION:
            raise RecordError(f"version {version} is not supported, only {VERSION}: upgrade this broker")
        stored = msgspec.json.decode(text, type=_Stored)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RecordError(str(error)[:200]) from error
    in_sync = frozenset(stored.in_sync)
    if len(in_sync) < len(stored.in_sync):
        raise RecordError("a member is listed twice in inSync")
    if stored.master and not stored.epoch:
        raise RecordError(f"epoch 0 has the master {stored.master!r}")
    if stored.master and stored.master not in in_sync:
        raise RecordError(f"the master {stored.master!r} is not in inSync")
    return Record(stored.epoch, stored.master, stored.incarnation, in_sync)
