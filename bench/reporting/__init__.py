"""Results of the benchmark: statistics, tables, the commits that were measured, and the history page."""
