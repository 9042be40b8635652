"""Parser for RocketMQ 4.9's SQL92 grammar, including its peculiarities (docs/concepts.md, "Filters").

`NOT` and signs bind closest, then `< <= > >= BETWEEN IN`, then `= <> IS`, then `AND`, then `OR`. As in RocketMQ, text
after a complete expression is ignored; `Parsed.ignored` reports it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from delaymq.broker.filters.sql.ast import (
    And,
    Comparison,
    Constant,
    Equals,
    Exists,
    In,
    IsNull,
    Negative,
    Node,
    Not,
    Or,
    Order,
    Property,
)
from delaymq.broker.filters.sql.lexer import (
    BAD,
    DECIMAL,
    END,
    INTEGER,
    MAX_CHARACTERS,
    NAME,
    STRING,
    Token,
    Tokens,
    place_of,
)
from delaymq.broker.filters.sql.values import MAX_INT, MAX_LONG, is_before

MAX_DEPTH: Final = 64
"""Each level of parentheses or signs takes some stack frames of this parser, and later of Python's compiler."""
MAX_COMPARISONS: Final = 128
"""Code is generated on the event loop, in about 0.1 ms for each comparison."""
MAX_PARTS: Final = 2 * MAX_COMPARISONS
"""Operands of AND and OR. Conditions without a comparison, such as TRUE, also become code."""
MAX_LINKS: Final = 32
"""Links of `a = b = c`. Each is one level of the tree."""

_ORDERS: Final[dict[str, Order]] = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CONDITIONS: Final = (Exists, Not, And, Or, Equals, Comparison, In, IsNull)
_HINTS: Final = {
    '"': "write strings in single quotes",
    "!": "write <> for not equal",
    "'": "the string is not closed",
    "%": "arithmetic is not supported",
    "*": "arithmetic is not supported",
    "/": "arithmetic is not supported",
    "&": "write AND",
    "|": "write OR (tag expressions need the type TAG)",
}


class SqlError(Exception):
    """Invalid expression. The message states the position and the remedy."""


class Parsed(NamedTuple):
    """A complete expression."""

    condition: Node
    cost: int
    """Number of comparisons, or of operands that AND and OR join after the first, whichever is larger; at least 1."""
    ignored: str
    """Start and position of the text that is ignored; empty if none is."""


