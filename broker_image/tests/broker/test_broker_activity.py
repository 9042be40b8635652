"""Tracking of recently active groups is bounded, however many names clients invent."""

from typing import NoReturn

import pytest
from delaymq.broker.groups import activity
from delaymq.protocol.codes import RequestCode
from delaymq_testing.broker.harness import Harness


def test_invented_group_names_use_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "MAX_GROUPS", 3)
    kept = activity.GroupActivity(0)
    now_ms = 10 * activity.ACTIVE_MS
    for name in ("first", "second", "third"):
        kept.note_activity(name, 1)
    kept.note_activity("first", now_ms)
    for name in ("new", "newer", "one too many"):
        kept.note_activity(name, now_ms)
    # The silent ones gave way, the longest silence first, and nobody that is alive did.
    assert [kept.is_recent(name, now_ms) for name in ("first", "new", "newer")] == [True] * 3
    assert not any(kept.is_recent(name, now_ms) for name in ("second", "third", "one too many"))
    assert len(kept._seen_ms) == 3


def test_cost_of_a_new_group_is_independent_of_the_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is gone through for each made-up name would hold the event loop for seconds."""
    monkeypatch.setattr(activity, "MAX_GROUPS", 3)
    looked_up: list[str] = []

    class Table(dict[str, int]):
        def __getitem__(self, name: str) -> int:
            looked_up.append(name)
            return super().__getitem__(name)

        def items(self) -> NoReturn:
            raise AssertionError("every group is visited")

    kept = activity.GroupActivity(0)
    kept._seen_ms = Table(a=5, b=5, c=5)
    kept.note_activity("d", 6)
    assert looked_up == ["a"]


def test_group_without_offsets_is_not_active(harness: Harness) -> None:
    harness.send()
    fields = {"srcGroup": "nobody", "destGroup": "made-up", "topic": "Orders", "offline": "true"}
    assert harness.answer(RequestCode.CLONE_GROUP_OFFSET, fields).code == 0
    assert not harness.broker.activity._seen_ms
    fields = {"consumerGroup": "nobody", "topic": "Orders", "queueId": "0", "commitOffset": "1"}
    assert harness.answer(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0
    harness.answer(
        RequestCode.CLONE_GROUP_OFFSET,
        {"srcGroup": "nobody", "destGroup": "made-up", "topic": "Orders", "offline": "true"},
    )
    assert list(harness.broker.activity._seen_ms) == ["nobody", "made-up"]
