"""Start ``delaymq`` so that it kills itself at a named point: ``python kill_points.py NAME:N ARGUMENTS OF delaymq``.

When the point is reached for the N-th time, the process kills itself with SIGKILL. The points wrap functions of the
broker at run time; the broker does not depend on them. A missing function is an immediate error.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

MESSAGE = "kill point reached: "
EXIT_USAGE = 2

Reached = Callable[[], None]


def copy_appended(reached: Reached) -> None:
    """After a delivered copy was appended to the log, alone or in a run, before its entry is settled."""
    from delaymq.broker.delivery.hand_over import HandOver
    from delaymq.store.message_store import MessageStore

    _after(MessageStore, "append_encoded_copies", reached, lambda copied: copied[0] if copied else 0)
    _within_runs(reached, "append_copies", lambda record: True)
    _after(HandOver, "_append", reached)


def sends_appended(reached: Reached) -> None:
    """After a send's record was appended to the log, alone or with others of a read, before the responses."""
    from delaymq.store.message_store import MessageStore

    def messages(sent: Any) -> int:
        return sum(each[1] for each in sent[5]) + len(sent[8]) if sent else 0

    _after(MessageStore, "append_encoded_sends", reached, messages)
    _after_appends(reached, lambda message: not message.is_copy)


def _within_runs(reached: Reached, name: str, is_meant: Callable[[Any], bool]) -> None:
    """Call `reached` whenever the function of the store has appended such a record of a run."""
    from delaymq.store.message_store import MessageStore

    class Appended(list[Any]):
        def append(self, record: Any) -> None:
            super().append(record)
            if is_meant(record):
                reached()

    append_run = _function(MessageStore, name)

    def marked(store: MessageStore, records: Sequence[Any], appended: list[Any]) -> None:
        seen = Appended()
        try:
            append_run(store, records, seen)
        finally:
            appended += seen

    _replace(MessageStore, name, marked)


def segment_roll(reached: Reached) -> None:
    """After the blank record closed a segment, before the next one is used."""
    from delaymq.store.commit_log import CommitLog

    rolling = False
    roll, activate = _function(CommitLog, "roll"), _function(CommitLog, "_activate")

    def marked_roll(*arguments: Any) -> Any:
        nonlocal rolling
        rolling = True
        try:
            return roll(*arguments)
        finally:
            rolling = False

    def marked_activate(*arguments: Any) -> Any:
        if rolling:
            reached()
        return activate(*arguments)

    _replace(CommitLog, "roll", marked_roll)
    _replace(CommitLog, "_activate", marked_activate)


def config_rename(reached: Reached) -> None:
    """After a config file's new content was written to a temporary file and the old file became the backup."""
    from delaymq.store.disk.files import Files

    rename = _function(Files, "rename")

    def marked(files: Files, source: str, target: str) -> Any:
        if target.endswith(".json"):
            reached()
        return rename(files, source, target)

    _replace(Files, "rename", marked)


def queue_flush(reached: Reached) -> None:
    """After one queue's new entries were flushed, while those of others are only in memory."""
    from delaymq.store.consume_queue import ConsumeQueues

    _after(ConsumeQueues, "_write_tail", reached)


def truncation(reached: Reached) -> None:
    """After recovery cleared the data behind the last valid record, before it writes anything else."""
    from delaymq.store.disk.files import Files

    _after(Files, "zero", reached)


def send_back_appended(reached: Reached) -> None:
    """After a send-back was appended to the log, before the response to the consumer."""
    from delaymq.broker.processors.table import PROCESSORS
    from delaymq.protocol.codes import RequestCode

    send_back = PROCESSORS[RequestCode.CONSUMER_SEND_MSG_BACK]

    def marked(*arguments: Any) -> Any:
        answer = send_back(*arguments)
        reached()
        return answer

    PROCESSORS[RequestCode.CONSUMER_SEND_MSG_BACK] = marked


