"""Start ``delaymq`` so that it kills itself at a named point: ``python kill_points.py NAME:N ARGUMENTS OF delaymq``.

The N-th time that the point is reached the process gets SIGKILL, as from outside. The points are laid over the
broker's own functions from here; the broker does not depend on them. A missing function is an immediate error.
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
    """A delivered copy is in the log, its entry not yet settled."""
    from delaymq.broker.delivery.hand_over import HandOver

    _after(HandOver, "_append", reached)


def segment_roll(reached: Reached) -> None:
    """The blank record closes a log file, the next one is not in use yet."""
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
    """A config file's new content is written to a temporary file, the old one already is the backup."""
    from delaymq.store.disk.files import Files

    rename = _function(Files, "rename")

    def marked(files: Files, source: str, target: str) -> Any:
        if target.endswith(".json"):
            reached()
        return rename(files, source, target)

    _replace(Files, "rename", marked)


def queue_flush(reached: Reached) -> None:
    """One queue's new entries are in its file, others' are still in memory only."""
    from delaymq.store.consume_queue import ConsumeQueues

    _after(ConsumeQueues, "_write_tail", reached)


def truncation(reached: Reached) -> None:
    """Recovery has cleared what stood behind the last sound record, and written nothing else."""
    from delaymq.store.disk.files import Files

    _after(Files, "zero", reached)


def send_back_appended(reached: Reached) -> None:
    """What a consumer sent back is in the log, and the consumer not yet told."""
    from delaymq.broker.processors.table import PROCESSORS
    from delaymq.protocol.codes import RequestCode

    send_back = PROCESSORS[RequestCode.CONSUMER_SEND_MSG_BACK]

    def marked(*arguments: Any) -> Any:
        answer = send_back(*arguments)
        reached()
        return answer

    PROCESSORS[RequestCode.CONSUMER_SEND_MSG_BACK] = marked


def half_appended(reached: Reached) -> None:
    """A half message is in the log, and its producer not yet told."""
    _after_appends(reached, lambda message: message.topic == "RMQ_SYS_TRANS_HALF_TOPIC")


def commit_copied(reached: Reached) -> None:
    """The copy of a committed message is in the log, its op mark is not."""
    _after_appends(reached, lambda message: bool(message.sys_flag & 8) and message.properties.get("DELAY") is None)


def op_marked(reached: Reached) -> None:
    """The op mark of a commit or a rollback is in the log, and its producer not yet told."""
    _after_appends(reached, lambda message: message.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC")


def checked(reached: Reached) -> None:
    """A check was sent to a producer."""
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
    """Lay the point ``NAME:N`` over the broker's functions."""
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
    """Install the point, then be ``delaymq`` with the rest of the arguments."""
    if len(sys.argv) < 2 or sys.argv[1].partition(":")[0] not in POINTS:
        print(f"usage: kill_points.py NAME:N ARGUMENTS; names: {', '.join(POINTS)}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    install(sys.argv[1])
    sys.argv[1:2] = []
    runpy.run_module("delaymq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
