"""POST /api/v1/delay/changes: change a pending message or those of a group, pause and resume groups and topics."""

from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web
from msgspec import UNSET

from delaymq.api_types.delay_changes import Change, ChangeBody
from delaymq.broker.delivery.changes.changes import Requester
from delaymq.broker.delivery.changes.requests import Action, ChangeRequest, check_names
from delaymq.broker.delivery.timed.requests import TimeRequest, delay_group, delay_key, read_recall_handle
from delaymq.broker.processors.delay_changes import make_change
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.ids import pack_host
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Response
from delaymq.protocol.errors import RequestError
from delaymq.server.api.messages.send import check_storable, due_at_ms
from delaymq.server.api.routing import ApiError
from delaymq.server.api.topics import no_topic
from delaymq.server.http.responses import decode_json
from delaymq.server.http.sign_in.accounts import caller_of
from delaymq.server.http.sign_in.peers import peer_of
from delaymq.store.errors import StoreError

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
        group = "" if wanted.group is UNSET else wanted.group
        is_end_of_pause = wanted.action == "resume" and (wanted.topic, group) in broker.delivery.pauses
        if wanted.topic not in broker.topics.table and not is_end_of_pause:
            raise no_topic(wanted.topic)
        if group and not is_end_of_pause:
            check_storable("group", group)
        requester = requester_of(request)
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
        await wait_for_flush(self._server, outcome.end or broker.store.end_offset)
        due_ms = outcome.changed[0].due_ms if outcome.changed else None
        return Change(action=wanted.action, topic=wanted.topic, changed=outcome.messages, due_ms=due_ms)

    def _request_of(self, wanted: ChangeBody) -> ChangeRequest:
        """Return the requested change. IllegalMessageError."""
        action, key, unique_id, group = Action(wanted.action), None, None, None
        if wanted.id is not UNSET and wanted.handle is not UNSET:
            raise IllegalMessageError("a recall handle contains the unique id: send either id or handle")
        has_id = wanted.id is not UNSET or wanted.handle is not UNSET
        check_names(action, wanted.key is not UNSET, has_id, wanted.group is not UNSET)
        if wanted.key is not UNSET:
            key = delay_key({names.DELAY_KEY: wanted.key})
        elif wanted.id is not UNSET:
            unique_id = wanted.id
        elif wanted.handle is not UNSET:
            unique_id = _unique_id(wanted.handle, wanted.topic)
        elif wanted.group is not UNSET:
            group = delay_group({names.DELAY_GROUP: wanted.group})
        time = _time(wanted)
        return ChangeRequest(action=action, topic=wanted.topic, key=key, unique_id=unique_id, group=group, time=time)


def requester_of(request: web.Request) -> Requester:
    """Return the client that sent a request. ConnectionResetError if it has disconnected."""
    if request.transport is None:
        raise ConnectionResetError("the client disconnected before the change")
    return Requester(caller_of(request).name, pack_host(*peer_of(request)))


async def wait_for_flush(server: "BrokerServer", end: int) -> None:
    """Wait until disk and replicas have the log up to `end`, if sends wait for them. ApiError if it takes too long."""
    broker = server.broker
    if not broker.answers_wait:
        return
    deferred = broker.deferred(Response(0, None, {}), end, lambda code: Response(code, None, {}))
    if (await server.flushing.outcome(deferred)).code != ResponseCode.SUCCESS:
        raise ApiError(503, "not_flushed", "the change was made, but is not yet flushed to disk or not yet replicated")


async def wait_for_tables(server: "BrokerServer") -> None:
    """Wait until all required replicas have the tables as they are now. ApiError if it takes too long."""
    result = server.broker.when_replicas_know(Response())
    response = result if isinstance(result, Response) else await server.flushing.outcome(result)
    if response.code != ResponseCode.SUCCESS:
        raise ApiError(503, "not_replicated", response.remark or "")


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
