"""Scan planning: which parts of a log each task reads, which segments a time range leaves out, where batches end.

Runs on the driver; needs no Spark.
"""
