"""SQL92 expressions: semantics, errors with positions, and limits."""

from collections.abc import Callable

import pytest
from delaymq.broker.filters import SQL_TYPE, compile_expression
from delaymq.broker.filters.sql.lexer import MAX_CHARACTERS
from delaymq.broker.filters.sql.parser import MAX_COMPARISONS, MAX_DEPTH, MAX_LINKS
from delaymq.message.properties import encode_properties
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError


def matcher(text: str) -> Callable[[bytes], bool]:
    properties = compile_expression(SQL_TYPE, text).properties
    assert properties is not None
    return properties


def matches(text: str, **properties: str) -> bool:
    return matcher(text)(encode_properties(properties))


def refusal(text: str) -> str:
    with pytest.raises(RequestError) as caught:
        compile_expression(SQL_TYPE, text)
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    return caught.value.remark


@pytest.mark.parametrize(
    "text",
    [
        "a = 'x'",
        "a <> 'y'",
        "n > 4 and n >= 5 AND n < 6 And n <= 5",
        "n = 5 AND n = 5.0 AND n = 5L",
        "n BETWEEN 5 AND 7",
        "n NOT BETWEEN 6 AND 7",
        "a IN ('w', 'x')",
        "a NOT IN ('w')",
        "gone IS NULL AND a IS NOT NULL",
        "t = TRUE AND t <> FALSE",
        "a = 'y' OR n = 5 AND a = 'x'",
        "NOT (a = 'y')",
        "q = 'it''s'",
        "m = -3 AND m < -2 AND m > - 4",
        "$d_1 = '1'",
        "a = 'x' -- the rest of the line\n AND /* not * this */ n = 5",
        "n > .5e1 OR n = 5.",
        "f > 1.0 AND f < 2.0",
        "n < big",
        "a = twin",
    ],
)
def test_condition_matches(text: str) -> None:
    message = {"a": "x", "n": "5", "t": "true", "q": "it's", "m": "-3", "$d_1": "1", "f": "1.5", "big": "1e3"}
    assert matches(text, **message, twin="x")


@pytest.mark.parametrize("text", ["a = 'x'", "a <> 'x'", "NOT (a = 'x')", "a > 1", "a IN ('x')", "a NOT IN ('x')", "a"])
def test_missing_property_is_neither_equal_nor_unequal(text: str) -> None:
    assert not matches(text, b="x")


def test_null_is_ignored_when_the_other_side_decides() -> None:
    assert matches("gone = 1 OR a = 'x'", a="x")
    assert not matches("NOT (gone = 1 AND a = 'x')", a="x")
    assert matches("NOT (gone = 1 AND a = 'y')", a="x")
    assert matches("gone = also_gone", a="x")


def test_non_numeric_string_ends_evaluation_unless_left_side_decided() -> None:
    assert not matches("a > 1 OR b = 'y'", a="x", b="y")
    assert matches("b = 'y' OR a > 1", a="x", b="y")
    assert not matches("a = 5", a="5.0")
    assert matches("a = 5.0", a="5")
    assert not matches("a = 1", a="2147483648")
    assert matches("a > 2147483648", a="2147483649")


def test_not_binds_tighter_than_comparison_as_in_rocketmq() -> None:
    assert not matches("NOT a = 'y'", a="x")
    assert matches("NOT a", a="x")


def test_last_of_duplicate_properties_wins() -> None:
    matches_two = matcher("a = '2'")
    assert matches_two(b"a\x011\x02a\x012")
    assert matches_two(b"a\x011\x02b\x01x\x02a\x012\x02")
    assert matches_two(b"a\x012\x02a\x01")
    assert not matches_two(b"a\x012\x02a\x013\x02b\x012")
    assert not matches_two(b"aa\x012")
    assert not matches_two(b"b\x01\x02\x02a\x02")


def test_invalid_utf8_matches_nothing_and_raises_nothing() -> None:
    for text in ("a = 'x'", "a > 5", "a = TRUE", "a > 5.5", "a > b"):
        assert not matcher(text)(b"a\x01\xff\xfe\x02b\x01\xff")


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("", "line 1, column 1", "the expression ends"),
        ("a >", "line 1, column 4", "the expression ends"),
        ("a = 'x", "line 1, column 5", "the string is not closed"),
        ('a = "x"', "line 1, column 5", "single quotes"),
        ("a == 1", "line 1, column 4", "write equality as ="),
        ("a != 1", "line 1, column 3", "<>"),
        ("a = 1 AND\n b IN (1)", "line 2, column 8", "the values of IN must be strings"),
        ("a > 'x'", "line 1, column 3", "numbers and properties"),
        ("a = NULL", "line 1, column 3", "IS NULL"),
        ("a BETWEEN 5 AND 1", "line 1, column 3", "must not be above"),
        ("a = 0.0", "line 1, column 5", "write 0"),
        ("a = 9223372036854775808", "line 1, column 5", "64-bit"),
        ("'x'", "line 1, column 1", "not a condition"),
        ("a = 1 OR 5", "line 1, column 10", "not a condition"),
        ("(a = 1", "line 1, column 7", ")"),
        ("a NOT 5", "line 1, column 3", "NOT must precede"),
    ],
)
def test_error_states_position_and_correction(text: str, place: str, hint: str) -> None:
    remark = refusal(text)
    assert remark.startswith("Invalid MessageSelector: ")
    assert place in remark
    assert hint in remark


def test_text_after_a_complete_expression_is_ignored_as_in_rocketmq() -> None:
    assert matches("a = 1 b = 2 %", a="1")


def test_hostile_expressions_are_rejected_and_the_largest_allowed_ones_work() -> None:
    assert "nested deeper" in refusal("(" * (MAX_DEPTH + 1) + "a = 1" + ")" * (MAX_DEPTH + 1))
    assert "nested deeper" in refusal("NOT " * 1_000 + "a")
    assert "nested deeper" in refusal("- " * 1_000 + "1 = 1")
    assert "comparisons" in refusal(" AND ".join(f"a = {i}" for i in range(MAX_COMPARISONS + 1)))
    assert "chained equations" in refusal("a" + " = a" * (MAX_LINKS + 2))
    assert "characters" in refusal("a" * (MAX_CHARACTERS + 1))
    compile_expression(SQL_TYPE, " AND ".join(f"a = {i}" for i in range(MAX_COMPARISONS)))
    compile_expression(SQL_TYPE, "NOT " * MAX_DEPTH + "a")
    many = ", ".join(f"'{i}'" for i in range(4_000))
    assert matches(f"a IN ({many})", a="3999")


def test_deeply_nested_conditions_equal_flat_ones() -> None:
    text = "a = 1"
    for _ in range(MAX_DEPTH - 1):
        text = f"b = 1 OR c = 1 AND ({text})"
    assert matches(text, a="1", b="0", c="1")
    assert not matches(text, a="0", b="0", c="1")
    assert not matches(text, a="1", b="0", c="0")


def test_names_and_strings_never_become_code() -> None:
    text = "__import__ = 'os' OR raw = '\\' OR v0 = 'x\"\"\"' OR k0 = '{k0}' OR t1 = 'a%s'"
    assert matches(text, k0="{k0}")
    assert matches(text, raw="\\")
    assert not matches(text, a="1")


def test_unknown_expression_type_is_rejected_by_name() -> None:
    with pytest.raises(RequestError, match="LUA") as caught:
        compile_expression("LUA", "x")
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
