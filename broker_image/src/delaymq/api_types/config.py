"""/api/v1/config and /api/v1/log-level."""

from typing import Annotated, Final, Literal

import msgspec

from delaymq.api_types.base import Answer, Body

MAX_LOGGERS: Final = 32
"""Loggers that have a level of their own."""

LevelName = Annotated[str, msgspec.Meta(max_length=16, description="debug, info, warning or error")]
LoggerName = Annotated[str, msgspec.Meta(max_length=255, description="such as delaymq.store")]
_Level = Literal["debug", "info", "warning", "error"]
_Logger = Annotated[str, msgspec.Meta(pattern=r"^(delaymq|asyncio|aiohttp)(\.[a-z0-9_]{1,40}){0,5}$")]


class Setting(Answer):
    """One key."""

    key: str
    value: str | None
    """None of a secret, which is never shown."""
    is_set: bool
    origin: str
    """`default`, `broker.conf:12`, `variable …`, `flag …`, `changed at … by …`."""
    default: str
    change: str
    """`hot`: a change counts at once; `restart`: from the next start on."""
    waiting: str | None
    """The value that counts from the next start on, where it was changed meanwhile."""


class Settings(Answer):
    """All keys, in the order of the page of all settings."""

    as_of_ms: int
    settings: list[Setting]


class LogLevel(Answer):
    """Which events are written to the log."""

    level: LevelName
    """Of all loggers that have none of their own."""
    loggers: dict[LoggerName, LevelName]
    """Of single ones and what is below them."""


class LogLevelBody(Body):
    """What shall be logged; both parts are replaced as a whole."""

    level: _Level = "info"
    loggers: Annotated[dict[_Logger, _Level], msgspec.Meta(max_length=MAX_LOGGERS)] = msgspec.field(
        default_factory=dict
    )
