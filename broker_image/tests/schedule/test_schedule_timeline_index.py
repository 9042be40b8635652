"""The timeline's index agrees with a dictionary after random operations; the model detects planted mistakes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pytest
from delaymq.schedule.timeline import TimelineDamagedError, cursors, inspection, merging, runs, state, timeline
from delaymq.schedule.timeline.compaction import Compaction
from delaymq.schedule.timeline.cursors import Cursor, EntryQueue, Key
from delaymq.schedule.timeline.entries import ENTRY_BYTES, Pending, Row
from delaymq.schedule.timeline.holding import Holding
from delaymq.schedule.timeline.merging import Merge
from delaymq.schedule.timeline.partitions import Partitions
from delaymq.schedule.timeline.queues import Queues
from delaymq.schedule.timeline.runs import Identities, Sizes
from delaymq.schedule.timeline.searching import newest_row
from delaymq.schedule.timeline.state import Capture
from delaymq.schedule.timeline.sweeping import Sweep
from delaymq.schedule.timeline.timeline import Timeline
from delaymq.schedule.timeline.wakeups import Wakeups
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.schedule.memory_files import MemoryFiles
from delaymq_testing.schedule.timeline_index_model import SMALL, IndexModel, ModelError

STEPS_A_RUN = 500
SIZES = (SMALL, Sizes(memory=4, run_in_memory=0, merged_runs=2, step=1), SMALL._replace(run_in_memory=8, step=50))
"""Sizes of consecutive runs: most runs of the index in memory or all in files, merges in many steps or in one."""
MAX_RUNS_UNTIL_FOUND = 400
PERFORMED = {
    "add", "end", "carry", "take", "settle", "give_back", "maintain", "capture", "crash", "tick", "pace", "take_paced",
    "fill_disk", "find", "move", "change_group", "pause", "resume", "shift",
}  # fmt: skip
"""Operations that each run of the test performs."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few entries, so that runs of some 30 entries consist of many."""
    monkeypatch.setattr(runs, "BLOCK_ENTRIES", 4)
    monkeypatch.setattr(runs, "BLOCK_BYTES", 4 * ENTRY_BYTES)
    monkeypatch.setattr(merging, "_PIECE_ENTRIES", 2)
    monkeypatch.setattr(cursors, "_BUFFERED", 3)


