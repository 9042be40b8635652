"""Typed headers: required fields, ranges, and round trips of every class."""

from typing import Any, get_args

import msgspec
import pytest
from delaymq.protocol import headers
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    send_request_header,
)
from delaymq.protocol.integers import Int32, Int64
from hypothesis import given
from hypothesis import strategies as st

ALL_HEADERS: list[type[headers.Header]] = [
    getattr(headers, name) for name in headers.__all__ if name not in ("Header", "send_request_header")
]
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=40),
    bool: st.booleans(),
    Int32: st.integers(-(2**31), 2**31 - 1),
    Int64: st.integers(-(2**63), 2**63 - 1),
}
OFFSET_FIELDS = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "10"}


def values_of(field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any]:
    kind = next(kind for kind in (field.type, *get_args(field.type)) if kind in VALUES)
    return VALUES[kind] if field.required else st.none() | VALUES[kind]


any_header = st.sampled_from(ALL_HEADERS).flatmap(
    lambda header: st.builds(header, **{field.name: values_of(field) for field in msgspec.structs.fields(header)})
)


@given(any_header)
def test_every_header_survives_a_round_trip(header: headers.Header) -> None:
    fields = header.to_fields()
    assert all(isinstance(value, str) for value in fields.values())
    assert type(header).from_fields(fields) == header


@pytest.mark.parametrize("header", ALL_HEADERS)
def test_missing_required_field_is_named(header: type[headers.Header]) -> None:
    required = [field for field in msgspec.structs.fields(header) if field.required]
    if not required:
        assert header.from_fields({}).to_fields() == {}
        return
    with pytest.raises(RequestError) as caught:
        header.from_fields({})
    assert caught.value.code == 1
    assert caught.value.remark == f"the request lacks field {required[0].encode_name}"


@pytest.mark.parametrize(
    "queue_id", ["", " 1", "x", "0x1", "2147483648", "-2147483649", "9" * 5000, "1.5", "null", "١"]
)
def test_number_out_of_range_is_named_with_its_value(queue_id: str) -> None:
    with pytest.raises(RequestError) as caught:
        UpdateConsumerOffsetRequestHeader.from_fields(OFFSET_FIELDS | {"queueId": queue_id})
    assert caught.value.code == 1
    assert caught.value.remark.startswith("field queueId of the request is ")
    assert caught.value.remark.endswith("which is not a 32-bit integer")
    assert len(caught.value.remark) < 200


def test_limits_of_64_bits_fit_and_one_more_does_not() -> None:
    for offset in (2**63 - 1, -(2**63)):
        header = UpdateConsumerOffsetRequestHeader.from_fields(OFFSET_FIELDS | {"commitOffset": str(offset)})
        assert header.commit_offset == offset
    for offset in (2**63, -(2**63) - 1):
        with pytest.raises(RequestError, match="64-bit"):
            UpdateConsumerOffsetRequestHeader.from_fields(OFFSET_FIELDS | {"commitOffset": str(offset)})


def test_unknown_header_fields_are_ignored() -> None:
    header = UpdateConsumerOffsetRequestHeader.from_fields(OFFSET_FIELDS | {"bname": "broker-a"})
    assert (header.consumer_group, header.topic, header.queue_id, header.commit_offset) == ("G", "T", 0, 10)


def test_booleans_are_words() -> None:
    fields = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "8",
        "writeQueueNums": "8",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "true",
    }
    header = CreateTopicRequestHeader.from_fields(fields)
    assert header.order is True
    assert header.topic_sys_flag is None
    assert header.to_fields() == fields
    with pytest.raises(RequestError, match="order of the request is 'maybe', which is not true or false"):
        CreateTopicRequestHeader.from_fields(fields | {"order": "maybe"})


def test_text_resembling_other_types_stays_text() -> None:
    for text in ("null", "true", "12", ""):
        fields = {"clientID": text, "producerGroup": text}
        header = UnregisterClientRequestHeader.from_fields(fields)
        assert (header.client_id, header.producer_group, header.consumer_group) == (text, text, None)


def test_both_send_versions_yield_the_same_header() -> None:
    long = {
        "producerGroup": "P",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "1795222277588",
        "flag": "3",
        "properties": "TAGS\x01A",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
        "batch": "false",
        "brokerName": "broker-a",
    }
    short = dict(zip("abcdefghijklmn", long.values(), strict=True))
    first, second = send_request_header(10, long), send_request_header(310, short)
    assert isinstance(second, SendMessageRequestHeader)
    assert type(first) is SendMessageRequestHeader
    assert type(second) is SendMessageRequestHeaderV2
    assert msgspec.structs.asdict(first) == msgspec.structs.asdict(second)
    assert (second.to_fields(), first.to_fields()) == (short, long)
    assert type(send_request_header(320, short)) is type(send_request_header(325, short)) is SendMessageRequestHeaderV2
    assert type(send_request_header(324, long)) is SendMessageRequestHeader


def test_short_send_names_missing_fields_by_their_wire_names() -> None:
    with pytest.raises(RequestError, match="the request lacks field b "):
        send_request_header(310, {"a": "P"})


def test_pull_without_subscription_has_none() -> None:
    numbers = ["queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion"]
    header = PullMessageRequestHeader.from_fields({"consumerGroup": "G", "topic": "T"} | dict.fromkeys(numbers, "7"))
    assert header.subscription is None
    assert header.queue_offset == 7


def test_send_response_omits_an_absent_transaction() -> None:
    header = SendMessageResponseHeader("ID", 1, 2)
    assert header.to_fields() == {"msgId": "ID", "queueId": "1", "queueOffset": "2"}
