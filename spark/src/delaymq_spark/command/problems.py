"""Explanation of Spark's errors in a sentence, instead of pages of stack traces in two languages."""

from __future__ import annotations

import errno

_MAX_TEXT = 500
_KNOWN = (
    (("JAVA_GATEWAY_EXITED", "Java gateway", "JAVA_HOME is not set"),
     "Spark did not start: install Java 17 or 21, and put java on the PATH or set JAVA_HOME"),
    (("No space left on device", "Disk quota exceeded"),
     "the disk is full: free space in the directory of --out and in Spark's local directory (spark.local.dir, by "
     "default /tmp)"),
    (("OutOfMemoryError", "MemoryError"), "Spark ran out of memory: raise the limit, for example with --memory 4g"),
    (("Answer from Java side is empty", "Error while sending or receiving", "Connection reset by peer",
      "SparkContext was shut down", "stopped SparkContext", "while trying to connect to the Java server"),
     "Spark stopped unexpectedly: it was shut down, or killed because it ran out of memory"),
)  # fmt: skip
"""Error texts and their explanations; the first match is used."""


def sentence_of(error: Exception) -> str | None:
    """Return an error in one sentence; None for a bug in this program, which requires the stack trace."""
    module = type(error).__module__
    of_spark = module.startswith(("pyspark", "py4j"))
    if not of_spark and not isinstance(error, OSError):
        return None
    text = f"{type(error).__name__}: {error}"
    for signs, sentence in _KNOWN:
        if any(sign in text for sign in signs):
            return sentence
    if isinstance(error, OSError) and not of_spark:
        if isinstance(error, ConnectionError):
            return _KNOWN[-1][1]
        if error.errno == errno.EACCES:
            return f"{error.filename}: permission denied"
        return f"{error.filename or 'a file'}: {error.strerror or error}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The last line of a Python worker's traceback names the error.
    python = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    for name in ("StorePathError: ", "NewerFormError: "):
        if python and name in python[-1]:
            # A task found a problem of the store: the message is already a sentence.
            return python[-1].partition(name)[2][:_MAX_TEXT]
    return f"Spark failed: {(python or lines or [type(error).__name__])[-1 if python else 0][:_MAX_TEXT]}"
