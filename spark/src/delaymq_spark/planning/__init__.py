"""Scan planning: parts of the log for tasks, segments excluded by a time range, and ends of batches.

Runs on the driver; requires no Spark.
"""
