"""Frame headers in both formats, from well-behaved and other peers."""

import json
from typing import Any

import pytest
from delaymq.protocol.binary_header import MAX_FIELDS
from delaymq.protocol.codes import VERSION, LanguageCode, RequestCode, ResponseCode
from delaymq.protocol.command import (
    MAX_FRAME_BYTES,
    Command,
    Response,
    decode_command,
    encode_command,
    encode_response,
    request_command,
)
from delaymq.protocol.errors import ProtocolError
from hypothesis import given
from hypothesis import strategies as st

int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
commands = st.builds(
    Command,
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=int32,
    flag=int32,
    language=st.sampled_from([language.name for language in LanguageCode]),
    version=st.integers(-(2**15), 2**15 - 1),
    remark=st.none() | text.filter(bool),
    fields=st.dictionaries(text.filter(lambda name: len(name.encode()) < 2**15), text.filter(bool), max_size=20),
    body=st.binary(max_size=200),
    binary=st.booleans(),
)


def json_frame(header: Any, body: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(4, "big") + encoded + body


def binary_frame(header: bytes) -> bytes:
    return (1 << 24 | len(header)).to_bytes(4, "big") + header


@given(commands)
def test_command_survives_a_round_trip(command: Command) -> None:
    frame = encode_command(command)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_command(frame[4:]) == command
    assert decode_command(memoryview(frame)[4:]) == command


@given(commands, st.builds(Response, code=st.integers(0, 300), remark=st.none() | text.filter(bool), body=st.binary()))
def test_response_has_its_requests_opaque_and_format(request: Command, response: Response) -> None:
    answer = decode_command(encode_response(request, response)[4:])
    assert (answer.opaque, answer.binary) == (request.opaque, request.binary)
    assert (answer.code, answer.remark, answer.body) == (response.code, response.remark, response.body)
    assert (answer.language, answer.version) == ("PYTHON", VERSION)
    assert answer.is_response
    assert not answer.is_oneway


def test_json_response_always_has_its_fields_and_no_null() -> None:
    # Java clients fail on an answer to a send without extFields.
    frame = encode_response(request_command(10), Response())
    assert json.loads(frame[8:]) == {
        "code": 0,
        "extFields": {},
        "flag": 1,
        "language": "PYTHON",
        "opaque": 0,
        "serializeTypeCurrentRPC": "JSON",
        "version": 407,
    }


def test_binary_response_has_the_documented_layout() -> None:
    request = Command(RequestCode.SEND_MESSAGE_V2, 7, binary=True)
    frame = encode_response(request, Response(ResponseCode.NO_PERMISSION, "no", {"a": "bc"}, b"B"))
    header = bytes.fromhex("0010 03 0197 00000007 00000001 00000002 6e6f 00000009 0001 61 00000002 6263")
    assert frame == (len(header) + 5).to_bytes(4, "big") + b"\x01\x00\x00" + bytes([len(header)]) + header + b"B"


def test_oneway_requests_carry_the_flag() -> None:
    assert request_command(15, {"topic": "T"}, oneway=True).is_oneway
    assert not request_command(15).is_oneway


def test_fields_of_two_requests_are_not_shared() -> None:
    request_command(10).fields["a"] = "1"
    assert request_command(10).fields == {}


def test_nulls_count_as_absent_and_unknown_fields_are_ignored() -> None:
    header = {"code": 34, "opaque": 5, "extFields": None, "remark": None, "flag": None, "more": {"a": [1]}}
    command = decode_command(json_frame(header))
    assert (command.code, command.opaque, command.flag, command.fields) == (34, 5, 0, {})
    command = decode_command(json_frame({"code": 34, "extFields": {"a": None, "b": "x"}}))
    assert command.fields == {"b": "x"}


def test_numbers_and_booleans_in_fields_become_text() -> None:
    command = decode_command(json_frame({"code": 10, "extFields": {"a": 12, "b": True, "c": "x", "d": 1.5}}))
    assert command.fields == {"a": "12", "b": "true", "c": "x", "d": "1.5"}


def test_language_may_be_a_number_or_unknown() -> None:
    assert decode_command(json_frame({"code": 10, "language": 9})).language == "GO"
    assert decode_command(json_frame({"code": 10, "language": 99})).language == "OTHER"
    assert decode_command(json_frame({"code": 10, "language": "COBOL"})).language == "COBOL"
    unknown = bytes.fromhex("000a 63 0197 00000001 00000000 00000000 00000000")
    assert decode_command(binary_frame(unknown)).language == "OTHER"


def test_header_cannot_set_other_attributes() -> None:
    command = decode_command(json_frame({"code": 10, "body": "QUJD", "binary": True, "fields": {"a": "b"}}, b"real"))
    assert (command.body, command.binary, command.fields) == (b"real", False, {})


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"", "no header length"),
        (b"\0\0\0", "no header length"),
        (bytes.fromhex("00000001"), "exceeds the frame"),
        (bytes.fromhex("02000000"), "unknown header serialisation 2"),
        (json_frame(b""), "cannot be read"),
        (json_frame(b"[]"), "cannot be read"),
        (json_frame(b'{"opaque":1}'), "cannot be read"),
        (json_frame(b'{"code":2147483648}'), "cannot be read"),
        (json_frame(b'{"code":"10"}'), "cannot be read"),
        (json_frame(b'{"code":10,"extFields":{"a":[1]}}'), "cannot be read"),
        (json_frame(b'{"code":10,"extFields":{"a":' + b"9" * 5000 + b"}}"), "cannot be read|64 bits"),
        (json_frame(b'{"code":10,"remark":"\xff"}'), "cannot be read"),
        (json_frame(b'{"code":10,"remark":"\\ud800"}'), "cannot be read"),
        (json_frame(b'{"code":10,"x":' + b"[" * 100_000), "cannot be read"),
        (json_frame({"code": 10, "extFields": {str(n): "" for n in range(MAX_FIELDS + 1)}}), "fields"),
        (json_frame({"code": 10, "extFields": {str(n): "" for n in range(60_000)}}), "too many fields"),
        (json_frame({"code": 10, "extFields": {"a": "x" * (1 << 20)}}), "exceeds the limit of 1048576"),
        (binary_frame(b"\0" * 20), "too short"),
        (binary_frame(bytes.fromhex("000a 00 0197 00000001 00000000 ffffffff 00000000")), "remark"),
        (binary_frame(bytes.fromhex("000a 00 0197 00000001 00000000 00000001 00000000")), "remark"),
        (binary_frame(bytes.fromhex("000a 00 0197 00000001 00000000 00000000 00000001")), "do not end"),
        (binary_frame(bytes.fromhex("000a 00 0197 00000001 00000000 00000001 ff 00000000")), "not UTF-8"),
        (binary_frame(bytes.fromhex("000a 00 0197 00000001 00000000 00000000 00000003 0001 61")), "name extends"),
        (
            binary_frame(bytes.fromhex("000a 00 0197 00000001 00000000 00000000 00000007 0001 61 00000001")),
            "value extends",
        ),
        (
            binary_frame(
                bytes.fromhex("000a 00 0197 00000001 00000000 00000000") + (6 * 513).to_bytes(4, "big") + bytes(6 * 513)
            ),
            "too many fields",
        ),
    ],
)
def test_invalid_frame_ends_the_connection(frame: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        decode_command(frame)


def test_empty_value_in_a_binary_header_means_absent() -> None:
    fields = bytes.fromhex("0001 61 00000000 0001 62 00000001 78")
    header = bytes.fromhex("000a 00 0197 00000001 00000000 00000000") + len(fields).to_bytes(4, "big") + fields
    assert decode_command(binary_frame(header)).fields == {"b": "x"}


@pytest.mark.parametrize("binary", [False, True])
def test_response_with_unencodable_text_is_sent(binary: bool) -> None:
    request = Command(10, 1, binary=binary)
    answer = decode_command(encode_response(request, Response(1, "bad file \udcff", {"a": "\ud800"}))[4:])
    assert (answer.remark, answer.fields) == ("bad file ?", {"a": "?"})


@pytest.mark.parametrize("binary", [False, True])
def test_oversized_command_is_rejected_before_it_is_sent(binary: bool) -> None:
    with pytest.raises(ValueError, match="exceeds the limit"):
        encode_command(Command(10, body=bytes(MAX_FRAME_BYTES), binary=binary))


def test_binary_header_rejects_large_codes_versions_and_names() -> None:
    with pytest.raises(ValueError, match="16 bits"):
        encode_command(Command(40_000, binary=True))
    with pytest.raises(ValueError, match="16 bits"):
        encode_command(Command(10, version=40_000, binary=True))
    with pytest.raises(ValueError, match="name"):
        encode_command(Command(10, fields={"x" * 40_000: "v"}, binary=True))


def test_codes_have_their_wire_numbers() -> None:
    assert (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.REGISTER_BROKER) == (310, 11, 103)
    assert (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.FLOW_CONTROL) == (19, 17, 215)
    assert len(RequestCode) == 102
    assert (LanguageCode.JAVA, LanguageCode.PYTHON, LanguageCode.GO, LanguageCode.RUST) == (0, 3, 9, 12)
