"""The model of deliveries detects planted bugs in groups and pauses."""

from __future__ import annotations

from typing import Any

import pytest
from delaymq.broker.delivery.changes import fates
from delaymq.broker.delivery.changes.lookup import Lookup
from delaymq.broker.delivery.pause_facts import PauseFacts
from delaymq.broker.delivery.timed.replay import TimedReplay
from delaymq.schedule.timeline import Pending, rebuilding
from delaymq.schedule.timeline.holding import Holding
from delaymq.schedule.timeline.partitions import Partitions
from delaymq.schedule.timeline.queues import Queues
from delaymq.schedule.timeline.rebuilding import GroupStatements
from delaymq.schedule.timeline.sweeping import Sweep
from delaymq.schedule.timeline.timeline import Timeline
from delaymq_testing.broker.delivery_life import Life, run_to_the_end

MAX_RUNS_UNTIL_FOUND = 200


def _nothing(*_: object, **__: object) -> None:
    """Replaces a method whose effect is omitted."""


def _completed_without_a_step(self: Sweep) -> bool:
    self._orders.clear()
    return False


def _cancelled_in_place_of_moved(self: Sweep, topic: str, group: str, due_ms: int | None) -> Any:
    return _change(self, topic, group, None)


def _with_the_former_owner(self: Sweep, entry: Pending, order: Any) -> Pending | None:
    state = _new_state(self, entry, order)
    return None if state is None else state._replace(owner=entry.owner)


def _without_pausing_groups(self: Queues, topic: str, group: str) -> None:
    _pause(self, topic, "")


def _paused_once_more(self: PauseFacts, mark: Any, account: str = "") -> None:
    _apply(self, mark, account)
    if mark.kind == "resumed":
        self.table.update(self.from_json([[mark.topic, mark.group, 0, 0, ""]]).table)


_change, _new_state, _pause = Sweep.change, Sweep._new_state, Queues.pause
_apply = PauseFacts.apply
BUGS: dict[str, tuple[object, str, object]] = {
    "changes of groups do not apply to taken messages": (
        Sweep,
        "apply_to_taken",
        lambda self, each, now: each,
    ),
    "changes of groups do not apply to messages that are found": (Sweep, "apply", lambda self, entry: entry),
    "changes of groups are forgotten before they are applied": (Sweep, "step", _completed_without_a_step),
    "changes of groups are not saved": (Sweep, "state", lambda self: []),
    "moved groups end": (Sweep, "change", _cancelled_in_place_of_moved),
    "moved messages keep their former owners": (Sweep, "_new_state", _with_the_former_owner),
    "entries that newer ones replace are changed as well": (Timeline, "is_replaced", lambda self, entry: False),
    "a start ignores changes of groups": (TimedReplay, "_apply_to_group", _nothing),
    "changes of groups are ignored when the whole log is replayed": (
        GroupStatements,
        "due_after",
        lambda self, topic, group, place, due_ms: due_ms,
    ),
    "changes of groups apply to later messages": (rebuilding, "bisect_right", lambda *_, **__: 0),
    "groups keep owners without messages": (Partitions, "forget_owner", _nothing),
    "pauses are not saved": (PauseFacts, "as_json", lambda self: []),
    "a resumed group is paused after a start": (PauseFacts, "apply", _paused_once_more),
    "messages of paused groups are delivered": (Holding, "hold_if_paused", lambda self, entry: False),
    "pauses of groups apply to topics": (Queues, "pause", _without_pausing_groups),
    "held messages are not found": (Holding, "of", lambda self, partition: ()),
    "messages of moved groups are not found": (Lookup, "_moved_with_group", _nothing),
    "it is unknown that a message ended with its group": (fates, "_cancelled_with_group", _nothing),
}


@pytest.mark.parametrize("bug", BUGS)
def test_model_detects_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[bug])
    for run in range(MAX_RUNS_UNTIL_FOUND):
        try:
            run_to_the_end(Life(run))
        except Exception:
            return
    pytest.fail(f"not found in {MAX_RUNS_UNTIL_FOUND} runs")
