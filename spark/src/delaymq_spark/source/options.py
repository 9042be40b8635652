"""Options of `rocketmq_store`: parsing and error messages."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from delaymq.message.errors import LevelTableError
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels

from delaymq_spark.source.schema import COLUMNS, DEFAULT_COLUMNS, SKIPPED, TYPES
from delaymq_spark.source.times import parse_time_ms
from delaymq_spark.store.address import StorePath, check_store_path, with_token

DEFAULT_SPLIT_BYTES: Final = 128 << 20
MIN_SPLIT_BYTES: Final = 1 << 12
"""Smaller parts take longer to start than to read."""
MIN_TRIGGER_BYTES: Final = 1 << 12
"""With a smaller limit, each batch would have only a few messages."""
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_SIZE = re.compile(r"(\d{1,15})\s*([a-z]*)\Z", re.ASCII)
_KNOWN: Final = (
    "path", "paths", "columns", "verify", "splitBytes", "from", "until", "topics", "delayLevels", "startingOffset",
    "pushdown", "maxBytesPerTrigger", "failOnDataLoss", "token",
)  # fmt: skip


class OptionError(ValueError):
    """An invalid option; the message states the valid values."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Parsed options of a read."""

    paths: tuple[StorePath, ...]
    """Stores, at least one; each contains the option `token`, which is omitted from representations."""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    """Columns in order; `skipped`, if it is among them, comes last."""
    verify: bool = False
    """Whether to verify the checksums of bodies (column crc_ok)."""
    split_bytes: int = DEFAULT_SPLIT_BYTES
    from_ms: int | None = None
    """Records of an earlier store time are omitted."""
    until_ms: int | None = None
    """Records of this store time and later are omitted."""
    topics: frozenset[str] | None = None
    delay_levels: str = DEFAULT_LEVELS
    """The broker's messageDelayLevel; it determines due times of messages delayed by RocketMQ's broker."""
    pushdown: bool = False
    """Whether the reader evaluates Spark's filters; requires spark.sql.python.filterPushdown.enabled."""
    starting_offset: str = "earliest"
    """Start of a stream: `earliest`, `latest`, or the physical offset of a record."""
    max_trigger_bytes: int | None = None
    """Approximate size of a stream's batch, in bytes of the log; None for no limit."""
    fail_on_data_loss: bool = True
    """Whether a stream fails if a part of the log is missing or unreadable."""

    @property
    def path(self) -> StorePath:
        """The first store; the only one of a stream."""
        return self.paths[0]


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse options; their names are case-insensitive. OptionError, StorePathError."""
    known = {name.lower(): name for name in _KNOWN}
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            meant = f": did you mean {known[near[0]]}?" if near else f": use {', '.join(_KNOWN)}"
            raise OptionError(f"unknown option {name[:60]!r}{meant}")
        given[known[name.lower()]] = str(value)
    from_ms, until_ms = _time_ms("from", given.get("from")), _time_ms("until", given.get("until"))
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise OptionError(
            f"from ({given['from']}) is not earlier than until ({given['until']}): use an earlier time for from"
        )
    limit = given.get("maxBytesPerTrigger", "")
    return SourceOptions(
        paths=_paths(given),
        columns=_columns(given.get("columns")),
        verify=_boolean("verify", given.get("verify", "false")),
        split_bytes=_bytes("splitBytes", given.get("splitBytes", str(DEFAULT_SPLIT_BYTES)), MIN_SPLIT_BYTES),
        from_ms=from_ms,
        until_ms=until_ms,
        topics=_words(given.get("topics")),
        delay_levels=_levels(given.get("delayLevels", DEFAULT_LEVELS)),
        pushdown=_boolean("pushdown", given.get("pushdown", "false")),
        starting_offset=_starting_offset(given.get("startingOffset", "earliest")),
        max_trigger_bytes=_bytes("maxBytesPerTrigger", limit, MIN_TRIGGER_BYTES) if limit.strip() else None,
        fail_on_data_loss=_boolean("failOnDataLoss", given.get("failOnDataLoss", "true")),
    )


def _paths(given: Mapping[str, str]) -> tuple[StorePath, ...]:
    """Return the stores given to `load`: Spark passes one path unchanged, and several as a JSON list."""
    stated = [given.get("path", "")]
    if "paths" in given:
        try:
            stated = json.loads(given["paths"])
        except (ValueError, RecursionError):
            stated = []
        if not isinstance(stated, list) or not stated or not all(isinstance(path, str) for path in stated):
            raise OptionError(f"paths is {given['paths'][:60]!r}: pass one store or a list of stores to load()")
    found = [with_token(check_store_path(path), given.get("token")) for path in stated]
    for number, path in enumerate(found):
        if path in found[:number]:
            raise OptionError(f"the store {path} is given twice, so its rows would count twice: give it once")
    return tuple(found)


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None or not text.strip():
        return DEFAULT_COLUMNS
    names: list[str] = []
    for word in text.split(","):
        name = word.strip()
        if name == "*":
            names += COLUMNS
        elif name in TYPES:
            names.append(name)
        else:
            near = difflib.get_close_matches(name, TYPES, 1)
            meant = f"did you mean {near[0]}?" if near else f"use {', '.join(TYPES)}"
            raise OptionError(f"columns: unknown column {name[:60]!r}: {meant}")
    of_records = tuple(name for name in dict.fromkeys(names) if name != SKIPPED)
    return (*of_records, SKIPPED) if SKIPPED in names else of_records


def _boolean(name: str, text: str) -> bool:
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    raise OptionError(f"{name} is {text[:60]!r}: use true or false")


def _bytes(name: str, text: str, least: int) -> int:
    match = _SIZE.match(text.strip().lower())
    count = int(match[1]) * _UNITS.get(match[2], 0) if match is not None else 0
    if count < least:
        raise OptionError(f"{name} is {text[:60]!r}: use at least {least} bytes, such as 134217728 or 128m")
    return count


def _time_ms(name: str, text: str | None) -> int | None:
    if text is None or not text.strip():
        return None
    word = text.strip()
    try:
        return parse_time_ms(word)
    except ValueError:
        raise OptionError(
            f"{name} is {word[:60]!r}: use a time such as 2026-01-31T08:00:00 (UTC unless it has an offset), or ms "
            "since 1970"
        ) from None


def _words(text: str | None) -> frozenset[str] | None:
    words = frozenset(word.strip() for word in (text or "").split(",") if word.strip())
    return words or None


def _levels(text: str) -> str:
    try:
        DelayLevels.parse(text)
    except LevelTableError as error:
        raise OptionError(f"delayLevels: {error}") from None
    return text


def _starting_offset(text: str) -> str:
    word = text.strip().lower()
    if word in ("earliest", "latest") or (word.isascii() and word.isdigit() and len(word) <= 19):
        return word
    raise OptionError(f"startingOffset is {text[:60]!r}: use earliest, latest, or the physical offset of a record")
