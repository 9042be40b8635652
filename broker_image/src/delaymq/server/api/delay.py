"""Pausing and resuming deliveries over HTTP: POST /api/v1/delay/pause and /api/v1/delay/resume."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from aiohttp import web

from delaymq.api_types.delay import DeliveryPolicy, DeliveryState, SpreadMs, UpToMs
from delaymq.server.api.routing import ApiError
from delaymq.server.http.responses import decode_json

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer

_EXAMPLES: Final = (
    '{"overdue": "deliver"}, {"overdue": "spread", "overMs": 1800000} or {"overdue": "drop", "upToMs": 1700000000000}'
)


class ResumeRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Body of POST /api/v1/delay/resume: what becomes of overdue messages; the description has it as `Resume`."""

    overdue: Literal["deliver", "spread", "drop"]
    over_ms: SpreadMs | None = None
    """Of `spread`: how long it takes."""
    up_to_ms: UpToMs | None = None
    """Of `drop`: what is due at or before this time is dropped, as it was looked at before."""


class DelayHttp:
    """Handlers over the delivery of one broker."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server

    async def pause(self, request: web.Request) -> DeliveryState:
        """POST /api/v1/delay/pause: nothing is delivered until somebody resumes, also after a restart."""
        return self._change(self._server.broker.delivery.control.pause)

    async def resume(self, request: web.Request) -> DeliveryState:
        """POST /api/v1/delay/resume: deliveries go on; the body says what becomes of what is overdue."""
        control = self._server.broker.delivery.control
        try:
            wanted = decode_json(await request.read(), ResumeRequest)
        except msgspec.DecodeError as error:
            raise ApiError(400, "bad_request", f"{error}: send {_EXAMPLES}") from None
        if wanted.overdue == "spread":
            if wanted.over_ms is None:
                raise ApiError(400, "bad_request", "overMs is missing: over how many ms are they spread?")
            over_ms = wanted.over_ms
            return self._change(lambda: control.spread(over_ms))
        if wanted.overdue == "drop":
            if wanted.up_to_ms is None:
                raise ApiError(
                    400, "bad_request", "upToMs is missing: look at /api/v1/delay first, and state its asOfMs"
                )
            up_to_ms = wanted.up_to_ms
            return self._change(lambda: control.drop(up_to_ms))
        return self._change(control.resume)

    def _change(self, change: Callable[[], None]) -> DeliveryState:
        broker = self._server.broker
        if broker.config.read_only:
            raise ApiError(409, "read_only", "the broker was started read-only: it delivers nothing")
        now_ms = broker.now_ms()
        overdue = broker.delivery.control.overdue(now_ms)
        try:
            change()
        except OSError as error:
            raise ApiError(
                503, "not_kept", f"delaymq/delivery.json cannot be written ({error}): nothing changed"
            ) from None
        broker.delivery.wake()
        held = msgspec.convert(broker.delivery.control.as_json(now_ms), DeliveryPolicy | None)
        return DeliveryState(as_of_ms=now_ms, overdue=overdue, held=held)
