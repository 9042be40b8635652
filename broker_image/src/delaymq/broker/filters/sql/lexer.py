"""Lexer for SQL92 expressions, which splits tokens as RocketMQ 4.9 does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_CHARACTERS: Final = 32_768
"""A heartbeat carries the text. This length suffices for an IN list of some thousand values."""

KEYWORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})
END: Final = "end"
NAME: Final = "name"
STRING: Final = "string"
INTEGER: Final = "integer"
DECIMAL: Final = "decimal"
BAD: Final = "bad"

_COMMENT: Final = r"--[^\n\r]*+(?:\r\n|\n|\r)|"
_ANY_WORD: Final = (
    r"/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)"
    r"|(?P<decimal>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])"
    r"|(?P<bad>.)"
)
_WORD: Final = re.compile(r"(?P<skipped>[ \t\n\r\f]+|" + _COMMENT + _ANY_WORD, re.DOTALL)
"""A line comment needs a line end; without it, `--` is two signs. For numbers, the longest match wins."""
_WORD_OF_LAST_LINE: Final = re.compile(r"(?P<skipped>[ \t\n\r\f]+|" + _ANY_WORD, re.DOTALL)
"""For the last line: avoids searching for a line end at each of thousands of signs."""


class Token(NamedTuple):
    """One token and its position."""

    kind: str
    """A keyword in capitals, a sign such as `<=`, or one of END, NAME, STRING, INTEGER, DECIMAL, BAD."""
    text: str
    position: int


class Tokens:
    """Tokens of a text by number, END last. The text is split only as far as it is read.

    Invalid text becomes a BAD token, which is an error only if the parser reaches it. Most of an invalid text is
    therefore never split.
    """

    def __init__(self, text: str) -> None:
        self._rest = _words(text)
        self._known: list[Token] = []

    def __getitem__(self, number: int) -> Token:
        known = self._known
        while len(known) <= number:
            known.append(next(self._rest))
        return known[number]


def _words(text: str) -> Iterator[Token]:
    at, end = 0, len(text)
    last_line_at = max(text.rfind("\n"), text.rfind("\r")) + 1
    while at < end:
        match = (_WORD if at < last_line_at else _WORD_OF_LAST_LINE).match(text, at)
        assert match is not None  # any other character matches BAD
        kind, found, begin = match.lastgroup, match.group(), at
        at = match.end()
        if kind == "skipped":
            continue
        if kind == "sign":
            kind = found
        elif kind == "name" and found.upper() in KEYWORDS:
            kind = found.upper()
        yield Token(kind or BAD, found, begin)
    while True:
        yield Token(END, "", end)


def place_of(text: str, position: int) -> str:
    """Return the place of a character, such as `line 1, column 7`."""
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - (before.rfind(chr(10)) + 1) + 1}"
