"""Reading of RocketMQ 4.9 and DelayMQ stores with Spark: the data source `rocketmq_store` and jobs based on it.

Here: `register` (makes the format known to a session), `skipped` (parts of a store that give no rows),
`read_positions` (progress of consumers and the scheduler). Stores are never modified. Layout: docs/formats/store.md.

`cli` → `jobs` → `source` → `planning` → `scan` → `store`: each package imports only those to its right. `command` and
`report` support `cli` and `jobs`. SparkApplications refer to `cli.py` by its path, so it must not move.
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
    # Lazy imports: the command line validates its arguments before it loads Spark, which takes seconds.
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