def half_appended(reached: Reached) -> None:
    """After a half message was appended to the log, before the response to its producer."""
    from delaymq.store.message_store import MessageStore

    _after(MessageStore, "append_encoded_sends", reached, lambda sent: sum(each[3] for each in sent[5]) if sent else 0)
    _after_appends(reached, lambda message: message.topic == "RMQ_SYS_TRANS_HALF_TOPIC")


def commit_copied(reached: Reached) -> None:
    """After the copy of a committed message was appended to the log, before its op mark."""
    _after_appends(reached, lambda message: bool(message.sys_flag & 8) and message.properties.get("DELAY") is None)


def op_marked(reached: Reached) -> None:
    """After the op mark of a commit or rollback was appended to the log, before the response to its producer."""
    _after_appends(reached, lambda message: message.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC")


def checked(reached: Reached) -> None:
    """After a check was sent to a producer."""
    from delaymq.broker.transactions.producers import Producers

    _after(Producers, "send_check", reached)


def _after_appends(reached: Reached, is_meant: Callable[[Any], bool]) -> None:
    from delaymq.store.message_store import MessageStore

    append = _function(MessageStore, "append")

    def marked(store: MessageStore, message: Any) -> Any:
        answer = append(store, message)
        if is_meant(message):
            reached()
        return answer

    _replace(MessageStore, "append", marked)


def version_raised(reached: Reached) -> None:
    """After state.json excluded older programs, before the first timed record is appended."""
    from delaymq.store import layout

    raised, write_state = _function(layout, "raised"), _function(layout, "write_state")
    states: list[object] = []

    def marked_raised(state: Any, version: int) -> Any:
        states.append(raised(state, version))
        return states[-1]

    def marked_write_state(files: Any, path: str, state: Any) -> None:
        write_state(files, path, state)
        if state in states:
            reached()

    _replace(layout, "raised", marked_raised)
    _replace(layout, "write_state", marked_write_state)


def timed_appended(reached: Reached) -> None:
    """After a timed record was appended to the log, alone or within a batch, before the response to its producer."""
    _after_appends(reached, lambda message: message.topic == "rmq_sys_wheel_timer" and not message.is_copy)
    _within_runs(reached, "_append_run", lambda record: record.topic == "rmq_sys_wheel_timer")


def timed_copy_appended(reached: Reached) -> None:
    """After the copy of a pending message was appended to the log, before it is settled in the index."""
    from delaymq.schedule.timeline import Timeline

    settle = _function(Timeline, "settle")

    def marked(timeline: Timeline, identities: Sequence[int]) -> None:
        for _ in identities:
            reached()
        settle(timeline, identities)

    _replace(Timeline, "settle", marked)


def change_appended(reached: Reached) -> None:
    """After the mark of a cancelled or moved message was appended to the log, before the index has changed."""
    _after_changes(reached, lambda record: record.topic != "rmq_sys_wheel_timer")


def level_moved(reached: Reached) -> None:
    """After a message with a delay level was appended as a timed one, before its earlier entry is settled."""
    _after_changes(reached, lambda record: record.topic == "rmq_sys_wheel_timer")


def _after_changes(reached: Reached, is_meant: Callable[[Any], bool]) -> None:
    from delaymq.broker.delivery.changes.changes import Changes

    append = _function(Changes, "_append")

    def marked(changes: Changes, record: Any) -> Any:
        appended = append(changes, record)
        if is_meant(record):
            reached()
        return appended

    _replace(Changes, "_append", marked)


def replacing_appended(reached: Reached) -> None:
    """After a message that replaces a pending one was appended to the log, before the other one leaves the index."""
    from delaymq.broker.delivery.delivery import Delivery

    replace = _function(Delivery, "_replace")

    def marked(*arguments: Any) -> Any:
        reached()
        return replace(*arguments)

    _replace(Delivery, "_replace", marked)


def group_changed(reached: Reached) -> None:
    """After the mark of a group's change was appended to the log, before the index has changed."""
    from delaymq.broker.delivery.changes import groups

    _after(groups, "append_statement", reached)


def paused(reached: Reached) -> None:
    """After the mark of a pause was appended to the log, for the first time, before it applies."""
    _after_pause_marks(reached, is_carried=False)


def pause_carried(reached: Reached) -> None:
    """After the mark of a pause was appended again, before the segment of the earlier one is deleted."""
    _after_pause_marks(reached, is_carried=True)


def _after_pause_marks(reached: Reached, *, is_carried: bool) -> None:
    from delaymq.broker.delivery.changes import pauses
    from delaymq.store.model import Reserve

    append = _function(pauses, "append_statement")

    def marked(store: Any, record: Any, version: int) -> Any:
        appended = append(store, record, version)
        if record.statement.body.startswith("paused:") and (record.reserve is Reserve.CARRYING) == is_carried:
            reached()
        return appended

    _replace(pauses, "append_statement", marked)


def group_swept(reached: Reached) -> None:
    """After a step of a sweep has replaced entries of changed groups, in a start or after it, before its end."""
    from delaymq.schedule.timeline.sweeping import Sweep

    _after(Sweep, "_apply", reached)


def group_swept_running(reached: Reached) -> None:
    """The same, after the start."""
    from delaymq.broker.delivery.timed.replay import TimedReplay

    started = False

    def start() -> None:
        nonlocal started
        started = True

    _after(TimedReplay, "finish", start)
    group_swept(lambda: reached() if started else None)


def held(reached: Reached) -> None:
    """After a due message was put aside because its group is paused."""
    from delaymq.schedule.timeline.holding import Holding

    hold = _function(Holding, "hold_if_paused")

    def marked(holding: Holding, entry: Any) -> bool:
        is_held: bool = hold(holding, entry)
        if is_held:
            reached()
        return is_held

    _replace(Holding, "hold_if_paused", marked)


def run_appended(reached: Reached) -> None:
    """After the copy of a run of a repeating message was appended to the log, before its next due time is indexed."""
    from delaymq.broker.delivery.repeating.runs import Repeating

    done = _function(Repeating, "done")

    def marked(repeating: Repeating, outcome: Any, pending: Any) -> None:
        if outcome.run is not None:
            reached()
        done(repeating, outcome, pending)

    _replace(Repeating, "done", marked)


def repeating_carried(reached: Reached) -> None:
    """After a repeating message was carried forward, before the segment of its earlier record is deleted."""
    _after_carries(reached, lambda record: "DELAY_EVERY_MS" in record.properties or "DELAY_CRON" in record.properties)


def group_replayed(reached: Reached) -> None:
    """After the statement about a group or a pause was read during a start."""
    from delaymq.broker.delivery.timed.replay import TimedReplay

    _after(TimedReplay, "_apply_to_group", reached)


def timeline_written(reached: Reached) -> None:
    """After a snapshot's state of the timeline was written, before snapshot.json refers to it."""
    from delaymq.schedule.timeline.state import Capture

    _after(Capture, "write", reached)


def run_merging(reached: Reached) -> None:
    """After a step of a merge whose result is a file that is not complete."""
    from delaymq.schedule.timeline.merging import Merge

    step = _function(Merge, "step")

    def marked(merge: Merge, entries: int) -> int:
        merged: int = step(merge, entries)
        if merged and merge.writer.name:
            reached()
        return merged

    _replace(Merge, "step", marked)


def carried(reached: Reached) -> None:
    """After a pending message was carried forward, before the segment of its earlier record is deleted."""
    _after_carries(reached, lambda record: True)


def level_carried(reached: Reached) -> None:
    """After a pending message with a delay level was carried forward to a new entry of its queue."""
    _after_carries(reached, lambda record: record.topic == "SCHEDULE_TOPIC_XXXX")


def _after_carries(reached: Reached, is_meant: Callable[[Any], bool]) -> None:
    from delaymq.broker.delivery.timed.carrying import Carrier

    carry = _function(Carrier, "_carry")

    def marked(carrier: Carrier, record: Any, *arguments: Any) -> int:
        meant = is_meant(record)
        written: int = carry(carrier, record, *arguments)
        if written and meant:
            reached()
        return written

    _replace(Carrier, "_carry", marked)


def segment_deleted(reached: Reached) -> None:
    """After a segment was deleted, before the files of the queues that refer to it."""
    from delaymq.store.commit_log import CommitLog

    _after(CommitLog, "remove_first", reached)


def timed_replayed(reached: Reached) -> None:
    """After a record of the timer topic was added to the index during a start."""
    from delaymq.broker.delivery.timed.replay import TimedReplay

    _after(TimedReplay, "entry", reached)


def recovered(reached: Reached) -> None:
    """After the recovery of the store, before anything is delivered."""
    from delaymq.store.recovery.recovery import Recovery

    _after(Recovery, "run", reached)


def none(reached: Reached) -> None:
    """At no time."""


POINTS: dict[str, Callable[[Reached], None]] = {
    point.__name__.replace("_", "-"): point
    for point in (
        none, copy_appended, sends_appended, segment_roll, config_rename, queue_flush, truncation,
        send_back_appended, half_appended, commit_copied, op_marked, checked, version_raised, timed_appended,
        timed_copy_appended, change_appended, level_moved, replacing_appended, group_changed, group_swept,
        group_swept_running, paused, held, run_appended, repeating_carried, pause_carried, group_replayed,
        timeline_written, run_merging, carried, level_carried, segment_deleted, timed_replayed, recovered,
    )
}  # fmt: skip


HOUR_MS = "DELAYMQ_CRASH_HOUR_MS"
"""Environment variable: length of an hour of retention, in ms. Carrying and the timeline become faster and smaller."""


def shorten_retention(hour_ms: int) -> None:
    """Delete and carry segments as if hours had this length, with small runs of the timeline in files."""
    from delaymq.broker.delivery.timed import carrying
    from delaymq.schedule.timeline.runs import Sizes
    from delaymq.server import broker_jobs
    from delaymq.store import retention

    for module, name, value in (
        (retention, "_HOUR_MS", hour_ms),
        (carrying, "_SOON_MS", 500),
        (carrying, "_PASS_INTERVAL_MS", 500),
        (carrying, "_TARGET_INTERVAL_MS", 200),
        (broker_jobs, "CLEAN_INTERVAL_MS", 500),
    ):
        getattr(module, name)
        setattr(module, name, value)
    assert Sizes._fields == ("memory", "run_in_memory", "merged_runs", "step")
    Sizes.__new__.__defaults__ = (256, 1_500, 8, 256)


def _function(owner: Any, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(owner, name)
    return function


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def _after(owner: Any, name: str, reached: Reached, times: Callable[[Any], int] = lambda answer: 1) -> None:
    function = _function(owner, name)

    def marked(*arguments: Any, **named: Any) -> Any:
        answer = function(*arguments, **named)
        for _ in range(times(answer)):
            reached()
        return answer

    _replace(owner, name, marked)


def install(point: str) -> None:
    """Install the point ``NAME:N`` in the broker's functions."""
    name, _, times = point.partition(":")
    left = int(times or 1)

    def reached() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            sys.stderr.write(f"{MESSAGE}{point}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    POINTS[name](reached)


def main() -> None:
    """Install the point, then run ``delaymq`` with the remaining arguments."""
    if len(sys.argv) < 2 or sys.argv[1].partition(":")[0] not in POINTS:
        print(f"usage: kill_points.py NAME:N ARGUMENTS; names: {', '.join(POINTS)}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    install(sys.argv[1])
    if HOUR_MS in os.environ:
        shorten_retention(int(os.environ[HOUR_MS]))
    sys.argv[1:2] = []
    runpy.run_module("delaymq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
