"""Leased pins, with which remote copiers prevent the broker from deleting the segments that they copy.

Pins expire, so that a dead copier does not block deletion. Above the disk's last threshold, pins are ignored
(Retention), so that no copier takes a broker out of service.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from aiohttp import web

from delaymq.api_types.base import LeaseMs
from delaymq.api_types.store import PinHeld, PinReleased
from delaymq.server.api.routing import ApiError, Query
from delaymq.server.http.responses import decode_json

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer
    from delaymq.store.retention import Pins

MAX_HOLDERS: Final = 8
"""Each holder is a metrics series and is checked before each deletion."""
_HOLDER = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_EXAMPLE: Final = '{"holder": "backup-1", "offset": 0, "leaseMs": 60000}'


@dataclass(slots=True)
class _Pin:
    offset: int
    lease_ends_ms: int


class PinRefusedError(Exception):
    """A rejected pin: HTTP status, code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class LeasedPins:
    """Pins of remote copiers; `pins` are the store's."""

    def __init__(self, pins: "Pins", min_offset: Callable[[], int], now_ms: Callable[[], int]) -> None:
        self._pins = pins
        self._min_offset = min_offset
        self._now_ms = now_ms
        self._held: dict[str, _Pin] = {}

    def hold(self, holder: str, offset: int, lease_ms: int) -> int:
        """Set or renew a pin and return the end of its lease (ms); raise PinRefusedError."""
        self._expire()
        first = self._min_offset()
        if offset < first:
            raise PinRefusedError(
                409, "offset_gone", f"the log starts at {first}: read /api/v1/store again, and pin an existing offset"
            )
        if holder not in self._held:
            if len(self._held) >= MAX_HOLDERS:
                raise PinRefusedError(
                    429, "too_many_pins", f"{MAX_HOLDERS} other pins are held: try again when one of them is released"
                )
            self._pins.hold(holder, lambda: self._offset_of(holder), gives_way=True)
        pin = self._held[holder] = _Pin(offset, self._now_ms() + lease_ms)
        return pin.lease_ends_ms

    def release(self, holder: str) -> bool:
        """Release a pin; return False if there is none."""
        if self._held.pop(holder, None) is None:
            return False
        self._pins.release(holder)
        return True

    def _offset_of(self, holder: str) -> int | None:
        pin = self._held.get(holder)
        return pin.offset if pin is not None and pin.lease_ends_ms > self._now_ms() else None

    def _expire(self) -> None:
        now_ms = self._now_ms()
        for holder in [holder for holder, pin in self._held.items() if pin.lease_ends_ms <= now_ms]:
            self.release(holder)


class PinRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Body of POST /api/v1/store/pins; `PinBody` in the description."""

    holder: str
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    lease_ms: LeaseMs


class PinQuery(Query):
    """Parameters of a pin's release."""

    holder: Annotated[str, msgspec.Meta(max_length=64)]


class PinsHttp:
    """Handlers for the pins of a broker's store."""

    def __init__(self, server: "BrokerServer") -> None:
        broker = server.broker
        self._server = server
        self._store = broker.store
        self.pins = LeasedPins(self._store.pins, lambda: self._store.min_offset, broker.now_ms)

    async def hold(self, request: web.Request) -> PinHeld:
        """POST /api/v1/store/pins: set or renew a pin."""
        try:
            wanted = decode_json(await request.read(), PinRequest)
        except msgspec.DecodeError as error:
            raise ApiError(400, "bad_request", f"{error}: send {_EXAMPLE}") from None
        if not _HOLDER.fullmatch(wanted.holder) or not wanted.holder.startswith("backup-"):
            raise ApiError(
                400,
                "bad_request",
                "holder must be `backup-` followed by up to 57 letters, digits, dots, dashes and underscores",
            )
        try:
            lease_ends_ms = self.pins.hold(wanted.holder, wanted.offset, wanted.lease_ms)
        except PinRefusedError as error:
            raise ApiError(error.status, error.code, str(error)) from None
        return PinHeld(
            holder=wanted.holder, offset=wanted.offset, lease_ends_ms=lease_ends_ms, store_id=self._server.log_id
        )

    async def release(self, request: web.Request) -> PinReleased:
        """DELETE /api/v1/store/pins/HOLDER: release a pin."""
        holder = request.match_info["holder"]
        if not self.pins.release(holder):
            raise ApiError(404, "no_such_pin", "there is no pin of this holder: it may have expired")
        return PinReleased(holder=holder, released=True)
