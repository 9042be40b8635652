"""GET /api/v1/config: every setting of the running broker, its origin, and changes that wait for a restart."""

from delaymq.api_types.config import Setting, Settings
from delaymq.config.describe import describe
from delaymq.server.api.routing import Api


async def config(api: Api) -> Settings:
    """Return all settings."""
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
