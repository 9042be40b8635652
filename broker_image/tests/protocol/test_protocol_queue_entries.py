"""Entries built from templates equal those of fully encoded bodies."""

import pytest
from delaymq.protocol.bodies import (
    Body,
    ConsumeOffset,
    ConsumeStats,
    MessageQueue,
    QueueTimeSpan,
    ResetOffset,
    TimeSpans,
    TopicOffset,
    TopicStats,
)
from delaymq.protocol.queue_entries import (
    element_template,
    entry_template,
    listed_offset_template,
    offset_template,
)

NAMES = [
    ("broker-a", "Orders"),
    ("", ""),
    ("50%", "%RETRY%readers"),
    ("%d", "%%s%(x)d"),
    ('quo"te', "back\\slash"),
    ("Köln 東京 😀", "\u2028\u00e9\uffff"),
    ("\x00\x1f\x7f\t\r\n", "</script>&'"),
]
NUMBERS = [(0, 0, 0), (1, 2, 3), (-1, 2**63 - 1, -(2**63)), (1_700_000_000_000, -1, 7)]


@pytest.mark.parametrize(("broker_name", "topic"), NAMES)
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize(("value", "table"), [(TopicOffset, TopicStats), (ConsumeOffset, ConsumeStats)])
def test_table_entry_equals_the_encoded_body(
    broker_name: str, topic: str, numbers: tuple[int, int, int], value: type[Body], table: type[Body]
) -> None:
    queue = MessageQueue(broker_name, 16_383, topic)
    written = b'{"offsetTable":{' + entry_template(broker_name, topic, value) % (16_383, *numbers) + b"}"
    assert table({queue: value(*numbers)}).encode().startswith(written)


@pytest.mark.parametrize(("broker_name", "topic"), NAMES)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_list_element_equals_the_encoded_body(broker_name: str, topic: str, numbers: tuple[int, int, int]) -> None:
    span = QueueTimeSpan(MessageQueue(broker_name, 7, topic), *numbers, 9)
    written = element_template(broker_name, topic, QueueTimeSpan) % (7, *numbers, 9)
    assert TimeSpans([span]).encode() == b'{"consumeTimeSpanSet":[' + written + b"]}"


@pytest.mark.parametrize(("broker_name", "topic"), NAMES)
def test_reset_offset_equals_both_formats_of_the_encoded_body(broker_name: str, topic: str) -> None:
    body = ResetOffset({MessageQueue(broker_name, 3, topic): 2**40})
    plain = offset_template(broker_name, topic) % (3, 2**40)
    listed = listed_offset_template(broker_name, topic) % (2**40, 3)
    assert body.encode() == b'{"offsetTable":{' + plain + b"}}"
    assert body.encode_as_list() == b'{"offsetTable":[' + listed + b"]}"
