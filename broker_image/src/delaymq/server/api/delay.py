"""POST /api/v1/delay/pause and /api/v1/delay/resume: pause and resume deliveries."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from aiohttp import web

from delaymq.api_types.delay import DeliveryPolicy, DeliveryState, SpreadMs, UpToMs
from delaymq.server.api.delay_changes import requester_of, wait_for_flush, wait_for_tables
from delaymq.server.api.routing import ApiError
from delaymq.server.http.responses import decode_json
from delaymq.store.errors import StoreError

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer

_EXAMPLES: Final = (
    '{"overdue": "deliver"}, {"overdue": "spread", "overMs": 1800000} or {"overdue": "drop", "upToMs": 1700000000000}'
)


class ResumeRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Body of POST /api/v1/delay/resume: policy for overdue messages; `Resume` in the description."""

    overdue: Literal["deliver", "spread", "drop"]
    over_ms: SpreadMs | None = None
    """Duration of `spread`."""
    up_to_ms: UpToMs | None = None
    """For `drop`: drop messages due at or before this time, taken from an earlier GET /api/v1/delay."""


class DelayHttp:
    """Handlers for a broker's deliveries."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server

    async def pause(self, request: web.Request) -> DeliveryState:
        """POST /api/v1/delay/pause: stop deliveries until they are resumed, even across restarts."""
        requester = requester_of(request)
        return await self._change(lambda: self._server.broker.delivery.control.pause(requester))

    async def resume(self, request: web.Request) -> DeliveryState:
        """POST /api/v1/delay/resume: resume deliveries; the body sets the policy for overdue messages."""
        control, requester = self._server.broker.delivery.control, requester_of(request)
        try:
            wanted = decode_json(await request.read(), ResumeRequest)
        except msgspec.DecodeError as error:
            raise ApiError(400, "bad_request", f"{error}: send {_EXAMPLES}") from None
        if wanted.overdue == "spread":
            if wanted.over_ms is None:
                raise ApiError(400, "bad_request", "overMs is missing: set the duration of the spread, in ms")
            over_ms = wanted.over_ms
            return await self._change(lambda: control.spread(over_ms, requester))
        if wanted.overdue == "drop":
            if wanted.up_to_ms is None:
                raise ApiError(400, "bad_request", "upToMs is missing: read /api/v1/delay first, and pass its asOfMs")
            up_to_ms = wanted.up_to_ms
            return await self._change(lambda: control.drop(up_to_ms, requester))
        return await self._change(lambda: control.resume(requester))

    async def _change(self, change: Callable[[], int | None]) -> DeliveryState:
        broker = self._server.broker
        if broker.config.read_only:
            raise ApiError(409, "read_only", "the broker was started read-only and delivers nothing")
        now_ms = broker.now_ms()
        overdue = broker.delivery.control.overdue(now_ms)
        try:
            end = change()
        except OSError as error:
            raise ApiError(
                503, "not_kept", f"cannot write delaymq/delivery.json ({error}): nothing was changed"
            ) from None
        except StoreError as error:
            raise ApiError(503, "service_not_available", str(error)) from error
        broker.delivery.wake()
        await wait_for_tables(self._server)
        await wait_for_flush(self._server, broker.store.end_offset if end is None else end)
        held = msgspec.convert(broker.delivery.control.as_json(now_ms), DeliveryPolicy | None)
        return DeliveryState(as_of_ms=now_ms, overdue=overdue, held=held)
