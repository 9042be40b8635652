"""The words of an SQL92 expression, split as RocketMQ 4.9 does."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# A client's heartbeat carries the text; an address list of some thousand values still fits.
MAX_CHARACTERS: Final = 32_768

KEYWORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})
END: Final = "end"
NAME: Final = "name"
STRING: Final = "string"
INTEGER: Final = "integer"
DECIMAL: Final = "decimal"
BAD: Final = "bad"

# A comment of one line needs the line's end; without it `--` is two signs. Numbers: the longest reading wins.
_WORD: Final = re.compile(
    r"(?P<skipped>[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)"
    r"|(?P<decimal>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])"
    r"|(?P<bad>.)",
    re.DOTALL,
)


class Word(NamedTuple):
    """One word and where it begins."""

    kind: str
    """A keyword in capitals, a sign such as `<=`, or one of END, NAME, STRING, INTEGER, DECIMAL, BAD."""
    text: str
    position: int


def words_of(text: str) -> list[Word]:
    """All words, END last. What is no word is BAD, and is an error only where the grammar gets to it."""
    words = []
    for match in _WORD.finditer(text):
        kind, found = match.lastgroup, match.group()
        if kind == "skipped":
            continue
        if kind == "sign":
            kind = found
        elif kind == "name" and found.upper() in KEYWORDS:
            kind = found.upper()
        words.append(Word(kind or BAD, found, match.start()))
        if kind == BAD:
            break
    words.append(Word(END, "", len(text)))
    return words


def place_of(text: str, position: int) -> str:
    """`line 1, column 7` of a character."""
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - (before.rfind(chr(10)) + 1) + 1}"
