from __future__ import annotations

import json

import pytest
from delaymq.schedule import OffsetRanges, Settled
from hypothesis import given
from hypothesis import strategies as st


def test_settling_in_queue_order_moves_only_the_low_watermark() -> None:
    settled = Settled()
    assert all(settled.settle(offset) for offset in range(1_000))
    assert settled.low == 1_000
    assert settled.above.count == 0
    assert settled.state() == {"low": 1_000, "above": []}


def test_watermark_moves_over_entries_settled_above_it() -> None:
    settled = Settled(5)
    for offset in (7, 6, 9):
        assert settled.settle(offset)
    assert settled.state() == {"low": 5, "above": [6, 8, 9, 10]}
    assert settled.settle(5)
    assert settled.state() == {"low": 8, "above": [9, 10]}
    assert not settled.settle(9)
    assert not settled.settle(0)


@given(st.lists(st.integers(0, 60)), st.integers(0, 10), st.lists(st.integers(0, 70), max_size=3))
def test_settled_agrees_with_a_plain_set(offsets: list[int], low: int, raises: list[int]) -> None:
    settled = Settled(low)
    model = set(range(low))
    for number, offset in enumerate(offsets):
        assert settled.settle(offset) is (offset not in model)
        model.add(offset)
        if number % 7 == 6 and raises:
            raised = raises[number % len(raises)]
            assert settled.raise_low(raised) == len(set(range(raised)) - model)
            model |= set(range(raised))
        assert [offset for offset in range(80) if offset in settled] == sorted(model)
        assert settled.low not in settled
        assert settled.low + settled.above.count == len(model)
        again = Settled.from_state(json.loads(json.dumps(settled.state())))
        assert again.state() == settled.state()
        assert again.above.count == settled.above.count


@given(st.lists(st.integers(0, 40)), st.integers(0, 45), st.integers(0, 45))
def test_ranges_agree_with_a_plain_set(offsets: list[int], below: int, from_offset: int) -> None:
    ranges = OffsetRanges()
    for offset in offsets:
        ranges.add(offset)
    model = set(offsets)
    assert list(ranges) == sorted(model)
    assert ranges.count_below(below) == sum(offset < below for offset in model)
    assert all(there[0] > here[1] for here, there in zip(list(ranges.pairs()), list(ranges.pairs())[1:], strict=False))
    ranges.drop_below(below)
    ranges.drop_from(from_offset)
    model = {offset for offset in model if below <= offset < from_offset}
    assert list(ranges) == sorted(model)
    assert ranges.count == len(model)


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"low": -1, "above": []},
        {"low": True, "above": []},
        {"low": 1 << 70, "above": []},
        {"low": 5, "above": None},
        {"low": 5, "above": [6]},
        {"low": 5, "above": [5, 7]},
        {"low": 5, "above": [6, 6]},
        {"low": 5, "above": [8, 9, 9, 10]},
        {"low": 5, "above": [8, "9"]},
        {"low": 5, "above": [8, 1 << 70]},
    ],
)
def test_empty_state_is_rejected(state: object) -> None:
    with pytest.raises(ValueError, match=r"offset|settle"):
        Settled.from_state(state)


def test_shorter_queue_truncates_its_settled_ranges() -> None:
    settled = Settled.from_state({"low": 5, "above": [8, 12, 20, 30]})
    settled.cut(10)
    assert settled.state() == {"low": 5, "above": [8, 10]}
    settled.cut(3)
    assert settled.state() == {"low": 3, "above": []}
