"""Logging of the operator: one line per event, as text or JSON; other libraries log warnings and errors only."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from datetime import UTC, datetime
from typing import Final

QUIET: Final = ("kopf", "aiohttp", "urllib3", "kubernetes", "asyncio", "delaymq")
"""Libraries that log only warnings and errors."""
KOPF_RETRY: Final = "Request attempt"
KOPF_RETRY_INTERVAL_S: Final = 30.0
KOPF_WAITS: Final = "failed temporarily"
"""Suppressed messages of kopf, since the handlers report resources waiting for their release."""


class TextFormatter(logging.Formatter):
    """`2026-11-21T06:00:00.000Z INFO controller.sync: …`"""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by the stack trace, if there is one."""
        name = record.name.removeprefix("delaymq_operator.")
        line = f"{_time(record)} {record.levelname} {name}: {record.getMessage()}"
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    """One JSON object in a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return an object with time, level, logger, message and, if there is one, stack."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class KopfRetries(logging.Filter):
    """Reduces kopf's errors for every attempt of every watch and handler to an occasional message."""

    def __init__(self) -> None:
        super().__init__()
        self._said_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False to suppress a record; simplify the text of others."""
        if not record.name.startswith("kopf"):
            return True
        if record.exc_info and hasattr(record.exc_info[1], "status"):
            record.exc_info = None  # the API server's response is sufficient
        message = record.getMessage()
        if not message.startswith(KOPF_RETRY):
            return KOPF_WAITS not in message
        if time.monotonic() - self._said_s < KOPF_RETRY_INTERVAL_S:
            return False
        self._said_s = time.monotonic()
        record.msg = f"watch request to the API server failed, retrying: {message.partition(': ')[2]}"
        record.args, record.levelno, record.levelname = (), logging.WARNING, "WARNING"
        return True


def configure_logging(log_format: str, level: str) -> None:
    """Send all logging of the process to standard error, in the format `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(KopfRetries())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if level != "debug":
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="kopf")


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
