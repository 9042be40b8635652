"""Random SQL92 expressions and messages, valid or almost valid, reproducible from a seed."""

import random

NAMES = ("a", "b", "c", "Name_1", "$d", "missing")
INTEGERS = ("0", "1", "2", "5", "-1", "10", "007", "+5", "2147483647", "2147483648", "9223372036854775807")
STRINGS = (
    *INTEGERS, "x", "y", "X", "true", "TRUE", "false", "1.5", "5.0", "1e3", ".5", "5.", "-0.0", "0.0", "NaN",
    "Infinity", "-Infinity", "1d", "2.5f", "0x1p3", " 5", "5 ", "1_0", "nan", "inf", "it's", "é", "中", "٣", "😀",
    "9223372036854775808", "-2147483649", "1e400", "-", "+", "a b", "0x10", "1L",
)  # fmt: skip
NUMBERS = (
    "0", "1", "2", "5", "10", "5L", "7l", "2147483647", "2147483648", "9223372036854775807", "1.5", "5.0", "5.", ".5",
    "1e3", "1E-3", "2.5e+2", "007.5", "1e308", "4.9E-324", "3.",
)  # fmt: skip
BROKEN = (
    "0.0", "9223372036854775808", "1e400", "1e-400", "00", "0L", "0x10", "'open", '"x"', "!=", "==", "%", ";", "NULL",
    "LIKE 'x'", "IN (1)", "IN ()", "IN ('a'", "BETWEEN 5 AND 1", "BETWEEN 'a' AND 'b'", "IS", "NOT", ")", "(", "AND",
    "--", "/*",
)  # fmt: skip
ORDERS = ("<", "<=", ">", ">=")
BLANKS = (" ", "  ", "\n", "\t", " /* c */ ", " -- c\n", "\f", "/**/")


def text_of(value: str) -> str:
    """Return a string's literal."""
    return "'" + value.replace("'", "''") + "'"


class Expressions:
    """Generates expressions: mostly by the grammar, occasionally with a fault."""

    def __init__(self, random_: random.Random, *, fault_ratio: float) -> None:
        self._random = random_
        self._fault_ratio = fault_ratio

    def expression(self) -> str:
        """Return a complete expression."""
        words = self._condition(self._random.randint(0, 4))
        if self._random.random() < self._fault_ratio:
            self._spoil(words)
        text = ""
        for word in words:
            # Blanks may be omitted only next to signs; elsewhere words would merge.
            text += word + (self._random.choice(BLANKS) if self._random.random() < 0.2 else " ")
        return text

    def message(self) -> dict[str, str]:
        """Return random properties."""
        names = [name for name in NAMES[:-1] if self._random.random() < 0.7]
        return {name: self._random.choice(STRINGS) for name in names}

    def _spoil(self, words: list[str]) -> None:
        at = self._random.randrange(len(words) + 1)
        kind = self._random.randrange(4)
        if kind == 0 and at < len(words):
            del words[at]
        elif kind == 1:
            words.insert(at, self._random.choice(BROKEN))
        elif kind == 2 and at < len(words):
            words[at] = self._random.choice((*BROKEN, *words))
        else:
            words.append(self._random.choice((*BROKEN, *NAMES, "'x'", "5")))

    def _keyword(self, word: str) -> str:
        return self._random.choice((word, word, word.lower(), word.title()))

    def _condition(self, depth: int) -> list[str]:
        if depth <= 0:
            return self._comparison()
        left = self._condition(depth - 1)
        kind = self._random.randrange(8)
        if kind < 3:
            return [*left, self._keyword("AND"), *self._condition(depth - 1)]
        if kind < 5:
            return [*left, self._keyword("OR"), *self._condition(depth - 1)]
        if kind == 5:
            return [self._keyword("NOT"), "(", *left, ")"]
        if kind == 6:
            return ["(", *left, ")", self._random.choice(("=", "<>")), *self._operand()]
        return ["(", *left, ")"]

    def _comparison(self) -> list[str]:
        kind = self._random.randrange(12)
        name = self._random.choice(NAMES)
        if kind < 3:
            return [*self._operand(), self._random.choice(("=", "<>")), *self._operand()]
        if kind < 6:
            return [*self._measure(), self._random.choice(ORDERS), *self._measure()]
        if kind == 6:
            negation = [self._keyword("NOT")] if self._random.random() < 0.4 else []
            low, high = sorted(self._random.sample(range(-3, 20), 2))
            return [name, *negation, self._keyword("BETWEEN"), str(low), self._keyword("AND"), str(high)]
        if kind == 7:
            return [*self._measure(), "BETWEEN", *self._measure(), "AND", *self._measure()]
        if kind == 8:
            negation = [self._keyword("NOT")] if self._random.random() < 0.4 else []
            count = self._random.choice((1, 2, 6))
            strings = [text_of(self._random.choice(STRINGS)) for _ in range(count)]
            return [name, *negation, self._keyword("IN"), "(", " , ".join(strings), ")"]
        if kind == 9:
            negation = ["NOT"] if self._random.random() < 0.5 else []
            return [*self._operand(), self._keyword("IS"), *negation, self._keyword("NULL")]
        if kind == 10:
            return [self._random.choice((name, "TRUE", "FALSE", "NULL", f"NOT {name}"))]
        return [name, "=", self._random.choice(("TRUE", "FALSE", text_of("x")))]

    def _measure(self) -> list[str]:
        """Return an operand for size comparisons: a number or a property."""
        kind = self._random.randrange(6)
        if kind < 3:
            return [self._random.choice(NAMES)]
        sign = ["-"] * (kind == 4) + ["+"] * (kind == 5)
        return [*sign, self._random.choice(NUMBERS if kind < 5 else (*NUMBERS, *NAMES))]

    def _operand(self) -> list[str]:
        """Return an operand for equality comparisons."""
        kind = self._random.randrange(8)
        if kind < 3:
            return [self._random.choice(NAMES)]
        if kind < 5:
            return [text_of(self._random.choice(STRINGS))]
        if kind == 5:
            return [self._random.choice(("TRUE", "false"))]
        if kind == 6:
            return self._measure()
        return ["(", *self._measure(), self._random.choice(ORDERS), *self._measure(), ")"]
