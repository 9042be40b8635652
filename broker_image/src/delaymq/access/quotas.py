"""Quotas of an account in a rule file: parsing, defaults, and the form in which they are written.

    defaultQuotas:                   # for the accounts of this file without admin: true
      sendBytesPerSecond: 10000000
    accounts:
    - accessKey: orders-service
      secretKey: 2f9c41e07b
      quotas:
        sendRequestsPerSecond: 500
        connections: unlimited       # in spite of a default

The keys are DelayMQ's. Unlike other unknown keys of a rule file, unknown quotas are errors: a misspelt quota would
otherwise limit nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from delaymq.access.errors import AccessError
from delaymq.access.yaml_tree import Tree

QUOTAS: Final = "quotas"
"""Key of an account's quotas."""
DEFAULT_QUOTAS: Final = "defaultQuotas"
"""Key of a file's defaults."""
UNLIMITED: Final = -1
"""Value of a quota without a limit, `unlimited` in files; unlike None, it overrides a default."""
MAX_NUMBER: Final = (1 << 53) - 1
"""Largest whole number that every JSON reader represents exactly."""
DEFAULT_MAX_DELAY_MS: Final = 1_000
MAX_DELAY_MS: Final = 10_000
MIN_DELAY_MS: Final = 10
_UNLIMITED_WORD: Final = "unlimited"
_DEFAULT_WORD: Final = "default"
_MAX_DIGITS: Final = 16
_SHOWN_CHARACTERS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Quotas:
    """Quotas of one account. None: the default of the file applies, otherwise there is no limit."""

    send_bytes_per_second: int | None = None
    send_requests_per_second: int | None = None
    pull_bytes_per_second: int | None = None
    pull_requests_per_second: int | None = None
    requests_per_second: int | None = None
    """All requests, including sends and pulls."""
    event_loop_percent: int | None = None
    """Share of the event loop's time."""
    connections: int | None = None
    held_pulls: int | None = None
    created_topics: int | None = None
    """Topics created by use since the start of the broker."""
    created_groups: int | None = None
    max_delay_ms: int | None = None
    """Longest time for which an account that exceeds a rate is delayed before its requests are rejected."""

    def over(self, defaults: Quotas | None) -> Quotas:
        """Return these quotas, completed by `defaults`."""
        if defaults is None:
            return self
        missing = {name: getattr(defaults, name) for name in NAMES.values() if getattr(self, name) is None}
        return replace(self, **missing)

    def changed(self, changes: Mapping[str, int | None]) -> Quotas | None:
        """Return the quotas with some of their fields replaced; None if none is left."""
        changed = replace(self, **changes)
        return None if changed == Quotas() else changed

    def stated(self) -> dict[str, int | str]:
        """Return the keys and values as in files."""
        values = ((key, getattr(self, name)) for key, name in NAMES.items())
        return {key: _UNLIMITED_WORD if value == UNLIMITED else value for key, value in values if value is not None}

    def limits(self) -> Iterator[tuple[str, int]]:
        """Yield the key and the value of each quota that limits something."""
        for key, name in NAMES.items():
            value = getattr(self, name)
            if value is not None and value != UNLIMITED and key != MAX_DELAY:
                yield key, value


def _key(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


NAMES: Final[Mapping[str, str]] = {_key(each.name): each.name for each in fields(Quotas)}
"""Fields by the keys that files use."""
MAX_DELAY: Final = "maxDelayMs"
RATES: Final = frozenset(key for key in NAMES if key.endswith(("PerSecond", "Percent")))
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(RATES, (1, MAX_NUMBER)),
    "eventLoopPercent": (1, 100),
    MAX_DELAY: (MIN_DELAY_MS, MAX_DELAY_MS),
    "connections": (1, MAX_NUMBER),
}
"""Smallest and largest values; all others begin at 0."""


def read_quotas(tree: Tree, about: str) -> Quotas | None:
    """Return the quotas of a file, None without any; raise AccessError with `about` if they are invalid."""
    if tree is None:
        return None
    if not isinstance(tree, dict):
        raise AccessError(f"{about}: use one `QUOTA: NUMBER` per line below it")
    values: dict[str, int] = {}
    for key, value in tree.items():
        if key not in NAMES:
            # Text after a colon without a blank is part of the key.
            shown = key.partition(":")[0][:_SHOWN_CHARACTERS]
            raise AccessError(f"{about}: unknown quota {shown!r}: use {', '.join(NAMES)}")
        if value is not None:
            values[NAMES[key]] = _number(key, value, about)
    return Quotas(**values) if values else None


def read_changes(text: str) -> dict[str, int | None]:
    """Return the fields that request 50 changes: `KEY=VALUE`, separated by commas.

    A value is a number or `unlimited` as in a file, or `default` for none. Raises AccessError if the text is invalid.
    """
    changes: dict[str, int | None] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in NAMES:
            shown = part[:_SHOWN_CHARACTERS]
            raise AccessError(f"quotas: {shown!r} is not a quota: use KEY=NUMBER with {', '.join(NAMES)}")
        if NAMES[key] in changes:
            raise AccessError(f"quotas: {key} occurs twice: state it once")
        number = int(value) if value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS else value
        changes[NAMES[key]] = None if value == _DEFAULT_WORD else _number(key, number, "quotas")
    return changes


def _number(key: str, value: Tree, about: str) -> int:
    low, high = _RANGES.get(key, (0, MAX_NUMBER))
    if value == _UNLIMITED_WORD and key != MAX_DELAY:
        return UNLIMITED
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    shown = repr(value)[:_SHOWN_CHARACTERS] if isinstance(value, str | int | float) else "not a number"
    choice = "" if key == MAX_DELAY else ", or unlimited"
    raise AccessError(f"{about}: {key} is {shown}: use a whole number from {low} to {high}{choice}")


def quota_lines(quotas: Quotas | None, key: str, indent: str) -> Iterator[str]:
    """Yield the lines of a file for these quotas."""
    if quotas is None:
        return
    yield f"{indent}{key}:"
    yield from (f"{indent}  {each}: {value}" for each, value in quotas.stated().items())
