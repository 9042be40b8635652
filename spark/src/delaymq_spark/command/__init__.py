"""What the command line needs around a job: arguments, error sentences, status, publishing, removal of old runs.

Loads no Spark, so that a wrong argument is reported at once.
"""
