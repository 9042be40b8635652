"""Reads the store of a RocketMQ 4.9 or DelayMQ broker with Spark: the data source `rocketmq_store` and jobs over it.

Here: `register` (the format's name for a session), `skipped` (what of a store gives no rows), `read_positions` (what
consumers and the scheduler have reached). Stores are only ever read. Layout: docs/formats/store.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delaymq_spark.positions import Positions, read_positions
    from delaymq_spark.segments import Skipped, StorePathError
    from delaymq_spark.source import register
    from delaymq_spark.source_skipped import skipped

__all__ = ["Positions", "Skipped", "StorePathError", "read_positions", "register", "skipped"]


def __getattr__(name: str) -> Any:
    # The command line says what is wrong with its arguments before it takes seconds to load Spark.
    if name in ("Positions", "read_positions"):
        from delaymq_spark import positions

        return getattr(positions, name)
    if name in ("Skipped", "StorePathError"):
        from delaymq_spark import segments

        return getattr(segments, name)
    if name == "register":
        from delaymq_spark.source import register

        return register
    if name == "skipped":
        from delaymq_spark.source_skipped import skipped

        return skipped
    raise AttributeError(name)
