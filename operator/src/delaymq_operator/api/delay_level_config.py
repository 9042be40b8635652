"""The DelayLevelConfig resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from delaymq.message.errors import LevelTableError
from delaymq.message.levels import MAX_LEVELS, DelayLevels
from msgspec import Meta

from delaymq_operator.api.conditions import Condition
from delaymq_operator.api.errors import SpecError
from delaymq_operator.api.resource import ApiStruct, Resource, StatusStruct, metadata_of, spec_of, status_of

MAX_TABLE_CHARS = 200
"""Maximum length of the table in the status; the spec contains the complete table."""


class DelayLevelConfigSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired state."""

    levels: Annotated[
        tuple[Annotated[str, Meta(min_length=2, max_length=13)], ...], Meta(min_length=1, max_length=MAX_LEVELS)
    ]
    overflow: Literal["Reject", "Clamp"] = "Clamp"

    @property
    def message_delay_level(self) -> str:
        """The value of RocketMQ's `messageDelayLevel`."""
        return " ".join(self.levels)

    @property
    def delay_level_overflow(self) -> str:
        """The value of `delayLevelOverflow`."""
        return self.overflow.lower()

    @property
    def short_table(self) -> str:
        """The table for the status, truncated after a level."""
        if len(self.message_delay_level) <= MAX_TABLE_CHARS:
            return self.message_delay_level
        return self.message_delay_level[: MAX_TABLE_CHARS - 1].rpartition(" ")[0] + " …"


class AppliedLevels(StatusStruct, frozen=True, kw_only=True):
    """The table that Brokers use while the one in the spec is a dry run."""

    message_delay_level: str
    delay_level_overflow: Literal["reject", "clamp"]


class DelayLevelConfigStatus(StatusStruct, frozen=True, kw_only=True):
    """Observed state."""

    observed_generation: int | None = None
    conditions: tuple[Condition, ...] = ()
    used_by: tuple[str, ...] = ()
    """Names of Brokers, sorted."""
    level_count: int | None = None
    max_delay: str | None = None
    """Longest delay, as written in the spec."""
    table: str | None = None
    applied: AppliedLevels | None = None
    """The last table that was not a dry run."""


class DelayLevelConfig(Resource, frozen=True, kw_only=True):
    """A DelayLevelConfig as stored by the API server."""

    spec: DelayLevelConfigSpec
    status: DelayLevelConfigStatus = DelayLevelConfigStatus()


def parse_delay_level_config(body: Mapping[str, Any]) -> DelayLevelConfig:
    """Return a DelayLevelConfig from its body. SpecError if a broker would reject its table."""
    spec = spec_of("DelayLevelConfig", body, DelayLevelConfigSpec)
    try:
        DelayLevels.of(spec.levels)
    except LevelTableError as error:
        raise SpecError(f"spec.levels: {error}") from error
    return DelayLevelConfig(
        spec=spec, status=status_of(body, DelayLevelConfigStatus), **metadata_of("DelayLevelConfig", body)
    )
