"""`delaymq store export`: write the messages of a store or a backup as JSON lines."""

from __future__ import annotations

import base64
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from delaymq.cli.commands.store.common import explain_errors, progress
from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.terminal.output import counted
from delaymq.cli.terminal.sanitize import json_line
from delaymq.cli.terminal.times import parse_time
from delaymq.message import names
from delaymq.message.compression import inflate
from delaymq.message.errors import NewerFormError, RecordError
from delaymq.message.flags import COMPRESSED
from delaymq.message.group_marks import GroupMark
from delaymq.message.ids import offset_message_id
from delaymq.message.marks import Mark, parse_due, parse_mark
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark
from delaymq.store.dispatch import recorded_due_ms
from delaymq.store.reader import StoreReader
from delaymq.store.tools.timed_messages import own_group_mark, own_mark


def export(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Directory of a store or a backup.")],
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only messages of this topic.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Stored at or after this time: ISO, '10m ago', ms since 1970."),
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Stored before this time.")] = None,
    delayed: Annotated[
        bool,
        typer.Option("--delayed", help="Include delayed messages as originally stored, whether pending or delivered."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this new file instead of standard output."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="jsonl: one JSON object per line.")] = "jsonl",
) -> None:
    """Write messages as JSON lines, in store order."""
    if format_ != "jsonl":
        raise CommandError(f"--format: {format_!r} is unknown: use jsonl", EXIT_USAGE)
    since_ms = parse_time(since) if since is not None else None
    until_ms = parse_time(until) if until is not None else None
    try:
        reader = StoreReader(store)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CommandError(f"{store} is not a store: it contains no commitlog folder", EXIT_USAGE) from error
    count = 0
    with explain_errors(str(output or "standard output"), "then run the export again"), _opened(output) as out:
        with progress("export", quiet=output is None and sys.stdout.isatty()) as shown:
            for record in _records(reader, shown):
                if since_ms is not None and record.store_timestamp_ms < since_ms:
                    continue
                if until_ms is not None and record.store_timestamp_ms >= until_ms:
                    break  # store times never decrease
                if _is_wanted(record, topic, delayed=delayed):
                    try:
                        line = json_line(as_data(record))
                    except NewerFormError as error:
                        raise CommandError(f"{store}: {error}") from error
                    out.write(line + "\n")
                    count += 1
        out.flush()
    print(counted(count, "message"), file=sys.stderr)


def _records(reader: StoreReader, shown: Any) -> Iterator[Record]:
    segments = reader.segments()
    if not segments:
        return
    start, end = segments[0].base, segments[-1].end
    for number, record in enumerate(reader.records()):
        if number % 1_000 == 0:
            shown(record.physical_offset - start, end - start)
        yield record


def _is_wanted(record: Record, topic: str | None, *, delayed: bool) -> bool:
    if record.topic in (names.SCHEDULE_TOPIC, names.TIMER_TOPIC):
        return delayed and (topic is None or record.properties.get(names.REAL_TOPIC) == topic)
    return record.topic == topic or (topic is None and record.topic != names.MARKS_TOPIC)


@contextlib.contextmanager
def _opened(output: Path | None) -> Iterator[IO[str]]:
    if output is None:
        yield sys.stdout
        return
    try:
        file = open(output, "x", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    except FileExistsError as error:
        raise CommandError(f"{output} already exists: specify a new file", EXIT_USAGE) from error
    with file:
        yield file


def as_data(record: Record) -> dict[str, object]:
    """Return a line's object: `body` if the body is UTF-8, else `bodyBase64`; compressed bodies are decompressed.

    NewerFormError: the record states a due time or a mark in a form that only a newer program knows.
    """
    properties = record.properties
    stated, of_group = own_mark(record), own_group_mark(record)
    mark = parse_mark(properties.get(names.MARK, ""))
    body = record.body
    if record.sys_flag & COMPRESSED:
        with contextlib.suppress(RecordError):  # kept compressed, as sysFlag indicates
            body = inflate(body, record.sys_flag)
    data: dict[str, object] = {
        "messageId": properties.get(names.UNIQUE_KEY),
        "offsetMessageId": offset_message_id(record.store_host, record.physical_offset),
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "storedMs": record.store_timestamp_ms,
        "bornMs": record.born_timestamp_ms,
        "tags": properties.get(names.TAGS),
        "keys": properties.get(names.KEYS, "").split(),
        "reconsumeTimes": record.reconsume_times,
        "sysFlag": record.sys_flag,
        "dueMs": _due_ms(record, mark) if stated is None else stated.due_ms,
        "mark": _mark_members(stated, mark) if of_group is None else _group_mark_members(of_group),
        "properties": properties,
    }
    try:
        return data | {"body": body.decode()}
    except UnicodeDecodeError:
        return data | {"bodyBase64": base64.b64encode(body).decode()}


def _mark_members(stated: TimedMark | None, mark: Mark | None) -> dict[str, object] | None:
    """Return the members of a line's `mark`; None if the record has none.

    `physicalOffset` is that of the record that held the message. A mark of form 2 also states the identity of the
    message, its due time, its next due time if it is still pending, and the time of the decision.
    """
    if stated is not None:
        return {
            "kind": stated.kind.value,
            "physicalOffset": stated.record,
            "identity": stated.identity,
            "dueMs": stated.due_ms,
            "nextDueMs": stated.next_due_ms,
            "decidedMs": stated.decided_ms,
        }
    return None if mark is None else {"kind": mark.kind.value, "physicalOffset": mark.physical_offset}


def _group_mark_members(mark: GroupMark) -> dict[str, object]:
    """Return the members of the `mark` of a statement about a group or a pause."""
    return {
        "kind": mark.kind.value,
        "topic": mark.topic,
        "group": mark.group,
        "nextDueMs": mark.next_due_ms,
        "decidedMs": mark.decided_ms,
    }


def _due_ms(record: Record, mark: Mark | None) -> int | None:
    """Return the due time that a pending message, or a copy with a mark of form 1, states; None if it states none."""
    if record.topic == names.TIMER_TOPIC:
        return recorded_due_ms(record.properties, record.physical_offset)
    text = record.properties.get(names.DUE, "")
    if mark is not None:
        return parse_due(text, mark.queue_id, mark.queue_offset)
    return parse_due(text, record.queue_id, record.queue_offset) if record.topic == names.SCHEDULE_TOPIC else None