def test_index_agrees_with_a_dictionary_after_random_operations() -> None:
    counts: dict[str, int] = {}
    for run in range(max(1, FUZZ_INPUTS // STEPS_A_RUN)):
        model = IndexModel(SEED * 1_000_003 + run, SIZES[run % len(SIZES)])
        for _ in range(STEPS_A_RUN):
            model.step()
        for name, count in model.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts.keys() == PERFORMED, counts


# Planted mistakes: each function replaces one method by one that is wrong in one respect.

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTS: Final[dict[str, Plant]] = {}


def plant(function: Plant) -> Plant:
    PLANTS[function.__name__] = function
    return function


def wrap(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Callable[..., Any]) -> None:
    """Replaces a method by `wrong`, which receives the original before the other arguments."""
    monkeypatch.setattr(owner, name, functools.partialmethod(call, wrong, getattr(owner, name)))


def call(self: Any, wrong: Callable[..., Any], original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return wrong(original, self, *args, **named)


@plant
def ends_are_not_written_into_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def freeze(original: Callable[..., None], index: Timeline) -> None:
        index._ended.clear()
        original(index)

    wrap(monkeypatch, Timeline, "freeze", freeze)


@plant
def memory_is_kept_when_it_becomes_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def freeze(original: Callable[..., None], index: Timeline) -> None:
        kept = dict(index._memory)
        original(index)
        index._memory.update(kept)

    wrap(monkeypatch, Timeline, "freeze", freeze)
    monkeypatch.setattr(EntryQueue, "forget_fresh", lambda queue: None)


@plant
def oldest_run_wins_in_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_one(original: Callable[..., None], queue: EntryQueue, cursor: Cursor, key: Key) -> None:
        age = cursor.run.age
        cursor.run.age = -age
        original(queue, cursor, key)
        cursor.run.age = age

    wrap(monkeypatch, EntryQueue, "open", open_one)


@plant
def oldest_run_wins_in_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, Merge, "_newest", lambda original, merge, pieces: original(merge, pieces[::-1]))


@plant
def merged_position_is_one_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    def continued(original: Callable[..., Iterable[Any]], *args: Any) -> Iterator[Any]:
        for cursor, queue, key in original(*args):
            cursor.head += cursor.left > 1
            yield cursor, queue, key

    wrap(monkeypatch, Timeline, "_continued", continued)


@plant
def merged_position_is_that_of_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    def continued(original: Callable[..., Iterable[Any]], index: Timeline, run: Any, section: Any, *args: Any) -> Any:
        for cursor, queue, _ in original(index, run, section, *args):
            if index.queues.paced_up_to_ms is None:
                cursor.head = section.first
            yield cursor, queue, run.key_at(cursor.head)

    wrap(monkeypatch, Timeline, "_continued", continued)


@plant
def pieces_of_a_merge_are_not_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, merging._Rows, "take_up_to", lambda original, rows, bound: original(rows, None))


@plant
def end_is_dropped_although_an_older_run_has_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(original: Callable[..., None], merge: Merge, *args: Any, includes_oldest: bool) -> None:
        original(merge, *args, includes_oldest=True)

    wrap(monkeypatch, Merge, "__init__", init)


@plant
def ends_are_merged_like_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Merge, "_newest", lambda merge, pieces: merge._plain(pieces))


@plant
def merges_are_not_abandoned_after_pacing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compaction, "abandon", lambda compaction: None)


@plant
def run_is_read_beyond_the_first_entry_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_run(original: Callable[..., int], queue: EntryQueue, now_ms: int, count: int, _: Key, *args: Any) -> int:
        return original(queue, now_ms, count, (1 << 63, 0), *args)

    wrap(monkeypatch, EntryQueue, "_take_run", take_run)


@plant
def older_entries_with_the_key_are_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryQueue, "_skip", lambda queue, key: None)


@plant
def ended_entry_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(original: Callable[..., Pending | None], index: Timeline, *args: Any) -> Pending | None:
        ended, index._ended = index._ended, set()
        try:
            return original(index, *args)
        finally:
            index._ended = ended

    wrap(monkeypatch, Timeline, "find", find)


@plant
def plain_runs_are_searched_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(cursors: list[Cursor], key: Key) -> Row | None:
        return newest_row([cursor for cursor in cursors if cursor.run.is_plain], key) or newest_row(cursors, key)

    monkeypatch.setattr(timeline, "newest_row", search)


@plant
def identities_of_a_run_are_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, Identities, "add", lambda original, identities, data: original(identities, data[ENTRY_BYTES:]))


@plant
def replaced_record_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(original: Callable[..., None], index: Timeline, entry: Pending) -> None:
        if entry.record != entry.identity:
            index.hold(entry)
            index.count(entry, 1)
        else:
            original(index, entry)

    wrap(monkeypatch, Timeline, "add", add)


@plant
def carried_record_counts_where_the_first_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(original: Callable[..., None], index: Timeline, entry: Pending, messages: int) -> None:
        original(index, entry._replace(record=entry.identity), messages)

    wrap(monkeypatch, Timeline, "count", count)


@plant
def settled_message_stays_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeline, "settle", lambda index, identities: index._taken.pop(identities[0], None))


@plant
def returned_message_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeline, "give_back", lambda index, entries: [index._taken.pop(each[2]) for each in entries])


