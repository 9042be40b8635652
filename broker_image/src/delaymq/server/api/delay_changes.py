"""POST /api/v1/delay/changes: cancel, move, fire or touch a pending message.

The token permits this for every topic, as it permits everything else that HTTP provides.
"""

from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web
from msgspec import UNSET

from delaymq.api_types.delay_changes import Change, ChangeBody
from delaymq.broker.delivery.changes.changes import Requester
from delaymq.broker.delivery.changes.requests import Action, ChangeRequest, Outcome
from delaymq.broker.delivery.timed.requests import TimeRequest, delay_key, read_recall_handle
from delaymq.broker.processors.delay_changes import make_change
from delaymq.broker.requests.results import Deferred
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.ids import pack_host
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Response
from delaymq.protocol.errors import RequestError
from delaymq.server.api.messages.send import due_at_ms
from delaymq.server.api.routing import ApiError
from delaymq.server.api.topics import no_topic
from delaymq.server.http.responses import decode_json
from delaymq.store.errors import StoreError
from delaymq.transport.addresses import end_of

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer

_EXAMPLE: Final = '{"action": "cancel", "topic": "Reminders", "key": "order-4711"}'


class DelayChangesHttp:
    """Handler of changes."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server

    async def change(self, request: web.Request) -> Change:
        """POST /api/v1/delay/changes: make a change, and return when it is as durable as a message that is sent."""
        try:
            wanted = decode_json(await request.read(), ChangeBody)
        except msgspec.DecodeError as error:
            raise ApiError(400, "bad_request", f"{error}: send an object such as {_EXAMPLE}") from None
        broker = self._server.broker
        if broker.config.read_only:
            raise ApiError(409, "read_only", "the broker was started read-only and delivers nothing")
        if not broker.writable:
            raise ApiError(
                409, "decommissioned", "the broker is being taken out of service, and nothing can be changed"
            )
        if wanted.topic not in broker.topics.table:
            raise no_topic(wanted.topic)
        if request.transport is None:
            raise ConnectionResetError("the client disconnected before the change")
        requester = Requester("", pack_host(*end_of(request.transport, "peername")))
        try:
            change = self._request_of(wanted)
            outcome = make_change(broker, change, requester)
        except IllegalMessageError as error:
            raise ApiError(400, "bad_request", str(error)) from None
        except RequestError as error:
            if isinstance(error.__cause__, StoreError) or error.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                raise ApiError(503, "service_not_available", error.remark) from error
            raise ApiError(400, "bad_request", error.remark) from error
        if outcome.fate is not None:
            status, code = (404, "no_such_message") if outcome.fate.at_ms is None else (409, outcome.fate.kind.value)
            raise ApiError(status, code, f"{change.action} of {change.target}: {outcome}")
        await self._flushed(outcome)
        due_ms = outcome.changed[0].due_ms if outcome.changed else None
        return Change(action=wanted.action, topic=wanted.topic, changed=len(outcome.changed), due_ms=due_ms)

    def _request_of(self, wanted: ChangeBody) -> ChangeRequest:
        """Return the requested change. IllegalMessageError."""
        targets = {"key": wanted.key, "id": wanted.id, "handle": wanted.handle}
        if sum(target is not UNSET for target in targets.values()) != 1:
            raise IllegalMessageError("name the message by exactly one of key, id and handle")
        key, unique_id = None, None
        if wanted.key is not UNSET:
            key = delay_key({names.DELAY_KEY: wanted.key})
        elif wanted.id is not UNSET:
            unique_id = wanted.id
        elif wanted.handle is not UNSET:
            unique_id = _unique_id(wanted.handle, wanted.topic)
        action = Action(wanted.action)
        return ChangeRequest(action=action, topic=wanted.topic, key=key, unique_id=unique_id, time=_time(wanted))

    async def _flushed(self, outcome: Outcome) -> None:
        """Wait until a change is on disk, if the broker flushes synchronously. ApiError if this takes too long."""
        broker = self._server.broker
        if not outcome.changed or not broker.waits_for_flush:
            return
        late = Response(ResponseCode.FLUSH_DISK_TIMEOUT, None, {})
        timeout_ms = broker.config.sync_flush_timeout
        deferred = Deferred(Response(0, None, {}), outcome.changed[-1].end, timeout_ms, late)
        if (await self._server.flushing.outcome(deferred)).code != ResponseCode.SUCCESS:
            raise ApiError(503, "not_flushed", "the change was made, but is not flushed to disk yet")


def _unique_id(text: str, topic: str) -> str:
    """Return the unique id in a recall handle. ApiError 404 if it is not one of the topic."""
    try:
        handle = read_recall_handle(text)
    except IllegalMessageError as error:
        raise ApiError(404, "no_such_message", str(error)) from None
    if handle.topic != topic:
        raise ApiError(404, "no_such_message", f"the recall handle is for topic {handle.topic}: send that topic")
    return handle.unique_key


def _time(wanted: ChangeBody) -> TimeRequest | None:
    times = [
        TimeRequest(is_relative, ms)
        for is_relative, ms in (
            (True, wanted.delay_ms),
            (False, wanted.deliver_at_ms),
            (False, UNSET if wanted.deliver_at is UNSET else due_at_ms(wanted.deliver_at)),
        )
        if ms is not UNSET
    ]
    if wanted.action == "move" and len(times) == 1:
        return times[0]
    if wanted.action == "move":
        raise IllegalMessageError("a move needs one new due time: send one of delayMs, deliverAt and deliverAtMs")
    if times:
        raise IllegalMessageError(f"{wanted.action} takes no due time: send it with the action move")
    return None
