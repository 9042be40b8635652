"""Log output of a server process: handler, rate limit, format and levels."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Final

from delaymq.config import BrokerConfig, NamesrvConfig
from delaymq.config.log_levels import parse_log_levels
from delaymq.server.logs.format import formatter
from delaymq.server.logs.limit import LineLimit
from delaymq.server.logs.writer import LATE_S, LogWriter, standard_error

FLUSH_S: Final = 1.0
"""Maximum time for writing the last lines at exit."""

_logger = logging.getLogger(__name__)

_started: LogHandler | None = None
_levels_set: set[str] = set()


class LogHandler(logging.Handler):
    """Passes records to the writer thread as lines, within the limits of their loggers."""

    def __init__(self, log_format: str, descriptor: int, late_s: float = LATE_S, broker: str = "") -> None:
        super().__init__()
        self.setFormatter(formatter(log_format, broker))
        self._limit = LineLimit()
        self._limit_lock = threading.Lock()
        self.writer = LogWriter(descriptor, self._dropped_line, self._late_lines, late_s)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, without blocking or raising."""
        try:
            with self._limit_lock:
                suppressed = self._limit.admit(record)
            if suppressed is None:
                self.writer.expect_late()
                return
            if suppressed:
                self.writer.put(self._suppressed_line(record.name, suppressed))
            self.writer.put(self.format(record))
        except Exception:
            self.writer.put(self._line(record.name, "cannot format an event"))

    def close(self) -> None:
        """Write the last lines."""
        for line in self._late_lines():
            self.writer.put(line)
        self.writer.stop(FLUSH_S)
        super().close()

    def _late_lines(self) -> list[str]:
        with self._limit_lock:
            counts = self._limit.suppressed()
        return [self._suppressed_line(name, count) for name, count in counts.items()]

    def _suppressed_line(self, name: str, count: int) -> str:
        return self._line(name, f"{count} lines of this logger were suppressed")

    def _dropped_line(self, count: int) -> str:
        return self._line(__name__, f"{count} lines were dropped because the log was not read")

    def _line(self, logger: str, text: str) -> str:
        return self.format(logging.LogRecord(logger, logging.WARNING, "", 0, text, None, None))


def start_logs(log_format: str, log_level: str, broker: str = "") -> None:
    """Start logging to stderr, unless a handler, such as a test's, is already installed; set the levels.

    With `broker`, each line has this name, because several processes write to the same stderr.
    """
    global _started
    if _started is None and not logging.getLogger().handlers:
        _started = LogHandler(log_format, standard_error(), broker=broker)
        logging.getLogger().addHandler(_started)
        logging.captureWarnings(True)
        threading.excepthook = _thread_failed
        sys.unraisablehook = _unretrieved_exception
    set_levels(log_level)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    # Python would print it on several lines, bypassing the log.
    error = failed.exc_value
    name = failed.thread.name if failed.thread is not None else "?"
    _logger.error("thread %s failed", name, exc_info=error)


def _unretrieved_exception(failed: sys.UnraisableHookArgs) -> None:
    _logger.error("%s", failed.err_msg or "unraisable exception", exc_info=failed.exc_value)


def set_levels(log_level: str) -> None:
    """Set the levels of `logLevel`, and reset levels of individual loggers set earlier."""
    level, loggers = parse_log_levels(log_level)
    logging.getLogger().setLevel(level.upper())
    for name in _levels_set - loggers.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, each in loggers.items():
        logging.getLogger(name).setLevel(each.upper())
    _levels_set.clear()
    _levels_set.update(loggers)


def flush_logs(timeout_s: float) -> None:
    """Wait until the queued lines are written, at most `timeout_s`."""
    if _started is not None:
        _started.writer.flush(timeout_s)


def stop_logs() -> None:
    """Write the last lines and stop the thread."""
    global _started
    if _started is not None:
        logging.getLogger().removeHandler(_started)
        _started.close()
        _started = None


class LevelFollower:
    """Sets the log levels when they change in the configuration."""

    def __init__(self, log_level: str) -> None:
        self._log_level = log_level

    def __call__(self, config: BrokerConfig | NamesrvConfig) -> None:
        if config.log_level != self._log_level:
            self._log_level = config.log_level
            set_levels(config.log_level)
