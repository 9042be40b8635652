"""The words of an SQL92 expression, split as RocketMQ 4.9 does."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
# A comment of one line needs the line's end; without it `--` is two signs. Numbers: the longest reading wins.
_WORD: Final = re.compile(r"(?P<skipped>[ \t\n\r\f]+|" + _COMMENT + _ANY_WORD, re.DOTALL)
# Behind the last line's end: nobody looks for one at each of thousands of signs.
_WORD_OF_LAST_LINE: Final = re.compile(r"(?P<skipped>[ \t\n\r\f]+|" + _ANY_WORD, re.DOTALL)


class Token(NamedTuple):
    """One word and where it begins."""

    kind: str
    """A keyword in capitals, a sign such as `<=`, or one of END, NAME, STRING, INTEGER, DECIMAL, BAD."""
    text: str
    position: int


class Tokens:
    """The words of a text by number, END last; split only as far as somebody asks.

    What is no word is BAD, and is an error only where the grammar gets to it. Most of a text that makes no sense is
    never looked at: a reader that gives up at a word has not paid for the thousands behind it.
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
        assert match is not None  # any character is BAD at least
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
    """`line 1, column 7` of a character."""
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - (before.rfind(chr(10)) + 1) + 1}"
