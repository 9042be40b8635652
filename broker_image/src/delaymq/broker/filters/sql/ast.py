"""What an SQL92 expression consists of once it is read.

Each node stands for a value: a boolean of three values (true, false, null) unless it says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NumberKind = Literal["int", "long", "double"]
"""Java's Integer, Long and Double: they differ in which strings can be compared with them."""
Kind = Literal["string", "boolean", "null", "int", "long", "double"]
Order = Literal["<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that stands in the text; kind null for NULL."""

    kind: Kind
    value: str | bool | int | float | None
    is_literal: bool = True
    """False for what a sign made of a literal: the rules for literals do not hold for it."""


@dataclass(frozen=True, slots=True)
class Property:
    """A message's property: a string, or null when it is not there."""

    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    """The negative of what is no number: always null, after `of` was evaluated."""

    of: Node


@dataclass(frozen=True, slots=True)
class Exists:
    """A property in place of a condition: false when it is there, else null, as strings are no booleans."""

    name: str


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    of: Node


@dataclass(frozen=True, slots=True)
class And:
    """AND of all parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """OR of all parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Equals:
    """left = right."""

    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Comparison:
    """left < right, and so on."""

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
    """Whether `of` is null; never null itself."""

    of: Node


Node = Constant | Property | Negative | Exists | Not | And | Or | Equals | Comparison | In | IsNull