def parse(text: str) -> Parsed:
    """Return the syntax tree of `text`. Raises SqlError if RocketMQ would reject it or it exceeds the limits."""
    if len(text) > MAX_CHARACTERS:
        raise SqlError(f"the expression has {len(text)} characters (limit: {MAX_CHARACTERS}): shorten it")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._words = Tokens(text)
        self._at = 0
        self._depth = 0
        self._comparisons = 0
        self._links = 0
        self._parts = 0

    def whole(self) -> Parsed:
        condition = self._condition(self._either(), self._words[0])
        word = self._next()
        ignored = ""
        if word.kind != END:
            rest = self._text[word.position : word.position + 40]
            ignored = f"{rest!r} at {place_of(self._text, word.position)} has no meaning"
        return Parsed(condition, max(self._comparisons, self._parts, 1), ignored)

    # Levels of the grammar, loosest first.

    def _either(self) -> Node:
        begin = self._next()
        left = self._both()
        if self._next().kind != "OR":
            return left
        parts = [self._condition(left, begin)]
        while self._take("OR"):
            begin = self._next()
            self._count_part(begin)
            parts.append(self._condition(self._both(), begin))
        return Or(tuple(parts))

    def _both(self) -> Node:
        begin = self._next()
        left = self._equality()
        if self._next().kind != "AND":
            return left
        parts = [self._condition(left, begin)]
        while self._take("AND"):
            begin = self._next()
            self._count_part(begin)
            parts.append(self._condition(self._equality(), begin))
        return And(tuple(parts))

    def _equality(self) -> Node:
        left = self._comparison()
        links = 0
        while (word := self._next()).kind in ("=", "<>", "IS"):
            self._at += 1
            self._count(word)
            links += 1
            self._links += links > 1
            if self._links > MAX_LINKS:
                raise self._error(word, f"more than {MAX_LINKS} chained equations: use AND")
            if word.kind == "IS":
                wanted = not self._take("NOT")
                self._expect("NULL", "IS NULL or IS NOT NULL")
                node: Node = IsNull(left)
            else:
                wanted = word.kind == "="
                node = self._equal(left, self._comparison(), word)
            left = node if wanted else Not(node)
        return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            word = self._next()
            order = _ORDERS.get(word.kind)
            if order is not None:
                self._at += 1
                left = self._compared(order, left, self._unary(), word)
            elif word.kind in ("BETWEEN", "IN"):
                self._at += 1
                left = self._range_or_list(left, word, wanted=True)
            elif word.kind == "NOT":
                self._at += 1
                following = self._next()
                if following.kind not in ("BETWEEN", "IN"):
                    raise self._error(word, "NOT must precede a condition, BETWEEN or IN")
                self._at += 1
                left = self._range_or_list(left, following, wanted=False)
            else:
                return left

    def _range_or_list(self, left: Node, word: Token, *, wanted: bool) -> Node:
        self._count(word)
        if word.kind == "BETWEEN":
            low = self._unary()
            self._expect("AND", "BETWEEN 1 AND 5")
            return self._between(left, low, self._unary(), word, wanted)
        self._expect("(", "IN ('a', 'b')")
        strings = {self._string()}
        while self._take(","):
            strings.add(self._string())
        self._expect(")", "IN ('a', 'b')")
        if not isinstance(left, Property):
            raise self._error(word, "the left side of IN must be a property")
        return In(left.name, frozenset(strings), wanted)

    def _unary(self) -> Node:
        word = self._next()
        if word.kind not in ("+", "-", "NOT"):
            return self._primary()
        self._at += 1
        self._deeper(word)
        begin = self._next()
        of = self._unary()
        self._depth -= 1
        if word.kind == "NOT":
            return Not(self._condition(of, begin))
        if word.kind == "+":
            return of
        if isinstance(of, Constant) and isinstance(of.value, (int, float)) and not isinstance(of.value, bool):
            return Constant(of.kind, -of.value, is_literal=False)
        return Negative(of)

    def _primary(self) -> Node:
        word = self._next()
        if word.kind == "(":
            self._at += 1
            self._deeper(word)
            node = self._either()
            self._depth -= 1
            self._expect(")", "a closing parenthesis")
            return node
        if word.kind == NAME:
            self._at += 1
            return Property(word.text)
        if word.kind == STRING:
            return Constant("string", self._string())
        if word.kind in (INTEGER, DECIMAL):
            self._at += 1
            return self._number(word)
        if word.kind in ("TRUE", "FALSE", "NULL"):
            self._at += 1
            return Constant("null", None) if word.kind == "NULL" else Constant("boolean", word.kind == "TRUE")
        raise self._unexpected(word, "a property name, a number, a string or a condition")

    def _number(self, word: Token) -> Constant:
        if word.kind == INTEGER:
            digits = word.text.rstrip("lL")
            if len(digits) > 19 or int(digits) > MAX_LONG:
                raise self._error(word, f"{digits[:24]} exceeds the largest 64-bit number, {MAX_LONG}")
            number = int(digits)
            return Constant("int" if number <= MAX_INT else "long", number)
        value = float(word.text)
        if value == 0 or value == float("inf"):
            raise self._error(
                word, f"{word.text[:24]} is too small or too large for a decimal number: write 0 for zero"
            )
        return Constant("double", value)

    def _string(self) -> str:
        word = self._next()
        if word.kind != STRING:
            raise self._unexpected(word, "a string such as 'a'")
        self._at += 1
        return word.text[1:-1].replace("''", "'")

    # Types that may be compared.

    def _condition(self, node: Node, begin: Token) -> Node:
        if isinstance(node, Property):
            return Exists(node.name)
        if isinstance(node, _CONDITIONS) or (isinstance(node, Constant) and node.kind in ("boolean", "null")):
            return node
        raise self._error(begin, "this is not a condition: compare it with a value")

    def _equal(self, left: Node, right: Node, word: Token) -> Node:
        for side in (left, right):
            if isinstance(side, Constant) and side.kind == "null":
                raise self._error(word, "nothing equals NULL: write IS NULL or IS NOT NULL")
        if _is_boolean(left) and isinstance(right, Constant) and right.is_literal and not _is_boolean(right):
            raise self._error(word, "TRUE and FALSE can be compared only with booleans")
        return Equals(left, right)

    def _compared(self, order: Order, left: Node, right: Node, word: Token) -> Node:
        self._count(word)
        for side in (left, right):
            is_number = isinstance(side, Constant) and side.kind in ("int", "long", "double")
            if not is_number and not isinstance(side, (Property, Negative)):
                raise self._error(word, f"{word.text} can be used only with numbers and properties")
        return Comparison(order, left, right)

    def _between(self, value: Node, low: Node, high: Node, word: Token, wanted: bool) -> Node:
        if (
            wanted
            and isinstance(low, Constant)
            and isinstance(high, Constant)
            and low.is_literal
            and high.is_literal
            and is_before(high, low)
        ):
            raise self._error(word, "the first value of BETWEEN must not be above the second")
        if wanted:
            return And((self._compared(">=", value, low, word), self._compared("<=", value, high, word)))
        return Or((self._compared("<", value, low, word), self._compared(">", value, high, word)))

    # Tokens.

    def _next(self) -> Token:
        word = self._words[self._at]
        if word.kind == BAD:
            hint = _HINTS.get(word.text, "remove it")
            raise self._error(word, f"{word.text!r} has no meaning here: {hint}")
        return word

    def _take(self, kind: str) -> bool:
        if self._next().kind != kind:
            return False
        self._at += 1
        return True

    def _expect(self, kind: str, example: str) -> None:
        if not self._take(kind):
            raise self._unexpected(self._next(), f"{kind} (as in {example})")

    def _deeper(self, word: Token) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            text = f"parentheses, NOT and signs are nested deeper than {MAX_DEPTH} levels: simplify the expression"
            raise self._error(word, text)

    def _count(self, word: Token) -> None:
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise self._error(word, f"more than {MAX_COMPARISONS} comparisons: combine some with IN, or use fewer")

    def _count_part(self, word: Token) -> None:
        self._parts += 1
        if self._parts >= MAX_PARTS:
            text = f"AND and OR join more than {MAX_PARTS} conditions: combine some with IN, or use fewer"
            raise self._error(word, text)

    def _unexpected(self, word: Token, wanted: str) -> SqlError:
        found = "the expression ends" if word.kind == END else f"unexpected {word.text[:32]!r}"
        return self._error(word, f"{found}, expected {wanted}{_word_hint(word, self._text)}")

    def _error(self, word: Token, why: str) -> SqlError:
        return SqlError(f"{place_of(self._text, word.position)}: {why}")


def _is_boolean(node: Node) -> bool:
    return isinstance(node, Constant) and node.kind == "boolean"


def _word_hint(word: Token, text: str) -> str:
    if word.kind == "=" and re.search(r"[=!<>]$", text[: word.position]):
        return "; write equality as ="
    if word.kind in (INTEGER, DECIMAL):
        return "; the values of IN must be strings"
    return ""
