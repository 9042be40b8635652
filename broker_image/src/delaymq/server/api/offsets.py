"""POST /api/v1/offsets/forget: the decision about consumer offsets that cannot be read."""

from typing import TYPE_CHECKING

from aiohttp import web

from delaymq.api_types.broker import OffsetsForgotten
from delaymq.server.api.routing import ApiError

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer


class OffsetsHttp:
    """Handlers over the consumer offsets of one broker."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server

    async def forget(self, request: web.Request) -> OffsetsForgotten:
        """Consumers are served again; groups begin as new ones do."""
        broker = self._server.broker
        kept = broker.offsets.unreadable
        if not kept:
            raise ApiError(409, "readable", "the consumer offsets can be read: there is nothing to give up")
        try:
            broker.forget_offsets()
        except OSError as error:
            raise ApiError(
                503, "not_kept", f"config/consumerOffset.json cannot be written ({error}): nothing changed"
            ) from None
        return OffsetsForgotten(as_of_ms=broker.now_ms(), kept=tuple(kept))
