"""Half messages of a store that RocketMQ wrote are kept until somebody can settle them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from broker_harness import Harness
from delaymq.broker.half_messages import PROGRESS_GROUP, oldest_half_message
from delaymq.message.names import HALF_TOPIC, OP_HALF_TOPIC
from delaymq.store.model import NewRecord

HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"


def store(harness: Harness, topic: str, body: bytes) -> int:
    record = NewRecord(topic, 0, body, {"UNIQ_KEY": f"{topic}-{body!r}"}, 0, 0, 1, HOST, HOST)
    return harness.broker.store.append(record).physical_offset


def oldest(harness: Harness) -> int | None:
    return oldest_half_message(harness.broker.store, harness.broker.offsets.get)


def test_a_store_without_transactions_holds_nothing(open_harness: Callable[..., Harness]) -> None:
    assert oldest(open_harness()) is None


def test_the_oldest_half_message_without_an_op_mark_is_held(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness()
    halves = [store(harness, HALF_TOPIC, b"half %d" % number) for number in range(4)]
    assert oldest(harness) == halves[0]
    store(harness, OP_HALF_TOPIC, b"0")
    store(harness, OP_HALF_TOPIC, b"2")
    assert oldest(harness) == halves[1]
    store(harness, OP_HALF_TOPIC, b"not a number")
    store(harness, OP_HALF_TOPIC, b"1")
    store(harness, OP_HALF_TOPIC, b"3")
    assert oldest(harness) is None


def test_what_lies_before_the_progress_of_check_back_is_settled(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness()
    halves = [store(harness, HALF_TOPIC, b"half %d" % number) for number in range(3)]
    harness.broker.offsets.commit(HALF_TOPIC, PROGRESS_GROUP, 0, 2)
    assert oldest(harness) == halves[2]


@pytest.mark.parametrize("settled", [False, True])
def test_an_open_broker_pins_them_in_the_log(open_harness: Callable[..., Harness], settled: bool) -> None:
    harness = open_harness()
    half = store(harness, HALF_TOPIC, b"half")
    if settled:
        store(harness, OP_HALF_TOPIC, b"0")
    harness.restart()
    pins = {pin.holder: pin.offset for pin in harness.broker.store.pins.report()}
    assert pins.get("half messages") == (None if settled else half)
