"""Start ``delaymq`` so that it kills itself at a named point: ``python kill_points.py NAME:N ARGUMENTS OF delaymq``.

When the point is reached for the N-th time, the process kills itself with SIGKILL. The points wrap functions of the
broker at run time; the broker does not depend on them. A missing function is an immediate error.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

MESSAGE = "kill point reached: "
EXIT_USAGE = 2

Reached = Callable[[], None]


def copy_appended(reached: Reached) -> None:
    """After a delivered copy was appended to the log, before its entry is settled."""
    from delaymq.broker.delivery.hand_over import HandOver

    _after(HandOver, "_append", reached)


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


POINTS: dict[str, Callable[[Reached], None]] = {
    "copy-appended": copy_appended,
    "segment-roll": segment_roll,
    "config-rename": config_rename,
    "queue-flush": queue_flush,
    "truncation": truncation,
    "send-back-appended": send_back_appended,
    "half-appended": half_appended,
    "commit-copied": commit_copied,
    "op-marked": op_marked,
    "checked": checked,
}


def _function(owner: type, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(owner, name)
    return function


def _replace(owner: type, name: str, function: Callable[..., Any]) -> None:
    setattr(owner, name, function)


def _after(owner: type, name: str, reached: Reached) -> None:
    function = _function(owner, name)

    def marked(*arguments: Any, **named: Any) -> Any:
        answer = function(*arguments, **named)
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
    sys.argv[1:2] = []
    runpy.run_module("delaymq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
