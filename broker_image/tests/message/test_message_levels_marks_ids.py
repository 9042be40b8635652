"""Levels, marks, ids, names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from delaymq.message.errors import LevelTableError
from delaymq.message.ids import UniqueIds, offset_message_id, pack_host, parse_offset_message_id, unpack_host
from delaymq.message.levels import (
    DEFAULT_LEVELS,
    MAX_LEVELS,
    DelayLevels,
    level_of_queue,
    parse_delay_ms,
    queue_of_level,
)
from delaymq.message.marks import DUE_WIDTH, Mark, MarkKind, format_due, parse_due, parse_mark
from delaymq.message.names import dead_letter_topic, group_problem, is_system_group, retry_topic, topic_problem
from hypothesis import given
from hypothesis import strategies as st


def test_default_table_is_rocketmqs() -> None:
    levels = DelayLevels.parse(DEFAULT_LEVELS)
    assert levels == DelayLevels.parse()
    assert levels.max_level == 18
    assert [levels.delay_ms(level) for level in (1, 5, 17, 18)] == [1_000, 60_000, 3_600_000, 7_200_000]
    assert levels.delay_ms(19) == levels.delay_ms(18)
    assert 18 in levels
    assert 19 not in levels
    assert 0 not in levels


@pytest.mark.parametrize(
    ("text", "delay_ms"), [("1s", 1_000), ("30m", 1_800_000), ("2h", 7_200_000), ("7d", 604_800_000)]
)
def test_delays_have_a_unit(text: str, delay_ms: int) -> None:
    assert parse_delay_ms(text) == delay_ms


@pytest.mark.parametrize("text", ["", "s", "5", "5x", "-1s", "0s", "1.5s", "٣s", "99999999999999s", "4000d", " 1s"])
def test_invalid_delay_is_rejected(text: str) -> None:
    with pytest.raises(LevelTableError):
        parse_delay_ms(text)


def test_invalid_table_error_names_the_level() -> None:
    with pytest.raises(LevelTableError, match="level 2"):
        DelayLevels.parse("1s 5x 10s")
    with pytest.raises(LevelTableError, match="empty"):
        DelayLevels.parse("  ")
    with pytest.raises(LevelTableError, match="use fewer"):
        DelayLevels.parse("1s " * (MAX_LEVELS + 1))


@given(st.integers(1, 1_000))
def test_level_has_its_own_queue(level: int) -> None:
    assert level_of_queue(queue_of_level(level)) == level


@given(st.integers(0, 10**16 - 1), st.integers(0, 9_999), st.integers(0, 10**19))
def test_due_time_is_trusted_only_in_its_own_record(due_ms: int, queue_id: int, queue_offset: int) -> None:
    text = format_due(due_ms, queue_id, queue_offset)
    assert len(text) == DUE_WIDTH
    assert parse_due(text, queue_id, queue_offset) == due_ms
    assert parse_due(text, queue_id + 1, queue_offset) is None
    assert parse_due(text, queue_id, queue_offset + 1) is None


@pytest.mark.parametrize("text", ["", "1:2:3", "x" * DUE_WIDTH, format_due(1, 2, 3) + "0", format_due(1, 2, 3) + "\n"])
def test_invalid_due_time_is_none(text: str) -> None:
    assert parse_due(text, 2, 3) is None


@given(st.sampled_from(list(MarkKind)), st.integers(0, 9_999), st.integers(0, 10**19), st.integers(0, 10**19))
def test_mark_survives_a_round_trip(kind: MarkKind, queue_id: int, queue_offset: int, offset: int) -> None:
    mark = Mark(kind, queue_id, queue_offset, offset)
    assert parse_mark(str(mark)) == mark


@pytest.mark.parametrize(
    "text", ["", "delivered", "delivered:1:2", "eaten:1:2:3", "delivered:1:2:3:4", "delivered:-1:2:3"]
)
def test_invalid_mark_is_none(text: str) -> None:
    assert parse_mark(text) is None


@pytest.mark.parametrize(("address", "port", "digits"), [("127.0.0.1", 10_911, 32), ("2001:db8::1", 65_535, 56)])
def test_offset_id_contains_the_records_location(address: str, port: int, digits: int) -> None:
    host = pack_host(address, port)
    assert unpack_host(host) == (address, port)
    message_id = offset_message_id(host, 123_456_789)
    assert len(message_id) == digits
    assert parse_offset_message_id(message_id) == (address, port, 123_456_789)


def test_golden_offset_id() -> None:
    assert parse_offset_message_id("7F000001000051AF000000000000010E") == ("127.0.0.1", 20_911, 270)


@pytest.mark.parametrize("text", ["", "7F", "Z" * 32, "7F000001000051AF0000000000000"])
def test_invalid_offset_id_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"hex|hexadecimal"):
        parse_offset_message_id(text)


@pytest.mark.parametrize(("address", "digits"), [("127.0.0.1", 32), ("::1", 56)])
def test_unique_ids_differ(address: str, digits: int) -> None:
    ids = UniqueIds(address)
    made = {ids.next() for _ in range(1_000)}
    assert len(made) == 1_000
    assert {len(one) for one in made} == {digits}


def test_unique_ids_state_the_time_since_the_start_of_the_month(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, start = UniqueIds(), datetime(2026, 11, 1, tzinfo=UTC)
    following = datetime(2026, 12, 1, tzinfo=UTC)
    for moment, ms in ((start, 0), (start, 0), (following - timedelta(milliseconds=1), 2_591_999_999), (following, 0),
                       (start + timedelta(milliseconds=7), 7)):  # fmt: skip
        now_ns = int(moment.timestamp() * 1_000) * 1_000_000
        monkeypatch.setattr("delaymq.message.ids.time.time_ns", lambda now_ns=now_ns: now_ns)
        assert int(ids.next()[-12:-4], 16) == ms


def test_topic_names() -> None:
    assert topic_problem("Orders-1_x|y%z") is None
    assert topic_problem(retry_topic("group")) is None
    assert topic_problem(dead_letter_topic("group")) is None
    assert "blank" in (topic_problem(" ") or "")
    assert "illegal" in (topic_problem("a/b") or "")
    assert "illegal" in (topic_problem("ok\n") or "")
    assert "longer" in (topic_problem("t" * 128) or "")
    assert topic_problem("t" * 127) is None
    assert group_problem("g" * 255) is None
    assert group_problem("g" * 256) is not None
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("mine")
