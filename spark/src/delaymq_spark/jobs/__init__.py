"""What the analyses compute: three stages of tasks over Arrow tables, which Spark runs, and a summary of their sums.

- `columns`, `sums`: tables of records and of sums, packed for the way between tasks
- `group_progress`: what every reader is done with, by the positions beside the log
- `settlements`: which delayed record was delivered, by which copy, and which is pending or lost
- `compaction`, `plan`: what is dead and why, and what to do about it
- `delay`: how punctual the delays were
- `traffic`: what came in
- `tasks`: the stages, put together of these; `facts`, `results`: what comes out beside and behind them
- `summary`: the JSON summary
- `running`, `pipeline`: Spark, reading, writing, progress: all that is not pure

Nothing in the other modules needs Spark, or touches clocks; but for the Parquet files, no files either.
Definitions: docs/analytics.md.
"""
