"""Analyses: three stages of tasks over Arrow tables, run by Spark, and a summary of their sums.

- `columns`, `sums`: tables of records and of sums, packed for the way between tasks
- `group_progress`: progress of every reader, by the positions next to the log
- `settlements`: which delayed record was delivered, by which copy, and which is pending or lost
- `compaction`, `plan`: dead data and its causes, and the compaction plan
- `delay`: delivery lateness
- `traffic`: rates, sizes, keys and failures
- `tasks`: the stages, put together of these; `facts`, `results`: what comes out beside and behind them
- `summary`: the JSON summary
- `running`, `pipeline`: Spark, reading, writing, progress: all that is not pure

Nothing in the other modules needs Spark, or touches clocks; but for the Parquet files, no files either.
Definitions: docs/analytics.md.
"""