@plant
def wakeup_is_not_moved_to_an_earlier_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(original: Callable[..., None], wakeups: Wakeups, queue: EntryQueue, due_ms: int) -> None:
        if queue not in wakeups:
            original(wakeups, queue, due_ms)

    wrap(monkeypatch, Wakeups, "add", add)


@plant
def queue_does_not_wait_for_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(original: Callable[..., Any], index: Timeline, *args: Any) -> Any:
        wait, index.queues.wait = index.queues.wait, lambda *_: None
        try:
            return original(index, *args)
        finally:
            index.queues.wait = wait

    wrap(monkeypatch, Timeline, "take", take)


@plant
def pacing_takes_later_messages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, Cursor, "split", lambda original, cursor, due_ms: original(cursor, due_ms + 5))


@plant
def partitions_of_runs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, Partitions, "drop_unused", lambda original, partitions, used: original(partitions, ()))


@plant
def partition_numbers_are_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_state(described: dict[str, Any]) -> Partitions:
        keys = described["partitions"]
        renumbered = [[number, *key] for (number, *_), (_, *key) in zip(keys, keys[1:] + keys[:1], strict=True)]
        return original({**described, "partitions": renumbered})

    original = Partitions.from_state
    monkeypatch.setattr(Partitions, "from_state", from_state)


@plant
def taken_messages_are_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeline, "taken_messages", property(lambda index: []))


@plant
def memory_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(original: Callable[..., None], capture: Capture, index: Timeline) -> None:
        index.freeze = lambda: None
        original(capture, index)
        del index.freeze

    wrap(monkeypatch, Capture, "__init__", init)


@plant
def run_files_are_published_without_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(original: Callable[..., None], capture: Capture, index: Timeline) -> None:
        original(capture, index)
        capture._unsynced.clear()

    wrap(monkeypatch, Capture, "__init__", init)


@plant
def names_of_files_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFiles, "sync_names", lambda files: None)


@plant
def files_of_the_last_snapshot_are_removed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeline, "removable", property(lambda index: frozenset(index.garbage)))


@plant
def failed_snapshot_counts_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, Capture, "finish", lambda original, capture, is_published: original(capture, is_published=True))


@plant
def numbers_of_files_are_used_again_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_over_files(index: Timeline) -> None:
        number = index.file_number
        original(index)
        index.file_number = number

    original = state._take_over_files
    monkeypatch.setattr(state, "_take_over_files", take_over_files)


@plant
def orders_are_forgotten_although_they_came_during_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(original: Callable[..., None], sweep: Sweep) -> None:
        original(sweep)
        sweep._orders.clear()

    wrap(monkeypatch, Sweep, "_end", end)


@plant
def moved_entries_are_counted_with_those_that_they_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "MOVED", 1 << 40)
    monkeypatch.setattr(timeline, "MOVED", 0)


@plant
def resumed_queue_stays_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queues, "resume", lambda queues, topic, group: queues._paused.discard((topic, group)))


@plant
def moved_messages_of_a_paused_group_stay_in_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holding, "at_home", lambda holding, entry: entry)


@plant
def shifted_messages_are_taken_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, Queues, "shift", lambda original, queues, topic, shift: original(queues, topic, None))


@plant
def merged_runs_have_only_one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def continued(original: Callable[..., Any], index: Timeline, *args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(index.queues, "_shifts", {})
            return list(original(index, *args))

    wrap(monkeypatch, Timeline, "_continued", continued)


@pytest.mark.parametrize("name", PLANTS)
def test_model_detects_a_planted_mistake(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    for run in range(MAX_RUNS_UNTIL_FOUND):
        model = IndexModel(run, SIZES[run % len(SIZES)])
        try:
            for step in range(STEPS_A_RUN):
                model.step()
                if step % 16 == 0:
                    model.check_inspection()
        except (ModelError, TimelineDamagedError, ValueError, KeyError):
            return
    pytest.fail(f"not found in {MAX_RUNS_UNTIL_FOUND} runs")
