"""Finding and parsing records of a segment, many at a time.

Operates on bytes with numpy and pyarrow; requires no Spark.
"""
