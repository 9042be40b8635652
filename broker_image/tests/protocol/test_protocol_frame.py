"""Splitting a stream into commands: fragments, limits, errors and memory."""

import tracemalloc

import pytest
from delaymq.protocol.command import MAX_FRAME_BYTES, encode_command, request_command
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.frame import (
    BUSY_BUFFER_BYTES,
    IDLE_BUFFER_BYTES,
    SMALL_READS,
    TRUSTED_BUFFER_BYTES,
    FrameReceiver,
)

BAD_FRAME = bytes.fromhex("00000004") + bytes.fromhex("00000009")


def frame_of(code: int, body_bytes: int = 0) -> bytes:
    return encode_command(request_command(code, {"topic": "T"}, b"x" * body_bytes))


def test_frames_that_arrive_together_are_returned_together() -> None:
    assert [command.code for command in FrameReceiver().feed(frame_of(1) + frame_of(2) + frame_of(3))] == [1, 2, 3]


def test_frame_arriving_byte_by_byte_is_returned_once() -> None:
    receiver = FrameReceiver()
    frame = frame_of(10, 50)
    for byte in frame[:-1]:
        assert receiver.feed(bytes([byte])) == []
    (command,) = receiver.feed(frame[-1:])
    assert command.body == b"x" * 50


def test_commands_do_not_refer_to_the_reused_buffer() -> None:
    receiver = FrameReceiver()
    (first,) = receiver.feed(encode_command(request_command(1, {"topic": "First"}, b"first")))
    receiver.feed(encode_command(request_command(1, {"topic": "Other"}, b"other")))
    assert first.body == b"first"
    assert first.fields == {"topic": "First"}


def test_valid_frames_before_an_invalid_one_are_returned_first() -> None:
    receiver = FrameReceiver()
    assert [command.code for command in receiver.feed(frame_of(1) + frame_of(2) + BAD_FRAME)] == [1, 2]
    assert isinstance(receiver.error, ProtocolError)
    with pytest.raises(ProtocolError, match="header length"):
        receiver.feed(b"")


def test_valid_frames_after_an_error_are_rejected() -> None:
    receiver = FrameReceiver()
    with pytest.raises(ProtocolError):
        receiver.feed(BAD_FRAME)
    with pytest.raises(ProtocolError):
        receiver.feed(frame_of(1))
    assert len(receiver.get_buffer(-1)) > 0


def test_largest_frame_is_accepted_and_one_byte_more_is_not() -> None:
    overhead = len(frame_of(10)) + 4
    largest = frame_of(10, MAX_FRAME_BYTES - overhead)
    (command,) = FrameReceiver().feed(largest)
    assert len(command.body) == MAX_FRAME_BYTES - overhead
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        FrameReceiver().feed((MAX_FRAME_BYTES - 3).to_bytes(4, "big"))


def test_tls_handshake_is_recognised() -> None:
    with pytest.raises(ProtocolError, match="TLS"):
        FrameReceiver().feed(bytes.fromhex("160301020001fc"))


def test_frame_without_space_for_a_header_length_is_rejected() -> None:
    with pytest.raises(ProtocolError, match="no header length"):
        FrameReceiver().feed(bytes.fromhex("00000003000000"))


@pytest.mark.parametrize("body_bytes", [20_000, TRUSTED_BUFFER_BYTES, 3_000_000])
def test_buffer_grows_for_a_large_frame_and_shrinks_again(body_bytes: int) -> None:
    receiver = FrameReceiver()
    stream = frame_of(1, body_bytes) + frame_of(2)
    commands, largest, at = [], 0, 0
    while at < len(stream):
        buffer = receiver.get_buffer(-1)
        n = min(len(buffer), len(stream) - at)
        assert n > 0
        buffer[:n] = stream[at : at + n]
        at += n
        commands += receiver.received(n)
        largest = max(largest, receiver.buffer_bytes)
    assert [(command.code, len(command.body)) for command in commands] == [(1, body_bytes), (2, 0)]
    assert body_bytes < largest <= max(len(stream), BUSY_BUFFER_BYTES)
    for _ in range(SMALL_READS):
        assert len(receiver.feed(frame_of(2))) == 1
    assert receiver.buffer_bytes == IDLE_BUFFER_BYTES


def test_peer_that_fills_the_buffer_gets_larger_reads() -> None:
    receiver = FrameReceiver()
    stream = b"".join(frame_of(number, 900) for number in range(100))
    assert [command.code for command in receiver.feed(stream)] == list(range(100))
    assert receiver.buffer_bytes == BUSY_BUFFER_BYTES


def test_stated_length_alone_allocates_no_memory() -> None:
    receiver = FrameReceiver()
    receiver.feed((MAX_FRAME_BYTES - 4).to_bytes(4, "big"))
    assert receiver.buffer_bytes <= TRUSTED_BUFFER_BYTES


def test_idle_receiver_uses_little_memory() -> None:
    tracemalloc.start()
    try:
        receivers = [FrameReceiver() for _ in range(100)]
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < len(receivers) * (IDLE_BUFFER_BYTES + 1024)
