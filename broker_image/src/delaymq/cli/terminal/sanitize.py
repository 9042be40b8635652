"""Sanitising of text from outside: nothing in it moves the cursor, sets colours or titles, or reverses lines."""

from __future__ import annotations

import json
import unicodedata
from typing import Final

_ACTING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control, format (such as right-to-left overrides), lone surrogates, and the two separators that end lines."""
_JOINERS: Final = "\u200c\u200d"
"""Required by scripts and emoji; they affect only adjacent characters."""


def visible(text: str) -> str:
    """Return `text` with terminal control characters escaped (`\\x1b`); line ends and tabs are kept."""
    return _escaped(text, _JOINERS + "\n\t")


def on_one_line(text: str) -> str:
    """Return `text` as `visible` does, with line ends and tabs escaped, too."""
    return _escaped(text, _JOINERS)


def json_line(value: object) -> str:
    """Return `value` as one line of JSON without control characters, of which JSON itself escapes only some."""
    line = json.dumps(value, ensure_ascii=False)
    if line.isprintable():
        return line
    return "".join(json.dumps(each)[1:-1] if _acts(each, _JOINERS) else each for each in line)


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(each.encode("unicode_escape").decode() if _acts(each, kept) else each for each in text)


def _acts(character: str, kept: str) -> bool:
    return character not in kept and unicodedata.category(character) in _ACTING
