"""Interpretation of a producer's delay level, and immediate rejections."""

from __future__ import annotations

import logging

import pytest
from delaymq.broker.delivery.delay_rewrite import MARK_ROOM_BYTES, requested_level
from delaymq.message.errors import IllegalMessageError
from delaymq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from delaymq_testing.broker.delivery_harness import Bench, Settings


@pytest.mark.parametrize(
    ("text", "level"), [(None, 0), ("0", 0), ("-3", 0), ("3", 3), ("+3", 3), ("007", 7), ("2147483647", 2147483647)]
)
def test_level_is_read_as_by_rocketmq(text: str | None, level: int) -> None:
    assert requested_level({} if text is None else {"DELAY": text}) == level


@pytest.mark.parametrize("text", ["", " 3", "3s", "1_0", "2147483648", "-2147483649", "٣", "3" * 5_000])
def test_non_numeric_level_is_rejected(text: str) -> None:
    with pytest.raises(IllegalMessageError, match="not a delay level"):
        requested_level({"DELAY": text})


def test_properties_too_long_for_delivery_are_rejected_unchanged() -> None:
    bench = Bench("1s")
    fitting: dict[str, str] | None = None
    for length in range(MAX_PROPERTIES_BYTES - 400, MAX_PROPERTIES_BYTES):
        properties = {"UNIQ_KEY": "a", "long": "x" * length}
        try:
            _, _, fitting = bench.delivery.ingress.prepare(dict(properties), "orders", 0, 1)
        except IllegalMessageError:
            refused = dict(properties)
            with pytest.raises(IllegalMessageError, match="limit: "):
                bench.delivery.ingress.prepare(refused, "orders", 0, 1)
            assert refused == properties
            break
    else:
        pytest.fail("nothing was refused")
    assert fitting is not None
    assert len(encode_properties(fitting)) == MAX_PROPERTIES_BYTES - MARK_ROOM_BYTES
    bench.append("a", topic="SCHEDULE_TOPIC_XXXX", queue_id=0, properties=fitting)
    bench.now_ms += 1_000
    assert bench.hand_over() == ["a"]
    assert "__DMQ_MARK" in bench.copies()[0].properties


def test_wide_characters_count_in_bytes() -> None:
    bench = Bench("1s")
    with pytest.raises(IllegalMessageError, match="limit: "):
        bench.delivery.ingress.prepare({"long": "€" * 11_000}, "orders", 0, 1)
    bench.delivery.ingress.prepare({"long": "€" * 10_000}, "orders", 0, 1)


def test_retries_are_clamped_where_producers_are_rejected() -> None:
    bench = Bench("1s 5s", Settings(delay_level_overflow="reject"))
    with pytest.raises(IllegalMessageError, match="above the highest"):
        bench.delivery.ingress.prepare({}, "orders", 0, 18)
    topic, queue_id, properties = bench.delivery.ingress.prepare({}, "%RETRY%group", 0, 18, retry=True)
    assert (topic, queue_id, properties["DELAY"]) == ("SCHEDULE_TOPIC_XXXX", 1, "2")
    assert bench.delivery.counters.clamped == 1


def test_clamping_is_logged_once_a_minute_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("1s")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            bench.delivery.ingress.prepare({}, "orders", 0, 9)
        bench.now_ms += 60_000
        bench.delivery.ingress.prepare({}, "orders", 0, 9)
    assert [record.getMessage() for record in caplog.records] == [
        "delay level 9 is above the highest and was clamped to 1",
        "delay level 9 is above the highest and was clamped to 1 (4 more since the last time)",
    ]
