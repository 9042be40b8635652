"""Parts of the command line: arguments, error messages, status, publishing, removal of old runs.

Loads no Spark, so that invalid arguments are reported immediately.
"""
