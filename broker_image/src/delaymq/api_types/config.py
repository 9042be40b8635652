"""Types of /api/v1/config and /api/v1/log-level."""

from typing import Annotated, Final, Literal

import msgspec

from delaymq.api_types.base import Answer, Body

MAX_LOGGERS: Final = 32
"""Maximum number of loggers with their own level."""

LevelName = Annotated[str, msgspec.Meta(max_length=16, description="debug, info, warning or error")]
LoggerName = Annotated[str, msgspec.Meta(max_length=255, description="such as delaymq.store")]
_Level = Literal["debug", "info", "warning", "error"]
_Logger = Annotated[str, msgspec.Meta(pattern=r"^(delaymq|asyncio|aiohttp)(\.[a-z0-9_]{1,40}){0,5}$")]


class Setting(Answer):
    """One setting."""

    key: str
    value: str | None
    """None for secrets, which are never shown."""
    is_set: bool
    origin: str
    """`default`, `broker.conf:12`, `variable …`, `flag …`, `changed at … by …`."""
    default: str
    change: str
    """`hot`: a change takes effect immediately; `restart`: after a restart."""
    waiting: str | None
    """The changed value that takes effect after a restart; None: unchanged."""


class Settings(Answer):
    """All settings, in the order of the configuration."""

    as_of_ms: int
    settings: list[Setting]


class LogLevel(Answer):
    """Log levels."""

    level: LevelName
    """Level of all loggers without their own level."""
    loggers: dict[LoggerName, LevelName]
    """Levels of individual loggers and their descendants."""


class LogLevelBody(Body):
    """New log levels; both members are replaced entirely."""

    level: _Level = "info"
    loggers: Annotated[dict[_Logger, _Level], msgspec.Meta(max_length=MAX_LOGGERS)] = msgspec.field(
        default_factory=dict
    )
