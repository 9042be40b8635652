"""Messages between members survive the wire; changed and impossible ones are rejected."""

from struct import pack_into
from typing import Any, get_args
from zlib import crc32

import pytest
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.frame import FrameReceiver
from delaymq.replication.history import EpochStart
from delaymq.replication.messages import Accept, Ack, Ask, Begun, Follow, Frame, HandOver, Position
from delaymq.replication.model import Note, NoteKind
from delaymq.server.replication import message_codec
from delaymq.server.replication.message_codec import (
    MAX_DATA_BYTES,
    MAX_EPOCHS,
    MAX_OFFSET,
    NEWEST_VERSION,
    UnsupportedMessageError,
    decode_message,
    encode_message,
)
from delaymq.server.replication.table_messages import LinkMessage, TableAck, TablePart
from hypothesis import given, settings
from hypothesis import strategies as st

V = NEWEST_VERSION
offsets = st.integers(0, MAX_OFFSET) | st.integers(0, 1_000)
sessions = st.integers(1, MAX_OFFSET)
store_ids = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=64)
views = st.tuples(
    st.booleans(), st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=512), st.booleans()
)
notes = st.none() | st.builds(Note, st.sampled_from(NoteKind), offsets, offsets)


@st.composite
def accepts(draw: st.DrawFn) -> Accept:
    epochs = sorted(draw(st.sets(st.integers(1, MAX_OFFSET), max_size=12)))
    starts = sorted(draw(st.lists(offsets, min_size=len(epochs), max_size=len(epochs))))
    history = tuple(map(EpochStart, epochs, starts))
    end = draw(st.integers(starts[-1] if starts else 0, MAX_OFFSET))
    epoch = draw(st.integers(epochs[-1] if epochs else 0, MAX_OFFSET))
    return Accept(epoch, draw(sessions), draw(store_ids), history, draw(st.integers(0, end)), end)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    epoch = draw(offsets)
    return Position(epoch, draw(offsets), draw(st.integers(0, epoch)), draw(offsets), draw(notes), *draw(views))


frames = st.builds(
    Frame, offsets, sessions, st.integers(0, MAX_OFFSET - 4_096), st.binary(max_size=300), offsets, st.booleans()
)
messages: st.SearchStrategy[LinkMessage] = st.one_of(
    st.builds(Follow, offsets, sessions, st.integers(1, 2**31 - 1), store_ids, offsets),
    accepts(),
    frames,
    st.builds(Ack, offsets, sessions, offsets, offsets, offsets),
    st.builds(Ask, offsets, offsets),
    positions(),
    st.builds(HandOver, offsets, sessions, offsets),
    st.builds(Begun, offsets),
    st.builds(
        TablePart, offsets, sessions, sessions, st.integers(0, 255), st.integers(0, 255), st.binary(max_size=300)
    ),
    st.builds(TableAck, offsets, sessions, sessions),
)
SAMPLES: dict[type[Any], LinkMessage] = {
    Follow: Follow(3, 7, 5, "store", 0),
    Accept: Accept(3, 7, "store", (EpochStart(1, 0), EpochStart(3, 90)), 10, 100),
    Frame: Frame(3, 7, 50, b"record", 40, True),
    Ack: Ack(3, 7, 56, 56, 50),
    Ask: Ask(3, 9),
    Position: Position(3, 9, 3, 100, Note(NoteKind.EMPTY, 2, 8), False, "uid/71"),
    HandOver: HandOver(3, 7, 100),
    Begun: Begun(4),
    TablePart: TablePart(3, 7, 1, 2, 1, b"{}"),
    TableAck: TableAck(3, 7, 1),
}


def body_of(message: LinkMessage) -> bytes:
    (command,) = FrameReceiver().feed(encode_message(message, V))
    assert command.code == RequestCode.REPLICATE
    assert command.is_oneway
    return command.body


def sealed(body: bytearray) -> bytes:
    """With the right checksum, as a defective or hostile member would send it."""
    pack_into(">I", body, 4, crc32(body[8:], crc32(body[:4])))
    return bytes(body)


def test_there_is_a_sample_and_a_kind_of_each_message() -> None:
    assert set(SAMPLES) == set(get_args(LinkMessage))
    assert set(message_codec._KINDS_BY_TYPE) == set(get_args(LinkMessage))


@given(messages)
def test_each_message_survives_a_round_trip(message: LinkMessage) -> None:
    decoded = decode_message(body_of(message), V)
    assert decoded == message
    assert type(decoded) is type(message)


