"""`delaymq-spark report|compaction|delay|traffic --store PATH`: arguments, exit codes, what is printed.

Exit codes: 0 all was analysed; 1 it was, but parts of the store were skipped; 2 wrong usage or not a store;
3 the analysis itself failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from delaymq.message.errors import LevelTableError
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels

from delaymq_spark.segments import StorePathError, check_store_path, list_segments

if TYPE_CHECKING:
    from delaymq_spark.jobs.running import JobOptions

EXIT_OK, EXIT_SKIPPED, EXIT_USAGE, EXIT_FAILED = 0, 1, 2, 3
DEFAULT_OUT = "delaymq-report"
SHOWN_SKIPPED = 20
_JOBS = {
    "report": "all of them, with an HTML report",
    "compaction": "what is dead, why, and what compaction would give back",
    "delay": "how punctual the delays were; losses and duplicates",
    "traffic": "rates, sizes, hot keys, skew, retries and dead letters",
}


class _UsageError(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message}; see {self.prog} --help")


@dataclass(frozen=True, slots=True)
class _Wanted:
    options: JobOptions
    as_json: bool


def main(argv: Sequence[str] | None = None) -> int:
    """The command `delaymq-spark`. The exit code."""
    return run(list(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str], now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> int:
    """Run what `argv` says; errors are told on stderr in a sentence. The exit code."""
    try:
        wanted = _parse(argv, now_ms())
    except (_UsageError, StorePathError) as error:
        return _say(str(error), EXIT_USAGE)
    try:
        return _run(wanted)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except StorePathError as error:
        return _say(str(error), EXIT_USAGE)
    except OSError as error:
        return _say(f"{error.filename or 'a file'}: {error.strerror or error}", EXIT_FAILED)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        return _say(_spark_problem(error), EXIT_FAILED)


def _run(wanted: _Wanted) -> int:
    # Spark takes seconds to load: wrong arguments are told before.
    from delaymq_spark.jobs.pipeline import run_job, steps_of
    from delaymq_spark.jobs.running import Progress, has_plots, open_session

    options = wanted.options
    if options.job == "report" and not has_plots():
        return _say("the report needs matplotlib: pip install 'delaymq-spark[report]'", EXIT_USAGE)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    from pyspark.sql import SparkSession

    given = SparkSession.getActiveSession() is not None
    spark = open_session(options)
    try:
        result = run_job(spark, options, Progress(sys.stderr, steps_of(options.job)))
    finally:
        # Whoever had a session before keeps it.
        if not given:
            spark.stop()
    if wanted.as_json:
        print(json.dumps(result, ensure_ascii=False, allow_nan=False))
    else:
        from delaymq_spark.report_text import lines

        print("\n".join(lines(result, options.out)))
    for each in result["skipped"][:SHOWN_SKIPPED]:
        if not each["atEnd"]:
            place = f"byte {each['position']}, {each['lostBytes']} bytes"
            print(f"delaymq-spark: skipped {each['file']}, {place}: {each['reason']}", file=sys.stderr)
    return EXIT_OK if result["complete"] else EXIT_SKIPPED


def _parse(argv: Sequence[str], now_ms: int) -> _Wanted:
    parser = _Parser(prog="delaymq-spark", description="What is in a broker's store. It is only read, never written.")
    jobs = parser.add_subparsers(dest="job", metavar="JOB", required=True, parser_class=_Parser)
    for name, text in _JOBS.items():
        job = jobs.add_parser(name, help=text, description=text)
        job.add_argument("--store", required=True, metavar="PATH", help="the store's directory")
        out = DEFAULT_OUT if name == "report" else None
        job.add_argument("--out", default=out, metavar="DIR", help=f"where results go (default: {out or 'nowhere'})")
        job.add_argument("--json", action="store_true", help="print the summary as one JSON object")
        job.add_argument("--as-of", metavar="TIME", help="ISO time or ms since 1970 that counts as now (default: now)")
        job.add_argument("--retention-hours", type=float, default=72, metavar="H", help="the broker's fileReservedTime")
        job.add_argument("--keyed-topics", default="", metavar="T,T", help="where a newer KEYS replaces older; *: all")
        job.add_argument("--min-dead-ratio", type=float, default=0.25, metavar="R", help="dead share to rewrite for")
        job.add_argument("--promise-p99-ms", type=int, default=100, metavar="MS", help="lateness promised to 99 %%")
        job.add_argument("--levels", default=DEFAULT_LEVELS, metavar="TABLE", help="the broker's messageDelayLevel")
        job.add_argument("--master", metavar="URL", help="Spark's master (default: this machine, all processors)")
        job.add_argument("--memory", default="2g", metavar="SIZE", help="of Spark on this machine (default: 2g)")
    given = parser.parse_args(list(argv))
    return _Wanted(_options(given, now_ms), given.json)


def _options(given: argparse.Namespace, now_ms: int) -> JobOptions:
    store = check_store_path(given.store)
    list_segments(store)
    try:
        DelayLevels.parse(given.levels)
    except LevelTableError as error:
        raise _UsageError(f"--levels: {error}") from error
    if not 0 <= given.min_dead_ratio <= 1:
        raise _UsageError(f"--min-dead-ratio is {given.min_dead_ratio}: give a number from 0 to 1")
    if not 0 < given.retention_hours <= 87_600:
        raise _UsageError(f"--retention-hours is {given.retention_hours}: give a number above 0, at most 87600")
    out = None if given.out is None else Path(given.out)
    if out is not None and out.resolve().is_relative_to(Path(store).resolve()):
        raise _UsageError(f"--out {given.out} is in the store, which is never written to: give another directory")
    from delaymq_spark.jobs.running import JobOptions

    return JobOptions(
        job=given.job, store=store, as_of_ms=_time_ms(given.as_of, now_ms), out=out, delay_levels=given.levels,
        retention_hours=given.retention_hours, min_dead_ratio=given.min_dead_ratio,
        keyed_topics=frozenset(word.strip() for word in given.keyed_topics.split(",") if word.strip()),
        promise_p99_ms=given.promise_p99_ms, master=given.master, memory=given.memory,
    )  # fmt: skip


def _time_ms(text: str | None, now_ms: int) -> int:
    if text is None:
        return now_ms
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        time_of_day = datetime.fromisoformat(text)
    except ValueError:
        raise _UsageError(f"--as-of is {text[:60]!r}: give a time such as 2026-01-31T08:00:00Z, or ms") from None
    return int((time_of_day if time_of_day.tzinfo else time_of_day.replace(tzinfo=UTC)).timestamp() * 1000)


def _spark_problem(error: Any) -> str:
    text = str(error).strip()
    if "JAVA_GATEWAY_EXITED" in text or "Java gateway" in text:
        return "Spark did not start: it needs Java 17 or 21 (java on the path, or JAVA_HOME)"
    lines = [line for line in text.splitlines() if line.strip()]
    if any("OutOfMemoryError" in line for line in lines):
        return "Spark ran out of memory: give it more, such as --memory 4g"
    # A traceback of a Python worker ends with what happened.
    python = [line.strip() for line in lines if line.strip().partition(":")[0].endswith(("Error", "Exception"))]
    return f"Spark failed: {(python or lines or [type(error).__name__])[-1 if python else 0][:500]}"


def _say(text: str, code: int) -> int:
    print(f"delaymq-spark: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
