"""Tag expressions."""

from weakref import ref

import pytest
from delaymq.broker.filters import MAX_TAGS, TAG_TYPE, compile_expression, tag_matcher
from delaymq.broker.filters.tags import MAX_TAGS_CHARACTERS
from delaymq.message.hashing import tags_code
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError


@pytest.mark.parametrize("expression", ["", "*"])
def test_expression_matches_everything(expression: str) -> None:
    assert tag_matcher(expression) is None


def test_tags_are_split_at_double_bars_and_trimmed() -> None:
    matches = tag_matcher(" TagA||TagB || a|b ")
    assert matches is not None
    assert [matches(tags_code(tag)) for tag in ("TagA", "TagB", "a|b", "TagC", "")] == [True, True, True, False, False]


def test_only_the_low_32_bits_are_compared() -> None:
    matches = tag_matcher("polygenelubricants")
    assert matches is not None
    assert tags_code("polygenelubricants") == -(2**31)
    assert matches(-(2**31))
    assert matches(2**31)
    assert not matches(0)


@pytest.mark.parametrize(
    "expression",
    ["||", " || ", " ", " || ".join(f"t{n}" for n in range(MAX_TAGS + 1)), "t" * (MAX_TAGS_CHARACTERS + 1)],
    ids=["bars", "blanks and bars", "blank", "too many", "too long"],
)
def test_expression_without_tags_or_with_too_many_is_rejected(expression: str) -> None:
    with pytest.raises(RequestError) as refused:
        tag_matcher(expression)
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_changing_tags_use_bounded_memory() -> None:
    kept = []
    for client in range(1_000):
        tags = compile_expression(TAG_TYPE, "||".join(f"{client}-{tag}" for tag in range(100))).tags
        assert tags is not None
        kept.append(ref(tags))
        del tags
    assert sum(each() is not None for each in kept) < 200
