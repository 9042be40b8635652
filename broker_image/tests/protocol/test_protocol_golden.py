"""Golden frames in both directions: decoded, and encoded again as equal data."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from delaymq.protocol import headers
from delaymq.protocol.batch import decode_batch, encode_batch
from delaymq.protocol.bodies import ConsumerIds, HeartbeatData, RegisterBody, TopicRoute
from delaymq.protocol.bodies.configs import body_crc32
from delaymq.protocol.command import Response, decode_command, encode_command, encode_response
from delaymq.protocol.frame import FrameReceiver

REQUEST_HEADERS: dict[int, type[headers.Header]] = {
    11: headers.PullMessageRequestHeader,
    14: headers.QueryConsumerOffsetRequestHeader,
    15: headers.UpdateConsumerOffsetRequestHeader,
    35: headers.UnregisterClientRequestHeader,
    36: headers.ConsumerSendMsgBackRequestHeader,
    37: headers.EndTransactionRequestHeader,
    38: headers.GetConsumerListByGroupRequestHeader,
    39: headers.CheckTransactionStateRequestHeader,
    40: headers.NotifyConsumerIdsChangedRequestHeader,
    103: headers.RegisterBrokerRequestHeader,
    104: headers.UnRegisterBrokerRequestHeader,
    105: headers.GetRouteInfoRequestHeader,
    310: headers.SendMessageRequestHeaderV2,
    320: headers.SendMessageRequestHeaderV2,
}
RESPONSE_HEADERS: dict[int, type[headers.Header]] = {
    11: headers.PullMessageResponseHeader,
    14: headers.QueryConsumerOffsetResponseHeader,
    310: headers.SendMessageResponseHeader,
    320: headers.SendMessageResponseHeader,
}


def header_of(frame: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(frame[8 : 8 + int.from_bytes(frame[4:8], "big")])
    header.setdefault("extFields", {})
    return header


def test_every_golden_frame_is_read_as_by_an_independent_parser(golden_frames: list[Any]) -> None:
    assert len(golden_frames) == 381
    for golden in golden_frames:
        command, header = golden.command, golden.header
        assert (command.code, command.flag) == (golden.code, golden.flag)
        assert command.opaque == header["opaque"]
        assert command.version == header["version"]
        assert command.language == header["language"]
        assert command.remark == header.get("remark")
        assert command.fields == header.get("extFields", {})
        assert not command.binary
        assert golden.frame.endswith(command.body)


def test_every_golden_frame_is_encoded_as_equal_data(golden_frames: list[Any]) -> None:
    for golden in golden_frames:
        frame = encode_command(golden.command)
        assert header_of(frame) == header_of(golden.frame)
        assert decode_command(frame[4:]) == golden.command


def test_every_golden_frame_survives_a_binary_header(golden_frames: list[Any]) -> None:
    for golden in golden_frames:
        command = golden.command
        command.binary = True
        frame = encode_command(command)
        assert frame[4] == 1
        assert decode_command(frame[4:]) == command


def test_golden_stream_is_split_equally_for_any_fragmentation(golden_frames: list[Any]) -> None:
    stream = b"".join(golden.frame for golden in golden_frames)
    expected = [golden.command for golden in golden_frames]
    chooser = random.Random(7)
    for largest in (len(stream), 70_000, 1500, 100):
        receiver = FrameReceiver()
        commands = []
        at = 0
        while at < len(stream):
            n = chooser.randint(1, largest)
            commands += receiver.feed(stream[at : at + n])
            at += n
        assert commands == expected


def test_responses_equal_the_golden_ones_except_for_the_language(golden_exchanges: list[Any]) -> None:
    answered = 0
    for request, response in golden_exchanges:
        if response is None:
            continue
        answered += 1
        frame = encode_response(request, Response(response.code, response.remark, response.fields, response.body))
        ours = decode_command(frame[4:])
        assert ours.language == "PYTHON"
        ours.language = response.language
        assert ours == response
    assert answered == 151


def test_golden_headers_survive_a_round_trip(golden_exchanges: list[Any]) -> None:
    seen: Counter[str] = Counter()
    for request, response in golden_exchanges:
        header = REQUEST_HEADERS.get(request.code)
        if header is not None:
            sent = {name: value for name, value in request.fields.items() if name != "bname"}
            assert header.from_fields(request.fields).to_fields() == sent
            seen["request"] += 1
        else:
            assert not request.fields
        header = RESPONSE_HEADERS.get(request.code)
        if header is not None and response is not None and response.fields:
            sent = {name: value for name, value in response.fields.items() if name not in ("MSG_REGION", "TRACE_ON")}
            assert header.from_fields(response.fields).to_fields() == sent
            seen["response"] += 1
    assert seen == {"request": 224, "response": 97}


@pytest.mark.parametrize(
    ("code", "of_response", "body", "count"),
    [
        (34, False, HeartbeatData, 6),
        (38, True, ConsumerIds, 9),
        (103, False, RegisterBody, 12),
        (105, True, TopicRoute, 13),
    ],
)
def test_golden_bodies_survive_a_round_trip(
    golden_exchanges: list[Any], code: int, of_response: bool, body: Any, count: int
) -> None:
    seen = 0
    for request, response in golden_exchanges:
        command = response if of_response else request
        if request.code != code or not command or not command.body:
            continue
        seen += 1
        assert json.loads(body.decode(command.body).encode()) == json.loads(command.body)
    assert seen == count


def test_golden_registrations_have_the_crc_of_their_body(golden_exchanges: list[Any]) -> None:
    checked = 0
    for request, _ in golden_exchanges:
        if request.code != 103:
            continue
        header = headers.RegisterBrokerRequestHeader.from_fields(request.fields)
        body = RegisterBody.decode_request(request.body, compressed=False, crc32=header.body_crc32 or 0)
        inflated = RegisterBody.decode_request(body.encode_compressed(), compressed=True)
        assert inflated.topic_config_serialize_wrapper == body.topic_config_serialize_wrapper
        assert header.body_crc32 in (0, body_crc32(request.body))
        checked += header.body_crc32 != 0
    assert checked > 0


def test_golden_batch_survives_a_round_trip_byte_for_byte(golden_exchanges: list[Any]) -> None:
    (request,) = [request for request, _ in golden_exchanges if request.code == 320]
    messages = decode_batch(request.body)
    assert [message.body for message in messages] == [b"batch message %d" % n for n in range(10)]
    assert all(b"UNIQ_KEY\x01" in message.properties for message in messages)
    assert encode_batch(messages) == request.body
