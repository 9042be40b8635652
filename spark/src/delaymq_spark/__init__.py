"""Reads the store of a RocketMQ 4.9 or DelayMQ broker with Spark: the data source `rocketmq_store` and jobs over it.

Here: `register` (the format's name for a session), `skipped` (what of a store gives no rows), `read_positions` (what
consumers and the scheduler have reached). Stores are only ever read. Layout: docs/formats/store.md.

`cli` → `jobs` → `source` → `planning` → `scan` → `store`: each room imports those behind it only. `command` and
`report` are what `cli` and `jobs` need beside them. SparkApplications name `cli.py` by its path: it stays here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delaymq_spark.source.data_source import register
    from delaymq_spark.source.skipped import skipped
    from delaymq_spark.store.positions import Positions, read_positions
    from delaymq_spark.store.segments import Skipped, StorePathError

__all__ = ["Positions", "Skipped", "StorePathError", "read_positions", "register", "skipped"]


def __getattr__(name: str) -> Any:
    # The command line says what is wrong with its arguments before it takes seconds to load Spark.
    if name in ("Positions", "read_positions"):
        from delaymq_spark.store import positions

        return getattr(positions, name)
    if name in ("Skipped", "StorePathError"):
        from delaymq_spark.store import segments

        return getattr(segments, name)
    if name == "register":
        from delaymq_spark.source.data_source import register

        return register
    if name == "skipped":
        from delaymq_spark.source.skipped import skipped

        return skipped
    raise AttributeError(name)
