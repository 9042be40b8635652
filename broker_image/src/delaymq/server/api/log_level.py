"""GET and PUT /api/v1/log-level: log levels of all and of individual loggers, until the next restart."""

import dataclasses
import logging
from typing import Annotated

import msgspec

from delaymq.api_types.base import Body
from delaymq.api_types.config import MAX_LOGGERS, LevelName, LoggerName, LogLevel
from delaymq.config.errors import ConfigError
from delaymq.config.log_levels import format_log_levels, parse_log_levels
from delaymq.server.api.routing import Api, ApiError

_logger = logging.getLogger(__name__)


class LogLevelChange(Body):
    """New log levels; both members are replaced entirely."""

    level: LevelName = "info"
    loggers: Annotated[dict[LoggerName, LevelName], msgspec.Meta(max_length=MAX_LOGGERS)] = msgspec.field(
        default_factory=dict
    )


async def log_level(api: Api) -> LogLevel:
    """Return the current log levels."""
    level, loggers = parse_log_levels(api.broker.config.log_level)
    return LogLevel(level=level, loggers=loggers)


async def set_log_level(api: Api, wanted: LogLevelChange) -> LogLevel:
    """Set the log levels immediately and until the next restart; after that, `logLevel` in the file applies."""
    broker = api.broker
    for word in (wanted.level, *wanted.loggers, *wanted.loggers.values()):
        if any(character in word for character in "=;"):
            raise ApiError(
                400, "bad_request", f"{word[:64]!r} is neither a level nor the name of a logger, such as delaymq.store"
            )
    try:
        text = format_log_levels(*parse_log_levels(format_log_levels(wanted.level, wanted.loggers)))
        config = dataclasses.replace(broker.config, log_level=text)
    except ConfigError as error:
        raise ApiError(400, "bad_request", str(error)) from None
    if text != broker.config.log_level:
        broker.settings.set_until_restart("logLevel", by="HTTP", now_ms=broker.now_ms())
        broker.apply(config)
        _logger.warning("log level changed to %s until the next restart", text)
    return await log_level(api)
