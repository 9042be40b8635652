"""What others wrote, made fit for a terminal: nothing in it moves the cursor, colours, retitles or turns lines."""

from __future__ import annotations

import json
import unicodedata
from typing import Final

# Control, format (such as right-to-left overrides), lone surrogates, and the two separators that end lines.
_ACTING: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS: Final = "\u200c\u200d"
"""Scripts and emoji need them; they only act on their neighbours."""


def visible(text: str) -> str:
    """`text` with everything that acts on a terminal as an escape (`\\x1b`); line ends and tabs stay."""
    return _escaped(text, _JOINERS + "\n\t")


def on_one_line(text: str) -> str:
    """As `visible`, with line ends and tabs as escapes, too."""
    return _escaped(text, _JOINERS)


def json_line(value: object) -> str:
    """JSON on one line, as `visible`: JSON itself escapes a part of what acts only."""
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
