"""Replies (324, 325): pushed to the requesting producer, and stored in the cluster's reply topic if configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from delaymq.broker.delivery.delay_rewrite import KeyPendingError
from delaymq.broker.processors.send import place, too_large
from delaymq.broker.requests.errors import message_illegal
from delaymq.broker.requests.results import Deferred, RelayedRequests
from delaymq.broker.sending.admission import ActionRequestedError, Admitted, admit, check_copies
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.flags import TRANSACTION_MASK
from delaymq.message.properties import format_properties, parse_properties
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, request_command
from delaymq.protocol.headers import ReplyMessageRequestHeader, SendMessageRequestHeader, send_request_header
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

PUSH_TIMEOUT_MS: Final = 10_000
"""Time in which a producer must acknowledge a reply; the same as in RocketMQ. By then, the replying client has usually
timed out and sent the reply again. The producer uses the first one."""
_SHOWN_CHARACTERS: Final = 128


class _Reply(NamedTuple):
    """A validated reply that is ready to be stored."""

    session: Session
    command: Command
    header: SendMessageRequestHeader
    queue_id: int
    admitted: Admitted


def send_reply(broker: Broker, session: Session, command: Command) -> Response | RelayedRequests | Deferred:
    """Handle SEND_REPLY_MESSAGE (324, 325). The response states whether the requesting producer has received the reply.

    As in RocketMQ, the reply is stored in either case (`storeReplyMessageEnable`), so it can be found even if the
    producer is gone.
    """
    header = send_request_header(command.code, command.fields)
    if len(command.body) > broker.max_message_size:
        raise too_large(broker, len(command.body))
    _, topic, queue_id = place(broker, session, command, header)
    text = header.properties or ""
    # Validate first: a reply must not be pushed and then rejected, because the client would send it again.
    reply = _Reply(session, command, header, queue_id, _admitted(broker, topic, queue_id, text))
    properties = parse_properties(text)
    requester = properties.get(names.REPLY_TO_CLIENT)
    if requester is None:
        return _store_reply(broker, reply, _failed(f"reply message properties[{names.REPLY_TO_CLIENT}] is null"))
    producer = broker.clients.producer(requester)
    shown = requester[:_SHOWN_CHARACTERS]
    if producer is None:
        return _store_reply(broker, reply, _failed(f"push reply message fail, channel of <{shown}> not found."))
    properties[names.PUSH_REPLY_TIME] = str(broker.now_ms())
    push = _push(broker, session, header, format_properties(properties), command.body)

    def answer(answers: list[Command | None]) -> Response | Deferred:
        pushed = answers[0]
        if pushed is not None and pushed.code == ResponseCode.SUCCESS:
            # Clients expect an id in every response. RocketMQ uses "0" for a reply that is not stored.
            outcome = Response(0, None, {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"})
        else:
            outcome = _failed(f"push reply message to {shown}fail.")
        return broker.guarded(command.code, lambda: _store_reply(broker, reply, outcome))

    return RelayedRequests([(producer.session, push)], PUSH_TIMEOUT_MS, answer)


def _admitted(broker: Broker, topic: str, queue_id: int, text: str) -> Admitted:
    """Return a reply as it is to be stored. It is stored later, and by then, what it would change may have changed."""
    try:
        admitted = admit(broker, topic, queue_id, text, False)
    except (ActionRequestedError, KeyPendingError):
        admitted = None
    if admitted is None or (admitted[4] is not None and names.DELAY_KEY in admitted[2]):
        raise message_illegal(
            f"a reply cannot have {names.DELAY_ACTION}, {names.TIMER_DELETE_UNIQUE_KEY} or {names.DELAY_KEY}: send an"
            " ordinary message"
        )
    return admitted


def _failed(remark: str) -> Response:
    return Response(ResponseCode.SYSTEM_ERROR, remark)


def _push(broker: Broker, session: Session, header: SendMessageRequestHeader, properties: str, body: bytes) -> Command:
    """Return request 326, which pushes the reply to the requesting producer."""
    pushed = ReplyMessageRequestHeader(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        born_host=session.remote_address,
        store_host=broker.address,
        store_timestamp=broker.now_ms(),
        properties=properties,
        reconsume_times=header.reconsume_times,
        unit_mode=bool(header.unit_mode),
    )
    return request_command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.to_fields(), body)


def _store_reply(broker: Broker, reply: _Reply, outcome: Response) -> Response | Deferred:
    """Return `outcome` with the position of the stored reply. A failure to store it does not affect the push result."""
    outcome.fields |= {"MSG_REGION": broker.region, "TRACE_ON": broker.trace_on}
    if not broker.config.store_reply_message_enable:
        return outcome
    header = reply.header
    topic, queue_id, properties, waits, statement = reply.admitted
    record = NewRecord(
        topic,
        queue_id,
        reply.command.body,
        properties,
        header.flag,
        header.sys_flag & ~TRANSACTION_MASK,
        header.born_timestamp,
        reply.session.remote_host,
        broker.store_host,
        header.reconsume_times or 0,
        statement=statement,
    )
    try:
        check_copies(broker, record, header.topic)
        appended = broker.store.append(record)
    except (StoreError, IllegalMessageError):
        broker.stats.put_failed += 1
        return outcome
    broker.stats.put(header.topic, appended.size)
    broker.stats.last_send_ms = appended.store_timestamp_ms
    offset = appended.physical_offset
    outcome.fields |= {
        "msgId": f"{broker.message_id_prefix}{offset:016X}",
        "queueId": str(reply.queue_id),
        "queueOffset": str(appended.queue_offset),
    }
    if waits and broker.answers_wait:
        # The response is the same after a timeout, because it states whether the producer has the reply.
        return broker.deferred(outcome, offset + appended.size, lambda _: outcome)
    return outcome
