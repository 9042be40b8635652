"""Repeating messages: one pending message, one record in the log for each run.

A run is the append of a copy whose mark states the next due time, so it delivers and re-arms in one step. The next due
time is therefore decided once, by the log: neither a restart nor a new time zone database changes it. Everything here
runs on the thread that owns the store, except `cron` and `schedules`, which only compute.

Invariant: the number of a run is that of the newest copy in the log plus one, or that of the record that holds the
message plus one if no copy is newer than this record.
"""
