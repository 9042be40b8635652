"""Arguments of `delaymq-spark` and their validation."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from delaymq.message.errors import LevelTableError
from delaymq.message.levels import DelayLevels

from delaymq_spark.command.old_runs import prefix_of
from delaymq_spark.command.publish import ConfigMapName, parse_target
from delaymq_spark.source.times import parse_time_ms
from delaymq_spark.store.folders import FolderError, output_folder

DEFAULT_OUT = "delaymq-report"
DEFAULT_RETENTION_HOURS = 72
MAX_KEPT_RUNS = 10_000
JOBS = {
    "report": "run all analyses and write an HTML report",
    "compaction": "find dead data, its causes, and the space that compaction would reclaim",
    "delay": "measure delivery lateness, losses and duplicates",
    "traffic": "measure rates, sizes, hot keys, skew, retries and dead letters",
}


_RETENTION = f"{DEFAULT_RETENTION_HOURS}; for a URL, the broker's value"
_LEVELS = "RocketMQ's; for a URL, the broker's table"
_MEMORY = re.compile(r"[1-9][0-9]{0,7}[kmgt]\Z", re.IGNORECASE)


class UsageError(Exception):
    """Invalid arguments; the message states the permitted values."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Parsed arguments; None where the store or its broker decides."""

    job: str
    store: str
    """Location as given, not yet checked."""
    as_of_ms: int
    out: Path | None
    """Absolute, without symbolic links."""
    publish: ConfigMapName | None
    keep_runs: int | None
    """Number of results, including this run, to keep next to `out`; None: all."""
    skipped_ok: bool
    as_json: bool
    levels: str | None
    retention_hours: float | None
    keyed_topics: frozenset[str]
    min_dead_ratio: float
    promise_p99_ms: int
    master: str | None
    memory: str


def parse(argv: Sequence[str], now_ms: int) -> Arguments:
    """Parse the arguments. UsageError."""
    given = _parser().parse_args(list(argv))
    if given.levels is not None:
        try:
            DelayLevels.parse(given.levels)
        except LevelTableError as error:
            raise UsageError(f"--levels: {error}") from error
    if not 0 <= given.min_dead_ratio <= 1:
        raise UsageError(f"--min-dead-ratio is {given.min_dead_ratio}: use a number from 0 to 1")
    if given.retention_hours is not None and not 0 < given.retention_hours <= 87_600:
        raise UsageError(f"--retention-hours is {given.retention_hours}: use a number above 0, at most 87600")
    if not 0 <= given.promise_p99_ms <= 86_400_000:
        raise UsageError(f"--promise-p99-ms is {given.promise_p99_ms}: use a number from 0 to 86400000")
    if not _MEMORY.match(given.memory):
        raise UsageError(f"--memory is {given.memory[:60]!r}: use a size such as 512m or 4g")
    target = _target(given.publish) if given.job == "report" else None
    out = given.out
    if out is None and given.job == "report" and target is None:
        out = DEFAULT_OUT
    folder = None if out is None else _folder(out)
    return Arguments(
        job=given.job, store=given.store, as_of_ms=_time_ms(given.as_of, now_ms),
        out=folder, publish=target, keep_runs=_keep_runs(given.keep_runs, folder),
        skipped_ok=given.skipped_ok, as_json=given.json,
        levels=given.levels, retention_hours=given.retention_hours,
        keyed_topics=frozenset(word.strip() for word in given.keyed_topics.split(",") if word.strip()),
        min_dead_ratio=given.min_dead_ratio, promise_p99_ms=given.promise_p99_ms, master=given.master,
        memory=given.memory,
    )  # fmt: skip


def _parser() -> _Parser:
    parser = _Parser(prog="delaymq-spark", description="Analyse a broker's store. The store is never modified.")
    jobs = parser.add_subparsers(dest="job", metavar="JOB", required=True, parser_class=_Parser)
    for name, text in JOBS.items():
        job = jobs.add_parser(name, help=text, description=text)
        job.add_argument("--store", required=True, metavar="PATH", help="directory of the store, or URL of its broker")
        out = "nowhere"
        if name == "report":
            out = f"{DEFAULT_OUT}; none with --publish"
            job.add_argument(
                "--publish", metavar="TARGET", help="publish results to configmap/NAMESPACE/NAME (in a pod only)"
            )
        job.add_argument("--out", metavar="DIR", help=f"directory for results (default: {out})")
        kept = "with --out DIR/NAME-WORD: delete all but the newest N directories DIR/NAME-* (default: keep all)"
        job.add_argument("--keep-runs", type=int, metavar="N", help=kept)
        job.add_argument("--json", action="store_true", help="print the summary as one JSON object")
        job.add_argument("--skipped-ok", action="store_true", help="exit with status 0, not 1, if parts were skipped")
        job.add_argument("--as-of", metavar="TIME", help="reference time: ISO time or ms since 1970 (default: now)")
        job.add_argument(
            "--retention-hours", type=float, metavar="H", help=f"retention in hours (default: {_RETENTION})"
        )
        job.add_argument(
            "--keyed-topics",
            default="",
            metavar="T,T",
            help="topics where a newer message supersedes older ones with the same KEYS (*: all)",
        )
        job.add_argument(
            "--min-dead-ratio",
            type=float,
            default=0.25,
            metavar="R",
            help="a segment is worth rewriting if at least this proportion of its bytes is dead (default: 0.25)",
        )
        job.add_argument(
            "--promise-p99-ms",
            type=int,
            default=100,
            metavar="MS",
            help="promised lateness for 99 %% of messages (default: 100)",
        )
        job.add_argument("--levels", metavar="TABLE", help=f"delay level table (default: {_LEVELS})")
        job.add_argument("--master", metavar="URL", help="Spark master (default: this machine, all processors)")
        job.add_argument(
            "--memory", default="2g", metavar="SIZE", help="memory for Spark on this machine (default: 2g)"
        )
    return parser


def _folder(text: str) -> Path:
    try:
        return output_folder(text)
    except FolderError as error:
        raise UsageError(f"--out {error}") from None


def _target(text: str | None) -> ConfigMapName | None:
    if text is None:
        return None
    try:
        return parse_target(text)
    except ValueError as error:
        raise UsageError(f"--publish: {error}") from None


def _keep_runs(count: int | None, out: Path | None) -> int | None:
    if count is None:
        return None
    if not 1 <= count <= MAX_KEPT_RUNS:
        raise UsageError(f"--keep-runs is {count}: use a number from 1 to {MAX_KEPT_RUNS}")
    if out is None or prefix_of(out) is None:
        raise UsageError(
            "--keep-runs requires --out with a name that ends in a hyphen and a word, such as results/orders-1"
        )
    return count


def _time_ms(text: str | None, now_ms: int) -> int:
    if text is None:
        return now_ms
    try:
        return parse_time_ms(text)
    except ValueError:
        raise UsageError(
            f"--as-of is {text[:60]!r}: use a time such as 2026-01-31T08:00:00Z, or ms since 1970"
        ) from None
