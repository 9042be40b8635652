"""Analyses: three stages of tasks over Arrow tables, run by Spark, and a summary of their sums.

- `columns`, `sums`: tables of records and of sums, packed for the transfer between tasks
- `group_progress`: progress of every reader, by the positions next to the log
- `settlements`: which delayed record was delivered, by which copy, and which is pending or lost
- `compaction`, `plan`: dead data and its causes, and the compaction plan
- `delay`: delivery lateness
- `traffic`: rates, sizes, keys and failures
- `tasks`: the stages, composed of these modules; `facts`, `results`: their additional facts and their results
- `summary`: the JSON summary
- `running`, `pipeline`: everything that is not pure: Spark, reading, writing, progress

The other modules use neither Spark nor clocks, and no files except Parquet files.
Definitions: docs/analytics.md.
"""
