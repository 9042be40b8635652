"""Bodies of batch sends."""

import pytest
from delaymq.protocol import batch
from delaymq.protocol.batch import BatchMessage, decode_batch, encode_batch
from delaymq.protocol.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st

messages_strategy = st.lists(
    st.builds(
        BatchMessage,
        flag=st.integers(-(2**31), 2**31 - 1),
        body=st.binary(max_size=99),
        properties=st.binary(max_size=99),
    ),
    min_size=1,
    max_size=20,
)
ONE = encode_batch([BatchMessage(5, b"body", b"KEYS\x01k")])


@given(messages_strategy)
def test_batch_survives_a_round_trip(messages: list[BatchMessage]) -> None:
    assert decode_batch(encode_batch(messages)) == messages


def test_entry_has_the_documented_layout() -> None:
    assert bytes.fromhex("00000020 00000000 00000000 00000005 00000004") + b"body\0\x06KEYS\x01k" == ONE


def test_magic_and_crc_are_ignored() -> None:
    assert decode_batch(ONE[:4] + b"\xff" * 8 + ONE[12:]) == [BatchMessage(5, b"body", b"KEYS\x01k")]


@pytest.mark.parametrize("length", range(1, len(ONE)))
def test_truncated_batch_is_illegal(length: int) -> None:
    with pytest.raises(RequestError, match="the batch") as caught:
        decode_batch(ONE + ONE[:length])
    assert caught.value.code == 13


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(22),  # a total of 0 would never advance
        b"\xff\xff\xff\xff" + ONE[4:],
        ONE[:16] + b"\xff\xff\xff\xff" + ONE[20:],
        ONE[:16] + b"\x00\x00\x00\x05" + ONE[20:],
        ONE[:3] + b"\x1f" + ONE[4:],
        ONE[:3] + b"\x21" + ONE[4:] + b"\0",
        ONE[:24] + b"\xff\xff" + ONE[26:],
    ],
)
def test_wrong_lengths_are_illegal(body: bytes) -> None:
    with pytest.raises(RequestError, match="the batch") as caught:
        decode_batch(body)
    assert caught.value.code == 13


def test_oversized_properties_are_illegal() -> None:
    with pytest.raises(ValueError, match="the maximum is 32767"):
        encode_batch([BatchMessage(0, b"", bytes(32768))])
    assert decode_batch(encode_batch([BatchMessage(0, b"", bytes(32767))]))
    entry = (22 + 32768).to_bytes(4, "big") + bytes(16) + b"\x80\x00" + bytes(32768)
    with pytest.raises(RequestError, match="32768 bytes of properties"):
        decode_batch(entry)


def test_batch_can_be_read_in_parts() -> None:
    body = ONE * 7
    parts: list[list[BatchMessage]] = []
    at = 0
    while at < len(body):
        messages, at = batch.read_batch(body, at, 3, sum(map(len, parts)))
        parts.append(messages)
    assert [len(part) for part in parts] == [3, 3, 1]
    assert [message for part in parts for message in part] == decode_batch(body)
    with pytest.raises(RequestError, match="ends within message 7"):
        batch.read_batch(body + b"x", len(body), 3, 7)
