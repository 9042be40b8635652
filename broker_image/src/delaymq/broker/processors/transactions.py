"""The end of a transaction (37), and the restart of the checks of a half message (323)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from delaymq.broker.requests.errors import store_refusal, system_error, unavailable
from delaymq.broker.requests.results import Deferred
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from delaymq.message.ids import parse_offset_message_id
from delaymq.message.record import Record
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from delaymq.store.errors import StoreError

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

_NOT_FOUND: Final = "Find prepared transaction message failed"
_UNCONFIRMED: Final = {
    ResponseCode.FLUSH_DISK_TIMEOUT: "the outcome is stored but not yet confirmed as flushed",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "the outcome is stored but not yet confirmed by replicas",
    ResponseCode.SLAVE_NOT_AVAILABLE: "the outcome is stored, but no replica is in sync",
}
_NOT_RESUMED: Final = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."


def end_transaction(broker: Broker, session: Session, command: Command) -> Response | Deferred | None:
    """Handle END_TRANSACTION (37): commit or roll back a half message.

    As in RocketMQ, a request with an unknown state has no response.
    """
    header = EndTransactionRequestHeader.from_fields(command.fields)
    outcome = header.commit_or_rollback
    if outcome not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
        return None
    if broker.clients.frozen:
        raise unavailable("the broker is shutting down: it will check the transaction after the restart")
    record, properties = _half_message(broker, header)
    try:
        if outcome == TRANSACTION_COMMIT:
            broker.transactions.commit(record, properties)
        else:
            broker.transactions.roll_back(record)
    except (StoreError, IllegalMessageError) as error:
        broker.stats.put_failed += 1
        raise store_refusal(error) from error
    return _when_durable(broker)


def _half_message(broker: Broker, header: EndTransactionRequestHeader) -> tuple[Record, dict[str, str]]:
    """Return the half message that the request names, and its properties.

    Raises RequestError with RocketMQ's remarks on a mismatch.
    """
    head = broker.records.producers_head_at(header.commit_log_offset)
    record = None
    if head is not None and head.topic == names.HALF_TOPIC:
        record = broker.store.record_at(head.physical_offset)
    if record is None:
        raise system_error(_NOT_FOUND)
    properties = record.properties
    if properties.get(names.PRODUCER_GROUP) != header.producer_group:
        raise system_error("The producer group wrong")
    if record.queue_offset != header.tran_state_table_offset:
        raise system_error("The transaction state table offset wrong")
    return record, properties


def resume_check(broker: Broker, session: Session, command: Command) -> Response | Deferred:
    """Handle RESUME_CHECK_HALF_MESSAGE (323): restart the checks of a half message from the first one."""
    header = ResumeCheckHalfMessageRequestHeader.from_fields(command.fields)
    try:
        _, _, physical_offset = parse_offset_message_id(header.msg_id or "")
    except ValueError as error:
        raise system_error(f"{_NOT_RESUMED} {error}") from error
    head = broker.records.head_at(physical_offset)
    is_half = head is not None and head.topic in (names.HALF_TOPIC, names.TRANS_CHECK_MAX_TOPIC)
    record = broker.store.record_at(physical_offset) if is_half else None
    if record is None:
        raise system_error(
            f"{_NOT_RESUMED} There is no half message at the offset in this id: give the offset message id of a message"
            f" in {names.HALF_TOPIC} or {names.TRANS_CHECK_MAX_TOPIC}"
        )
    try:
        resumed = broker.transactions.resume(record)
    except (StoreError, IllegalMessageError) as error:
        raise store_refusal(error) from error
    if not resumed:
        raise system_error(f"{_NOT_RESUMED} The transaction has ended")
    return _when_durable(broker)


def _when_durable(broker: Broker) -> Response | Deferred:
    if not broker.answers_wait:
        return Response()
    return broker.deferred(Response(), broker.store.end_offset, lambda code: Response(code, _UNCONFIRMED[code]))
