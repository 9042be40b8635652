"""Finds the records of a segment and takes their properties apart, many at a time.

Works on bytes with numpy and pyarrow; needs no Spark.
"""
