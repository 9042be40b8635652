"""Command `delaymq-spark report|compaction|delay|traffic --store PATH|URL`: from arguments to an exit code.

Exit codes: 0: everything was analysed; 1: parts of the store were skipped; 2: wrong usage or not a store; 3: the
analysis, or publishing it, failed; 130 and 143: interrupted or stopped.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from delaymq.message.errors import LevelTableError
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels

from delaymq_spark.command import status
from delaymq_spark.command.arguments import DEFAULT_RETENTION_HOURS, Arguments, UsageError, parse
from delaymq_spark.command.old_runs import remove_old_runs
from delaymq_spark.command.problems import sentence_of
from delaymq_spark.command.publish import ApiServer, PublishError, in_cluster, pack, publish
from delaymq_spark.report.text import printable
from delaymq_spark.store.address import StorePathError, check_store_path, is_address
from delaymq_spark.store.folders import store_around
from delaymq_spark.store.remote import describe_store
from delaymq_spark.store.segments import list_segments

if TYPE_CHECKING:
    from delaymq_spark.jobs.pipeline import Result
    from delaymq_spark.jobs.running import JobOptions

EXIT_OK, EXIT_SKIPPED, EXIT_USAGE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED = 0, 1, 2, 3, 130, 143
SHOWN_SKIPPED = 20
_FINAL_LOG_SECONDS = 10.0
"""Time limit for publishing after a request to stop: a pod is killed 30 s after SIGTERM."""


_RETRY_SECONDS = 0.05
_STOPPED = "stopped by SIGTERM before the analysis was complete"


class _Stopped(BaseException):
    """Raised on SIGTERM: the pod is being deleted, or the run took too long."""


class _FailedError(Exception):
    """Failure of a run: a sentence and the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class _Started:
    """Data of a run that are available when it fails."""

    began: float
    store_id: str | None = None
    broker_name: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `delaymq-spark` and return the exit code."""
    try:
        with _sigterm_event() as told:
            return run(list(sys.argv[1:] if argv is None else argv), is_stopping=told.is_set)
    except _Stopped:
        return _fail("stopped by SIGTERM", EXIT_STOPPED)


def run(
    argv: Sequence[str],
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    cluster: Callable[[], ApiServer] = in_cluster,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Run the command in `argv` and return the exit code; errors are printed to stderr and published.

    `is_stopping`: whether SIGTERM was received, in case its exception was lost.
    """
    server: ApiServer | None = None
    try:
        arguments = parse(argv, now_ms())
        if arguments.publish is not None:
            server = cluster()
    except (UsageError, PublishError) as error:
        return _fail(str(error), EXIT_USAGE)
    started = _Started(time.monotonic())
    try:
        result = _analyse(arguments, started, is_stopping)
        _remove_old_runs(arguments)
        if server is not None and arguments.publish is not None:
            packed = pack(json.dumps(result.summary, ensure_ascii=False, allow_nan=False), result.page)
            text = status.as_text(status.of_summary(result.summary, now_ms(), packed.omitted))
            publish(server, arguments.publish, text, packed)
            print(f"published to {arguments.publish}", file=sys.stderr)
            if packed.omitted is not None:
                print(f"delaymq-spark: omitted: {packed.omitted}", file=sys.stderr)
    except PublishError as error:
        return _fail(str(error), EXIT_FAILED)
    except _FailedError as failure:
        code = _fail(str(failure), failure.code)
        if server is not None:
            _publish_failure(server, arguments, started, str(failure), failure.code, now_ms())
        return code
    except (KeyboardInterrupt, _Stopped) as error:
        code = EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_STOPPED
        return _fail("stopped while the results were being published", code)
    except Exception as error:
        if server is not None:
            text = f"{type(error).__name__}: {error}: a bug in delaymq-spark; see the driver's log for the stack trace"
            _publish_failure(server, arguments, started, text, EXIT_FAILED, now_ms())
        raise
    return _print_result(arguments, result)


def _analyse(arguments: Arguments, started: _Started, is_stopping: Callable[[], bool]) -> Result:
    """Run the analysis; every error becomes a _FailedError with a sentence."""

    def check() -> None:
        if is_stopping():
            raise _Stopped

    try:
        options = _options(arguments, started)
        # Spark takes seconds to load, so problems of the store are reported first.
        from delaymq_spark.jobs.pipeline import run_job, steps_of
        from delaymq_spark.jobs.running import Progress, context, has_plots

        if options.page and not has_plots():
            raise _FailedError("the report requires matplotlib: run pip install 'delaymq-spark[report]'", EXIT_USAGE)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
        with context(options) as spark:
            return run_job(spark, options, Progress(sys.stderr, steps_of(options), check))
    except _FailedError:
        raise
    except StorePathError as error:
        raise _FailedError(str(error), EXIT_USAGE) from error
    except KeyboardInterrupt as error:
        raise _FailedError("interrupted", EXIT_INTERRUPTED) from error
    except _Stopped as error:
        raise _FailedError(_STOPPED, EXIT_STOPPED) from error
    except Exception as error:
        if is_stopping():
            # Spark's session fails in various ways when a call to it is interrupted.
            raise _FailedError(_STOPPED, EXIT_STOPPED) from error
        text = sentence_of(error)
        if text is None:
            raise
        raise _FailedError(text, EXIT_FAILED) from error