@settings(max_examples=20)
@given(messages)
def test_each_flipped_bit_is_detected(message: LinkMessage) -> None:
    body = bytearray(body_of(message))
    for bit in range(8 * len(body)):
        body[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError):
            decode_message(bytes(body), V)
        body[bit // 8] ^= 1 << bit % 8


@given(messages, st.data())
def test_overwritten_bytes_are_detected(message: LinkMessage, data: st.DataObject) -> None:
    body = body_of(message)
    at = data.draw(st.integers(0, len(body) - 4))
    changed = body[:at] + data.draw(st.binary(min_size=4, max_size=4)) + body[at + 4 :]
    if changed != body:
        with pytest.raises(ProtocolError):
            decode_message(changed, V)


@given(messages, st.data())
def test_shortened_and_extended_messages_are_rejected(message: LinkMessage, data: st.DataObject) -> None:
    body = body_of(message)
    shorter = body[: data.draw(st.integers(0, len(body) - 1))]
    for changed in (shorter, body + data.draw(st.binary(min_size=1, max_size=40))):
        with pytest.raises(ProtocolError):
            decode_message(changed, V)
        if len(changed) >= 8 and not isinstance(message, Frame | TablePart):
            with pytest.raises(ProtocolError):
                decode_message(sealed(bytearray(changed)), V)


@given(st.binary(max_size=200), st.integers(1, 8))
def test_arbitrary_bytes_with_a_valid_checksum_are_valid_or_rejected(noise: bytes, kind: int) -> None:
    try:
        decoded = decode_message(sealed(bytearray(bytes((V, kind)) + bytes(6) + noise)), V)
    except ProtocolError:
        return
    assert decode_message(body_of(decoded), V) == decoded


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (Follow, {"epoch": -1}),
        (Follow, {"session": 0}),
        (Follow, {"incarnation": 0}),
        (Follow, {"incarnation": 2**31}),
        (Follow, {"note": -1}),
        (Follow, {"store_id": "x" * 65}),
        (Follow, {"store_id": "a b"}),
        (Follow, {"store_id": "é"}),
        (Accept, {"history": (EpochStart(2, 0), EpochStart(2, 5))}),
        (Accept, {"history": (EpochStart(2, 5), EpochStart(3, 4))}),
        (Accept, {"history": (EpochStart(0, 5),)}),
        (Accept, {"history": (EpochStart(3, 101),)}),
        (Accept, {"history": (EpochStart(4, 5),)}),
        (Accept, {"history": tuple(EpochStart(1 + each, 0) for each in range(MAX_EPOCHS + 1)), "epoch": 10**6}),
        (Accept, {"end": -1}),
        (Accept, {"end": 2**63}),
        (Frame, {"start": -1}),
        (Frame, {"confirmed": 2**63}),
        (Frame, {"start": MAX_OFFSET - 5}),
        (Frame, {"data": bytes(MAX_DATA_BYTES + 1)}),
        (Ack, {"session": 0}),
        (Ack, {"acknowledged": -1}),
        (Ask, {"epoch": 2**63}),
        (Position, {"last_epoch": 4}),
        (Position, {"note": Note(NoteKind.EMPTY, -1, 0)}),
        (HandOver, {"end": -1}),
        (Begun, {"epoch": -1}),
    ],
)
def test_values_out_of_range_are_not_sent(message: type[Any], changes: dict[str, Any]) -> None:
    sample: Any = SAMPLES[message]
    with pytest.raises(ValueError, match=r"."):
        encode_message(sample._replace(**changes), V)


@pytest.mark.parametrize(
    ("message", "at", "value"),
    [
        (Follow, 8, b"\xff"),  # a negative epoch
        (Follow, 40, b"\x04"),  # a store id that is shorter than the rest of the message
        (Accept, 32, b"\xff\xff\xff\xff"),  # four billion epochs
        (Accept, 42, bytes(8)),  # epoch 0
        (Frame, 40, b"\x02"),  # neither counted nor not
        (Ack, 16, bytes(8)),  # no session
        (Position, 40, b"\x04"),  # an unknown flag
        (Position, 41, b"\x09"),  # an unknown kind of note
        (Position, 41, b"\x00"),  # no note, with an epoch
        (HandOver, 24, b"\x80"),
        (Begun, 8, b"\x80"),
    ],
)
def test_impossible_values_are_rejected_despite_a_valid_checksum(message: type[Any], at: int, value: bytes) -> None:
    body = bytearray(body_of(SAMPLES[message]))
    assert decode_message(sealed(body), V) == SAMPLES[message]
    body[at : at + len(value)] = value
    with pytest.raises(ProtocolError, match="is invalid"):
        decode_message(sealed(body), V)


def test_longest_history_and_largest_frame_are_carried() -> None:
    history = tuple(EpochStart(1 + each, 10 * each) for each in range(MAX_EPOCHS))
    for message in (
        Accept(MAX_EPOCHS, 1, "s" * 64, history, 0, 10**9),
        Frame(1, 1, 0, bytes(MAX_DATA_BYTES), 0, False),
    ):
        assert decode_message(body_of(message), V) == message


def test_other_versions_and_unknown_kinds_are_rejected() -> None:
    body = bytearray(body_of(SAMPLES[Ack]))
    with pytest.raises(ProtocolError, match="version 1 arrived on a link of version 2"):
        decode_message(bytes(body), V + 1)
    body[1] = 200
    with pytest.raises(ProtocolError, match="no kind 200"):
        decode_message(sealed(body), V)
    body[1] = 4
    body[3] = 1
    with pytest.raises(ProtocolError):
        decode_message(sealed(body), V)


def test_kind_of_a_later_version_is_not_sent_over_a_link_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    later = message_codec._KINDS_BY_TYPE[HandOver]._replace(since=2)
    monkeypatch.setitem(message_codec._KINDS_BY_TYPE, HandOver, later)
    monkeypatch.setitem(message_codec._KINDS_BY_NUMBER, later.number, later)
    with pytest.raises(UnsupportedMessageError, match="HandOver needs version 2"):
        encode_message(SAMPLES[HandOver], 1)
    body = bytearray(encode_message(SAMPLES[HandOver], 2)[-32:])
    assert decode_message(bytes(body), 2) == SAMPLES[HandOver]
    body[0] = 1
    with pytest.raises(ProtocolError, match="no kind 7"):
        decode_message(sealed(body), 1)


def test_oversized_messages_are_rejected_before_their_checksum() -> None:
    for kind, size in ((3, MAX_DATA_BYTES + 1_000), (4, 100), (2, 1 << 20)):
        body = bytes((V, kind)) + bytes(size)
        with pytest.raises(ProtocolError, match="exceeds the limit"):
            decode_message(body, V)
