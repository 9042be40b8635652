"""Batches of rows of one part of a store, read by executors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from delaymq.message.errors import NewerFormError
from delaymq.message.levels import DelayLevels

from delaymq_spark.planning.parts import Part
from delaymq_spark.scan.frames import Frames, Window
from delaymq_spark.scan.walk import Walk
from delaymq_spark.source.columns import Rows
from delaymq_spark.source.options import SourceOptions
from delaymq_spark.source.schema import SKIPPED, arrow_schema
from delaymq_spark.store.segments import Skipped, open_segment

MAX_BATCH_ROWS: Final = 16_384
"""Limit of a batch, in addition to the size of a window: about 10 MiB of Arrow arrays with all columns."""
_SHOWN_STATEMENT: Final = 48
_logger = logging.getLogger(__name__)


def log_skipped(skipped: Skipped) -> None:
    """Report a skipped part in the log of the driver or executor."""
    _logger.warning("%s", skipped)


def batches(
    part: Part, options: SourceOptions, tell: Callable[[Skipped], None] = log_skipped
) -> Iterator[pa.RecordBatch]:
    """Yield the part's records as batches with the columns of the options.

    Skipped parts are reported by `tell` and never raised; with the column `skipped`, they are rows, too.
    NewerFormError: a record states something about a timed message that only a newer program knows.
    """
    schema = arrow_schema(options.columns)
    levels = DelayLevels.parse(options.delay_levels)
    passed_over: list[Skipped] = []

    def note(skipped: Skipped) -> None:
        tell(skipped)
        if SKIPPED in options.columns:
            passed_over.append(skipped)

    for window, frames in windows(part, note):
        frames = _filtered(window, frames, options)
        # A window of tiny messages would otherwise make a batch of hundreds of thousands of rows.
        for begin in range(0, len(frames), MAX_BATCH_ROWS):
            rows = Rows(window, frames.between(begin, begin + MAX_BATCH_ROWS), levels, verify=options.verify)
            try:
                columns = [rows.column(name) for name in options.columns]
            except NewerFormError as error:
                raise NewerFormError(_of_newer_form(part, error)) from None
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        if passed_over:
            yield skipped_rows(passed_over, options)
            passed_over.clear()
    if passed_over:
        yield skipped_rows(passed_over, options)


def _of_newer_form(part: Part, error: NewerFormError) -> str:
    """Return a sentence; a statement may have 1,024 characters, and its first ones are its version and place."""
    said = str(error)[:_SHOWN_STATEMENT]
    return (
        f"{part.segment.path} contains a statement of an unknown form ({said}…), without which results would be wrong: "
        "use the version of delaymq-spark that belongs to the broker, or a later one"
    )


def skipped_rows(skipped: Sequence[Skipped], options: SourceOptions) -> pa.RecordBatch:
    """Return a row for each skipped part, null in all columns but `skipped`."""
    schema = arrow_schema(options.columns)
    told = pa.array([_as_json(each) for each in skipped], pa.string())
    columns = [told if field.name == SKIPPED else pa.nulls(len(skipped), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_json(skipped: Skipped) -> str:
    members = {
        "file": skipped.file, "position": skipped.position, "offset": skipped.offset, "lostBytes": skipped.lost_bytes,
        "reason": skipped.reason, "atEnd": skipped.at_end,
    }  # fmt: skip
    return json.dumps(members)


def windows(part: Part, tell: Callable[[Skipped], None]) -> Iterator[tuple[Window, Frames]]:
    """Yield the part's records in windows; a file that is unreadable, or becomes so, is reported by `tell`."""
    info = part.segment
    reached = part.start
    try:
        file = open_segment(info)
        walk = Walk(file, part.start, part.end, tell, info.end)
        try:
            for window, frames in walk.windows():
                reached = walk.reached
                yield window, frames
        finally:
            file.close()
    except FileNotFoundError:
        tell(_rest(part, reached, "the file was deleted in the meantime"))
    except OSError as error:
        tell(_rest(part, reached, f"cannot be read: {error.strerror or error}"))


def _rest(part: Part, reached: int, reason: str) -> Skipped:
    return Skipped(part.segment.path, reached - part.segment.base, reached, part.end - reached, reason)


def _filtered(window: Window, frames: Frames, options: SourceOptions) -> Frames:
    if options.from_ms is None and options.until_ms is None and options.topics is None:
        return frames
    rows = Rows(window, frames, DelayLevels((1,)), verify=False)
    mask = frames.position >= 0
    if options.from_ms is not None:
        mask &= rows.store_ms >= options.from_ms
    if options.until_ms is not None:
        mask &= rows.store_ms < options.until_ms
    if options.topics is not None:
        wanted = np.array([topic in options.topics for topic in rows.topics.dictionary.to_pylist()], np.bool_)
        mask &= wanted[rows.topics.indices.to_numpy()]
    return frames if mask.all() else frames.where(mask)
