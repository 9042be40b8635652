"""Syntax tree of an SQL92 expression.

Each node represents a value: a three-valued boolean (true, false, null) unless its docstring states otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NumberKind = Literal["int", "long", "double"]
"""Java's Integer, Long and Double. They differ in the strings that can be compared with them."""
Kind = Literal["string", "boolean", "null", "int", "long", "double"]
Order = Literal["<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal value; the kind is "null" for NULL."""

    kind: Kind
    value: str | bool | int | float | None
    is_literal: bool = True
    """False for a literal with a sign, for which the rules for literals do not apply."""


@dataclass(frozen=True, slots=True)
class Property:
    """A message's property: a string, or null if the message does not have it."""

    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    """The negative of a value that is not a number: always null, but `of` is evaluated."""

    of: Node


@dataclass(frozen=True, slots=True)
class Exists:
    """A property used as a condition: false if it exists, otherwise null, because strings are not booleans."""

    name: str


@dataclass(frozen=True, slots=True)
class Not:
    """Negation."""

    of: Node


@dataclass(frozen=True, slots=True)
class And:
    """Conjunction of all parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Disjunction of all parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Equals:
    """left = right."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Comparison:
    """left < right, or another order."""

    order: Order
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In:
    """Whether a property is one of these strings."""

    name: str
    strings: frozenset[str]
    wanted: bool
    """False for NOT IN."""


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether `of` is null. Never null itself."""

    of: Node


Node = Constant | Property | Negative | Exists | Not | And | Or | Equals | Comparison | In | IsNull
