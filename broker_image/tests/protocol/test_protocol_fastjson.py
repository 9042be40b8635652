"""JSON in fastjson's dialect, in both directions, and rejected input."""

import json
import math
from typing import Any

import pytest
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.errors import FastJsonError
from delaymq.protocol.fastjson import MAX_DEPTH, ObjectKey, dumps, loads
from hypothesis import given
from hypothesis import strategies as st

plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | plain_text
    | st.floats(allow_nan=False, allow_infinity=False)
)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text, inner, max_size=4), max_leaves=20
)
object_keys = st.dictionaries(plain_text, st.integers(-9, 9) | plain_text, max_size=3).map(ObjectKey.of)
keyed_trees = st.dictionaries(object_keys, trees, min_size=1, max_size=3)


@given(trees)
def test_standard_json_is_read_as_by_the_standard_parser(tree: Any) -> None:
    text = json.dumps(tree)
    assert loads(text) == tree
    assert loads(text.encode()) == tree


@given(keyed_trees)
def test_maps_with_object_keys_survive_a_round_trip(tree: Any) -> None:
    assert loads(dumps(tree)) == tree
    assert loads(dumps({"in": [tree]})) == {"in": [tree]}


@given(trees)
def test_tolerant_parser_agrees_with_the_standard_one(tree: Any) -> None:
    # An unquoted key sends the whole text through the tolerant parser.
    read = loads("{1 :\n" + json.dumps(tree, indent=1) + ' , "x":[ ]}')
    assert read == {1: tree, "x": []}


def test_integer_keys_may_be_unquoted() -> None:
    assert loads(b'{"offsetTable":{1:3,-2:0}}') == {"offsetTable": {1: 3, -2: 0}}
    assert loads(b'{"offsetTable":{"1":3}}') == {"offsetTable": {"1": 3}}


def test_object_keys_are_hashable_regardless_of_order() -> None:
    first = loads(b'{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":9}}')
    second = loads(b'{{"topic":"t","queueId":0,"brokerName":"b"}:{"maxOffset":9}}')
    assert first == second
    (key,) = first
    assert key.as_dict() == {"brokerName": "b", "queueId": 0, "topic": "t"}


def test_object_keys_may_nest() -> None:
    (key,) = loads(b'{{"a":{"b":[1,{"c":2}]}}:0}')
    assert hash(key) == hash(ObjectKey.of({"a": {"b": [1, {"c": 2}]}}))
    assert loads(dumps({key: 0})) == {key: 0}


def test_callers_may_choose_the_type_of_object_keys() -> None:
    read = loads(b'{{"a":1}:2}', object_key=lambda fields: ("chosen", fields["a"]))
    assert read == {("chosen", 1): 2}


def test_strings_resembling_syntax_are_unchanged() -> None:
    assert loads(b'{0:"{1:2}","{":",3:\\"\\u5ef6\\\\"}') == {0: "{1:2}", "{": ',3:"延\\'}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1,",
        b"[1 2]",
        b"{1}",
        b"{1:}",
        b"{1:2,}",
        b"{1:2}}",
        b"{1.5:2}",
        b"{true:2}",
        b"{a:1}",
        b"{[1]:2}",
        b'{1:"',
        b'{1:"\\q"}',
        b'{1:"\\ud800"}',
        b'{1:"\xff"}',
        b'{1:"\n"}',
        b"{1:tru}",
        b"{1:NaN}",
        b"{1:1e999}",
        b"{1:" + b"9" * 5000 + b"}",
        b"{1:" + b"[" * 100_000,
        b"{" * 100_000,
        "{1:١}".encode(),
    ],
)
def test_invalid_json_is_rejected(text: bytes) -> None:
    with pytest.raises(FastJsonError):
        loads(text)


def test_error_states_the_position() -> None:
    with pytest.raises(FastJsonError, match="character 3: expected a value, found 'oops}'"):
        loads(b"{1:oops}")


def test_nesting_is_accepted_up_to_its_limit() -> None:
    arrays = MAX_DEPTH - 1
    assert loads(b"{1:" + b"[" * arrays + b"]" * arrays + b"}")
    with pytest.raises(FastJsonError, match="nested"):
        loads(b"{1:" + b"[" * (arrays + 1) + b"]" * (arrays + 1) + b"}")


def test_oversized_texts_are_rejected_before_parsing() -> None:
    with pytest.raises(FastJsonError, match="exceeds the limit of 10"):
        loads(b'"0123456789"', max_bytes=10)
    with pytest.raises(FastJsonError, match="more than 100 values"):
        loads(b"[" + b"[]," * 200 + b"0]", max_values=100)
    with pytest.raises(FastJsonError, match="more than 100 values"):
        loads("[" + "[]," * 200 + "0]", max_values=100)


def test_keys_are_written_as_java_reads_them() -> None:
    queue = MessageQueue("b", 0, "t")
    assert dumps({queue: {"x": [1, None, True], 3: "é"}}) == (
        '{{"brokerName":"b","queueId":0,"topic":"t"}:{"x":[1,null,true],"3":"é"}}'.encode()
    )
    assert dumps({1: 2}) == b'{"1":2}'
    assert dumps({queue: {}}) == b'{{"brokerName":"b","queueId":0,"topic":"t"}:{}}'
    assert dumps({queue: [(), []]}) == b'{{"brokerName":"b","queueId":0,"topic":"t"}:[[],[]]}'


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, {ObjectKey(): {True: 1}}, {ObjectKey(): object()}])
def test_unsupported_values_are_rejected_when_written(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps(value)


def test_small_numbers_keep_their_value() -> None:
    assert loads(b"{1:-0.5e-3}") == {1: -0.0005}
    assert math.copysign(1, loads(b"{1:-0.0}")[1]) == -1
