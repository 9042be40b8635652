"""White lists: addresses of peers that need no signature, in the formats of RocketMQ's files.

`*`, `10.0.0.7`, `10.0.0.*`, `10.0.1-3.*`, `10.0.0.{7,9}`, several separated by commas, and the same for IPv6
(`2::ac5:78:*`).
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterable
from typing import Final

from delaymq.access.errors import AccessError

EVERYBODY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
MAX_ALTERNATIVES: Final = 1_024
"""Maximum alternatives in braces, and patterns in a list; all are checked at the first request of a peer."""
REMEMBERED_PEERS: Final = 4_096
"""Maximum cached addresses, so that peers with many addresses cannot exhaust the memory."""
_COMMA: Final = re.compile(r",(?![^{]*\})")
_GROUPS: Final = struct.Struct(">8H")
_SHOWN_CHARACTERS: Final = 100

Ranges = tuple[tuple[int, int], ...]
"""Ranges of one part of an address: from, to."""
Pattern = tuple[Ranges, ...]
"""Pattern of four parts, or eight for IPv6."""


class WhiteList:
    """Addresses that are trusted without a signature."""

    __slots__ = ("_known", "_patterns")

    def __init__(self, texts: Iterable[str]) -> None:
        """Parse the addresses; raise AccessError with the text of an invalid one."""
        self._patterns: list[Pattern] | None = []
        self._known: dict[bytes, bool] = {}
        for text in texts:
            for one in split_list(text):
                if one in EVERYBODY:
                    self._patterns = None
                elif self._patterns is not None:
                    self._patterns.append(parse_pattern(one))
                    if len(self._patterns) > MAX_ALTERNATIVES:
                        raise AccessError(f"a white list has more than {MAX_ALTERNATIVES} entries: use ranges")

    def __bool__(self) -> bool:
        return self._patterns is None or bool(self._patterns)

    def matches(self, remote_host: bytes) -> bool:
        """Return whether a peer (packed by message.ids.pack_host) is listed."""
        if self._patterns is None:
            return True
        address = remote_host[:-4]
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= REMEMBERED_PEERS:
                self._known.clear()
            parts = tuple(address) if len(address) == 4 else _GROUPS.unpack(address)
            known = self._known[address] = any(_fits(pattern, parts) for pattern in self._patterns)
        return known


def split_list(text: str) -> list[str]:
    """Split a list at its commas, except within braces."""
    return [word.strip() for word in _COMMA.split(text) if word.strip()]


def parse_pattern(text: str) -> Pattern:
    """Parse one address or range of addresses; raise AccessError if it is invalid."""
    try:
        return _version_6(text) if ":" in text else _version_4(text)
    except ValueError as error:
        # The error of `ipaddress` repeats the whole text.
        shown, why = text[:_SHOWN_CHARACTERS], str(error)[: 2 * _SHOWN_CHARACTERS]
        raise AccessError(
            f"Netaddress examine Exception netaddress is {shown!r}: {why}; use an address, or a pattern such as"
            " 10.0.0.*, 10.0.0.1-20 or 10.0.0.{1,2}"
        ) from error


def _fits(pattern: Pattern, parts: tuple[int, ...]) -> bool:
    return len(pattern) == len(parts) and all(
        any(low <= part <= high for low, high in ranges) for ranges, part in zip(pattern, parts, strict=True)
    )


def _version_4(text: str) -> Pattern:
    words = text.split(".")
    if len(words) != 4:
        raise ValueError("an IPv4 address must have four parts")
    return tuple(_part(word.strip(), 10, 255) for word in words)


def _version_6(text: str) -> Pattern:
    if not any(character in text for character in "*-{"):
        address = ipaddress.IPv6Address(text)
        if address.ipv4_mapped is not None:
            return _version_4(str(address.ipv4_mapped))
        return tuple(((group, group),) for group in _GROUPS.unpack(address.packed))
    head, gap, tail = text.partition("::")
    if "::" in tail:
        raise ValueError("`::` occurs twice")
    before = head.split(":") if head else []
    after = tail.split(":") if tail else []
    missing = 8 - len(before) - len(after)
    if missing < 0 or (missing > 0) is not bool(gap):
        raise ValueError("an IPv6 address must have eight groups")
    return tuple(_part(word.strip(), 16, 0xFFFF) for word in [*before, *["0"] * missing, *after])


def _part(word: str, base: int, highest: int) -> Ranges:
    if word == "*":
        return ((0, highest),)
    if word.startswith("{") and word.endswith("}"):
        choices = [choice.strip() for choice in word[1:-1].split(",")]
        if len(choices) > MAX_ALTERNATIVES:
            raise ValueError(f"more than {MAX_ALTERNATIVES} alternatives")
        return tuple((number, number) for number in (_number(choice, base, highest) for choice in choices))
    low, dash, high = word.partition("-")
    first = _number(low.strip(), base, highest)
    last = _number(high.strip(), base, highest) if dash else first
    if last < first:
        raise ValueError(f"the range {word} ends before it starts")
    return ((first, last),)


def _number(word: str, base: int, highest: int) -> int:
    digits = "0123456789abcdefABCDEF" if base == 16 else "0123456789"
    if not 0 < len(word) <= 4 or any(character not in digits for character in word):
        raise ValueError(f"{word[:20]!r} is not a valid part of an address")
    number = int(word, base)
    if number > highest:
        raise ValueError(f"{word} is above {highest}")
    return number