def _options(arguments: Arguments, started: _Started) -> JobOptions:
    """Return the options of the job; those that the arguments omit come from the broker or are defaults.

    StorePathError, _FailedError.
    """
    store = check_store_path(arguments.store)
    described = describe_store(store)
    levels, retention_hours = DEFAULT_LEVELS, DEFAULT_RETENTION_HOURS
    if described is not None:
        started.store_id, started.broker_name = described.store_id, described.broker_name
        levels = described.message_delay_level or levels
        retention_hours = described.file_reserved_time_hours or retention_hours
    if not is_address(store):
        list_segments(store)
    around = None if arguments.out is None else store_around(arguments.out, None if is_address(store) else store)
    if around is not None:
        text = f"--out {arguments.out} is inside the store {around}, which is read-only: use another directory"
        raise _FailedError(text, EXIT_USAGE)
    levels = arguments.levels or levels
    try:
        DelayLevels.parse(levels)
    except LevelTableError as error:
        raise _FailedError(f"the broker's messageDelayLevel is invalid: {error}: set --levels", EXIT_USAGE) from error
    try:
        from delaymq_spark.jobs.running import JobOptions
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        text = "PySpark 4.2 or later is not installed: run pip install --upgrade 'delaymq-spark[spark]'"
        raise _FailedError(text, EXIT_USAGE) from error

    return JobOptions(
        job=arguments.job, store=store, as_of_ms=arguments.as_of_ms, out=arguments.out, broker_name=started.broker_name,
        page=arguments.job == "report" and (arguments.out is not None or arguments.publish is not None),
        delay_levels=levels,
        retention_hours=arguments.retention_hours or retention_hours,
        min_dead_ratio=arguments.min_dead_ratio, keyed_topics=arguments.keyed_topics,
        promise_p99_ms=arguments.promise_p99_ms, master=arguments.master, memory=arguments.memory,
    )  # fmt: skip


def _publish_failure(
    server: ApiServer, arguments: Arguments, started: _Started, text: str, code: int, completed_at_ms: int
) -> None:
    """Publish the failure and its cause; an error in doing so does not change the exit code."""
    failed = status.of_failure(
        text, as_of_ms=arguments.as_of_ms, completed_at_ms=completed_at_ms,
        duration_ms=round((time.monotonic() - started.began) * 1000), store_id=started.store_id,
        broker_name=started.broker_name,
    )  # fmt: skip
    assert arguments.publish is not None
    more = {"patience_seconds": _FINAL_LOG_SECONDS} if code in (EXIT_INTERRUPTED, EXIT_STOPPED) else {}
    try:
        publish(server, arguments.publish, status.as_text(failed), None, **more)
    except (PublishError, KeyboardInterrupt, _Stopped) as error:
        _fail(str(error) or "stopped while the failure was being published", code)


def _remove_old_runs(arguments: Arguments) -> None:
    if arguments.out is None or arguments.keep_runs is None:
        return
    try:
        removed = remove_old_runs(arguments.out, arguments.keep_runs)
    except OSError as error:
        # This run succeeded; the next one tries again.
        text = f"some older runs next to {arguments.out} could not be removed: {error.strerror or error}"
        print(printable(f"delaymq-spark: {text}"), file=sys.stderr)
        return
    for path in removed:
        print(printable(f"removed the older run {path}"), file=sys.stderr)


def _print_result(arguments: Arguments, result: Result) -> int:
    summary = result.summary
    if arguments.as_json:
        print(json.dumps(summary, ensure_ascii=False, allow_nan=False))
    else:
        from delaymq_spark.report.text import lines

        print("\n".join(lines(summary, arguments.out)))
    for each in [each for each in summary["skipped"] if not each["atEnd"]][:SHOWN_SKIPPED]:
        place = f"byte {each['position']}, {each['lostBytes']} bytes"
        print(printable(f"delaymq-spark: skipped {each['file']}, {place}: {each['reason']}"), file=sys.stderr)
    more = summary["skippedCount"] - SHOWN_SKIPPED
    if more > 0:
        print(f"delaymq-spark: skipped {more} more parts", file=sys.stderr)
    return EXIT_OK if summary["complete"] or arguments.skipped_ok else EXIT_SKIPPED


@contextmanager
def _sigterm_event() -> Iterator[threading.Event]:
    """Raise _Stopped in the main thread on SIGTERM, and set the event.

    Python prints and drops an exception raised in a finaliser, such as py4j's: then _Stopped is raised once more
    outside it.
    """
    told = threading.Event()
    shown = sys.unraisablehook

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        told.set()
        raise _Stopped

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is _Stopped:
            # An exception raised here would be dropped as well.
            signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
        else:
            shown(unraisable)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGALRM)}
    sys.unraisablehook = dropped
    try:
        yield told
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = shown
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(text: str, code: int) -> int:
    print(f"delaymq-spark: {text}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
