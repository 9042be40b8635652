"""What the analyses compute: each job is a `main(argv)` around a pure `transform` of data frames.

- `progress_of_groups`: what every reader is done with, by the positions beside the log
- `settlements`: which delayed record was delivered, by which copy, and which is pending or lost
- `compaction`, `plan`: what is dead and why, and what to do about it
- `delay`: how punctual the delays were
- `traffic`: what came in
- `summary`: the JSON summary
- `running`, `pipeline`: session, reading, writing, progress: all that is not pure

Nothing in the pure modules touches files, clocks or a session other than the frame's own.
Definitions: docs/analytics.md.
"""
