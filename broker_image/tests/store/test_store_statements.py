"""Records with statements of form 2."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from delaymq.message.names import DUE, TIMER_OUT_MS, TIMER_TOPIC
from delaymq.message.timed_marks import TimedDue, first_due, parse_own_due
from delaymq.store.dispatch import recorded_due_ms
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord
from delaymq_testing.store.small_stores import SMALL, message

Open = Callable[..., MessageStore]


def timed(unique_key: str, due_ms: int, body: bytes = b"") -> NewRecord:
    record = message(unique_key, topic=TIMER_TOPIC, body=body, REAL_TOPIC="Orders", REAL_QID="0")
    return record._replace(statement=first_due(due_ms))


def test_statement_names_the_place_of_its_record_in_the_next_segment_too(open_store: Open) -> None:
    store = open_store()
    store.raise_format_version(2)
    places = set()
    for number in range(100):
        appended = store.append(timed(f"u{number}", 5_000 + number, bytes(number * 7)))
        record = store.record_at(appended.physical_offset)
        assert record is not None
        assert record.properties == appended.properties
        assert parse_own_due(record.properties[DUE], record.physical_offset) == TimedDue(
            record.physical_offset, 5_000 + number, record.physical_offset
        )
        assert appended.tags_code == 5_000 + number
        places.add(appended.physical_offset // SMALL.commit_log_file_bytes)
    assert len(places) > 2


def test_batch_with_statements_is_stored_in_one_segment(open_store: Open) -> None:
    store = open_store()
    while store.end_offset < SMALL.commit_log_file_bytes - 900:
        store.append(message("filler", body=bytes(100)))
    appended = store.append_batch([timed(f"u{number}", 7_000, bytes(50)) for number in range(4)])
    assert appended[0].physical_offset == SMALL.commit_log_file_bytes
    for each in appended:
        assert parse_own_due(each.properties[DUE], each.physical_offset) is not None


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({DUE: str(TimedDue(500, 7_000, 500)), TIMER_OUT_MS: "6000"}, 7_000),
        ({DUE: str(TimedDue(500, 7_000, 500)).replace(":7000:", ":7001:"), TIMER_OUT_MS: "6000"}, 7_000),
        ({DUE: str(TimedDue(500, 7_000, 500)).replace(":7000:", ":9999:"), TIMER_OUT_MS: "6000"}, 6_000),
        ({DUE: str(TimedDue(400, 7_000, 400)), TIMER_OUT_MS: "6000"}, 6_000),
        ({TIMER_OUT_MS: "-1"}, None),
        ({TIMER_OUT_MS: "9" * 19}, None),
        ({}, None),
    ],
)
def test_due_time_of_a_timer_record_is_its_own_or_the_one_for_rocketmq(
    properties: dict[str, str], due_ms: int | None
) -> None:
    assert recorded_due_ms(properties, 500) == due_ms
