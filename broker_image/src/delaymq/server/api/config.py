"""GET /api/v1/config: every setting of the running broker, where it is from, and what waits for a restart."""

from delaymq.config.describe import describe
from delaymq.server.api.routing import Answer, Api


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


async def config(api: Api) -> Settings:
    """GET."""
    broker = api.broker
    rows = describe(broker.config, broker.settings.origins, broker.settings.waiting)
    return Settings(
        as_of_ms=broker.now_ms(),
        settings=[
            Setting(
                key=row["key"],
                value=row["value"],
                is_set=row["isSet"],
                origin=row["origin"],
                default=row["default"],
                change=row["change"],
                waiting=row["waiting"],
            )
            for row in rows
        ],
    )
