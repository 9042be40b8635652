"""POST /api/v1/offsets/forget: discard unreadable consumer offsets."""

from typing import TYPE_CHECKING

from aiohttp import web

from delaymq.api_types.broker import OffsetsForgotten
from delaymq.server.api.routing import ApiError

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer


class OffsetsHttp:
    """Handlers for a broker's consumer offsets."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server

    async def forget(self, request: web.Request) -> OffsetsForgotten:
        """Discard the offsets; consumers are then served again, and groups start like new ones."""
        broker = self._server.broker
        kept = broker.offsets.unreadable
        if not kept:
            raise ApiError(409, "readable", "the consumer offsets are readable: there is nothing to discard")
        try:
            broker.forget_offsets()
        except OSError as error:
            raise ApiError(
                503, "not_kept", f"cannot write config/consumerOffset.json ({error}): nothing was changed"
            ) from None
        return OffsetsForgotten(as_of_ms=broker.now_ms(), kept=tuple(kept))
