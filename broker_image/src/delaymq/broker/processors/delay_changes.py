"""Changes of pending messages: recalls (370) and messages with DELAY_ACTION or TIMER_DEL_UNIQKEY."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from delaymq.broker.delivery.changes.changes import Requester
from delaymq.broker.delivery.changes.fates import UNKNOWN, Fate
from delaymq.broker.delivery.changes.requests import Action, ChangeRequest, Outcome, perform, request_of
from delaymq.broker.delivery.timed.requests import read_recall_handle
from delaymq.broker.processors.accounts import account_of
from delaymq.broker.requests.errors import message_illegal, no_permission, store_refusal, topic_missing, unavailable
from delaymq.broker.requests.results import Deferred
from delaymq.broker.sending.admission import requests_transaction
from delaymq.message.errors import IllegalMessageError
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import RecallMessageRequestHeader
from delaymq.store.errors import StoreError

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session


def recall_message(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle RECALL_MESSAGE (370), by which clients of RocketMQ 5.3 cancel a pending message."""
    header = RecallMessageRequestHeader.from_fields(command.fields)
    try:
        handle = read_recall_handle(header.recall_handle)
    except IllegalMessageError as error:
        return _not_done(str(error))
    if header.topic not in broker.topics.table:
        raise topic_missing(header.topic)
    if handle.topic != header.topic:
        return _not_done(f"the recall handle is for topic {handle.topic}: send that topic")
    if handle.broker_name != broker.config.broker_name:
        return _not_done(f"the message is on broker {handle.broker_name}: send the request there")
    request = ChangeRequest(action=Action.CANCEL, topic=header.topic, unique_id=handle.unique_key)
    outcome = make_change(broker, request, requester_of(broker, session, command))
    return _answer(broker, request, outcome, {"msgId": handle.unique_key})


def change_by_message(
    broker: Broker, session: Session, command: Command, topic: str, properties: dict[str, str]
) -> Response | Deferred:
    """Make the change that a message requests. The message is not stored; the response describes the mark."""
    if requests_transaction(properties):
        raise message_illegal("a half message cannot change a pending one: send an ordinary message")
    try:
        request = request_of(topic, properties, lambda: broker.delivery.levels)
    except IllegalMessageError as error:
        raise message_illegal(str(error)) from error
    tell = partial(_tell, broker, session, command, request)
    try:
        result = _change(broker, session, command, request)
    except RequestError as error:
        tell(error.code, error.remark)
        raise
    response = result if isinstance(result, Response) else result.response
    tell(response.code, response.remark)
    return result


def _change(broker: Broker, session: Session, command: Command, request: ChangeRequest) -> Response | Deferred:
    requester = requester_of(broker, session, command)
    outcome = make_change(broker, request, requester)
    shortened = (request.unique_id or "").removeprefix(request.topic)
    if outcome.record is None and shortened and shortened != request.unique_id:
        # RocketMQ 5.3.2 and later put the topic before the unique id.
        outcome = make_change(broker, replace(request, unique_id=shortened), requester)
    return _answer(broker, request, outcome, {})


def _tell(
    broker: Broker, session: Session, command: Command, request: ChangeRequest, code: int, remark: str | None
) -> None:
    if broker.on_message_change is not None:
        broker.on_message_change(session, command, request, code, remark)


def change_in_unknown_topic(
    broker: Broker, session: Session, command: Command, topic: str, properties: dict[str, str]
) -> Response | Deferred:
    """Make the change that a message for a topic requests that was deleted or lost by a crash, without creating it.

    RequestError 17 if the broker knows no pending messages or pauses of the topic either.
    """
    delivery = broker.delivery
    if not (delivery.timeline.partitions.of_topic(topic) or delivery.pauses.has_any(topic)):
        raise topic_missing(topic)
    return change_by_message(broker, session, command, topic, properties)


def requester_of(broker: Broker, session: Session, command: Command) -> Requester:
    """Return the client that sent a request."""
    return Requester(account_of(broker, command), session.remote_host)


def make_change(broker: Broker, request: ChangeRequest, requester: Requester) -> Outcome:
    """Make a change. Raises RequestError if nothing was changed because of an error."""
    if not broker.config.recall_message_enable:
        raise no_permission("pending messages cannot be changed on this broker (recallMessageEnable=false)")
    if not broker.writable:
        raise unavailable("the broker is being taken out of service: deliveries continue, but nothing can be changed")
    try:
        return perform(broker.delivery, request, requester)
    except (StoreError, IllegalMessageError) as error:
        raise store_refusal(error) from error


def _answer(broker: Broker, request: ChangeRequest, outcome: Outcome, more: dict[str, str]) -> Response | Deferred:
    if outcome.fate is not None:
        return _not_done(f"{request.action} of {request.target}: {outcome}", outcome.fate)
    place = outcome.changed[0].place if outcome.changed else 0
    fields = {
        "msgId": f"{broker.message_id_prefix}{place:016X}",
        "queueId": "0",
        "queueOffset": "0",
        "MSG_REGION": broker.region,
        "TRACE_ON": broker.trace_on,
        "delayChanged": str(outcome.messages),
        **more,
    }
    if outcome.changed and outcome.changed[0].due_ms is not None:
        fields["delayDueMs"] = str(outcome.changed[0].due_ms)
    if broker.answers_wait:
        until = outcome.end or broker.store.end_offset
        return broker.deferred(Response(0, None, fields), until, lambda code: Response(code, None, fields))
    return Response(0, None, fields)


def _not_done(remark: str, fate: Fate = UNKNOWN) -> Response:
    """Return the response to a request that changed nothing; its fields tell clients why."""
    fields = {"delayFate": fate.kind.value}
    if fate.at_ms is not None:
        fields |= {"delayAtMs": str(fate.at_ms), "delayBy": fate.by}
    return Response(ResponseCode.ILLEGAL_OPERATION, remark, fields)
