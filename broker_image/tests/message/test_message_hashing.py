"""Java's hash codes: values by the definition of the Java virtual machine, and known examples."""

from __future__ import annotations

import pytest
from delaymq.message.hashing import index_key_hash, java_hash, tags_code
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 3105),
        ("Hello", 69609650),
        ("Hello, World!", 1498789909),
        ("TagA", 2598919),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -2147483648),
        ("é", 233),
        ("日本", 835047),
        ("😀", 1772899),
    ],
)
def test_known_java_values(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert tags_code(text) == expected


def test_minimum_integer_maps_to_zero() -> None:
    # "polygenelubricants" hashes to Integer.MIN_VALUE; here topic#key has to.
    topic, key = "T", "k"
    assert index_key_hash(topic, key) == abs(java_hash("T#k"))
    for text in ("#", "x#y", "a" * 300 + "#b"):
        topic, _, key = text.partition("#")
        assert index_key_hash(topic, key) == abs(java_hash(text))


def slow_hash(text: str) -> int:
    """The definition, unit by unit."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for position in range(0, len(data), 2):
        value = (value * 31 + int.from_bytes(data[position : position + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@given(st.text(max_size=600))
def test_any_text_hashes_by_the_definition(text: str) -> None:
    assert java_hash(text) == slow_hash(text)


@given(st.text(max_size=40), st.text(max_size=300))
def test_any_key_hashes_by_the_definition(topic: str, key: str) -> None:
    value = slow_hash(f"{topic}#{key}")
    assert index_key_hash(topic, key) == (0 if value == -(1 << 31) else abs(value))
