"""Transactional sends: a half message, the caller's local transaction, then commit or rollback."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from enum import Enum
from typing import Final, Protocol

import msgspec

from delaymq.client.core.background import Background
from delaymq.client.core.client import Client
from delaymq.client.decoding import received_in_thread
from delaymq.client.due_times import Delay
from delaymq.client.errors import BadAnswerError, ClientError, ClosedError
from delaymq.client.messages import Message, ReceivedMessage, SendResult, SendStatus
from delaymq.client.options import TransactionOptions
from delaymq.client.producer.producer import Producer
from delaymq.client.sending.outgoing import outgoing_message
from delaymq.message import flags, names
from delaymq.message.ids import parse_offset_message_id
from delaymq.message.record import Record
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader

MAX_REMARK_CHARACTERS: Final = 256

_logger = logging.getLogger(__name__)


class LocalState(Enum):
    """Outcome of a local transaction. UNKNOWN: the broker checks again."""

    COMMIT = flags.TRANSACTION_COMMIT
    ROLLBACK = flags.TRANSACTION_ROLLBACK
    UNKNOWN = 0


_TRACED_STATES: Final = {
    LocalState.COMMIT: "COMMIT_MESSAGE",
    LocalState.ROLLBACK: "ROLLBACK_MESSAGE",
    LocalState.UNKNOWN: "UNKNOW",
}
"""Names used by RocketMQ's trace readers."""


class HalfMessage(Message, frozen=True, kw_only=True, gc=False):
    """A message stored by the broker and not yet visible to consumers."""

    message_id: str
    """Unique id of the message; a check has the same one."""


class TransactionListener(Protocol):
    """Executes and checks local transactions. An exception counts as UNKNOWN: the broker checks again later."""

    async def execute(self, message: HalfMessage, arg: object) -> LocalState:
        """Run the local transaction, and record its outcome so that `check` can determine it."""
        ...

    async def check(self, message: ReceivedMessage) -> LocalState:
        """Return the outcome of this message's local transaction, which may have run in another process of the
        group.
        """
        ...


class TransactionResult(msgspec.Struct, frozen=True):
    """Location of the half message, and the outcome that was reported to the broker."""

    sent: SendResult
    state: LocalState


class TransactionProducer(Producer):
    """Sends messages that consumers see only when a local transaction has succeeded. Use as
    `async with TransactionProducer(client, "group", listener) as producer:`.

    The producers of a group check each other's transactions, so they all have the same listener.
    """

    options: TransactionOptions

    def __init__(
        self,
        client: Client,
        group: str,
        listener: TransactionListener,
        options: TransactionOptions | None = None,
    ) -> None:
        super().__init__(client, group, options or TransactionOptions())
        self._listener = listener
        self._background = Background(f"transactions of {group}")
        self._check_slots = asyncio.Semaphore(self.options.check_concurrency)
        self._checks: set[tuple[str, int]] = set()
        """Transactions being checked, by broker address and offset of the half message."""
        self._closing = False
        self._executing = 0
        self._idle = asyncio.Event()

    async def close(self) -> None:
        """Wait for local transactions and checks in progress, at most `close_timeout_ms`, then close as a producer.

        The broker checks transactions that are still open with another producer of the group.
        """
        if not self._started:
            return
        self._closing = True
        try:
            async with asyncio.timeout(self.options.close_timeout_ms / 1000):
                while self._executing or self._checks:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            _logger.warning(
                "%d local transactions and %d checks of %s were open when the producer was closed: the broker will"
                " check again",
                self._executing, len(self._checks), self.group,
            )  # fmt: skip
        finally:
            await self._background.close()
            await super().close()

    async def send_in_transaction(
        self,
        message: Message,
        arg: object = None,
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionResult:
        """Send `message` as a half message, let the listener execute the local transaction, and report its outcome
        to the broker.

        A `delay` counts from the commit. Only DelayMQ supports delays and due times (`at`) of transactions; with other
        brokers they are rejected.
        `timeout_ms` applies to the half message; errors as `send`, in which case nothing was executed. If the broker
        stored the message but could not flush or replicate it, nothing is executed either, and the message is rolled
        back.
        """
        self._check(queue, ordering_key)
        if self._closing:
            raise ClosedError("the producer is being closed: no new transaction can start")
        deadline = asyncio.get_running_loop().time() + (timeout_ms or self.options.send_timeout_ms) / 1000
        own = {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: self.group}
        self._executing += 1
        try:
            outgoing = await outgoing_message(
                message, self._client.unique_ids, self.options, own, flags.TRANSACTION_PREPARED, delay=delay, at=at
            )
            delayed = outgoing.schedule is not None or message.delay_level > 0
            # No further attempt if the first one may have been stored: the transaction would have two half messages.
            outgoing = msgspec.structs.replace(outgoing, once_only=True, delays_commit=delayed)
            await self._introduce(outgoing.topic, deadline)
            sent = await self._send(outgoing, queue, ordering_key, timeout_ms)
            offset = self._offset_of(sent)
            state, remark = LocalState.ROLLBACK, None
            if sent.status is SendStatus.OK:
                state, remark = await self._execute(message, sent.message_id, arg)
            await self._settle(message, sent, offset, state, remark)
        finally:
            self._executing -= 1
            self._idle.set()
        return TransactionResult(sent, state)

    # Called for requests of brokers.

    def check(self, address: str, half: Record, broker_name: str, header: CheckTransactionStateRequestHeader) -> None:
        """Check a transaction in the background and report the outcome. Checks above the limit are dropped; the
        broker repeats them.
        """
        key = address, header.commit_log_offset
        if self._closing or not self._started or key in self._checks:
            return
        if len(self._checks) >= self.options.max_open_checks:
            text = "%s: omitted the check of a transaction, since %d are in progress; the broker will check again"
            _logger.warning(text, self.group, len(self._checks))
            return
        self._checks.add(key)
        self._background.spawn(self._check_back(address, half, broker_name, header))

    # Internal.

    def _offset_of(self, sent: SendResult) -> int:
        try:
            return parse_offset_message_id(sent.offset_message_id)[2]
        except ValueError as error:
            raise BadAnswerError(sent.queue.broker_name, f"the half message's id is invalid: {error}") from error

    async def _execute(self, message: Message, message_id: str, arg: object) -> tuple[LocalState, str | None]:
        values = {name: getattr(message, name) for name in Message.__struct_fields__}
        try:
            state: object = await self._listener.execute(HalfMessage(**values, message_id=message_id), arg)
        except Exception as error:
            _logger.warning("the local transaction of %s failed", message_id, exc_info=True)
            return LocalState.UNKNOWN, f"executeLocalTransactionBranch exception: {_shown(error)}"
        return _known(state, message_id), None

    async def _settle(
        self, message: Message, sent: SendResult, offset: int, state: LocalState, remark: str | None
    ) -> None:
        header = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=offset,
            commit_or_rollback=state.value,
            msg_id=sent.message_id,
            from_transaction_check=False,
            transaction_id=sent.message_id,
        )
        try:
            address = await self._address_of(sent.queue)
            self._trace(message.topic, message.tags, " ".join(message.keys), header, address, state)
            await self._end_transaction(address, header, sent.queue.broker_name, remark)
        except ClientError as error:
            # The transaction was executed, so no error is raised; the broker will check its outcome.
            _logger.warning("the broker could not be notified that %s is %s: %s", sent.message_id, state.name, error)

    async def _address_of(self, queue: MessageQueue) -> str:
        """Return the address of the half message's broker: NameServers may not yet have a topic that the broker has
        just created.
        """
        route = await self._client.route_to_send(queue.topic, self.options.new_topic_queues)
        return route.master(queue.broker_name) or await self._client.address_of(queue, to_write=True)

    async def _check_back(
        self, address: str, half: Record, broker_name: str, asked: CheckTransactionStateRequestHeader
    ) -> None:
        try:
            message = await received_in_thread(half, broker_name)
            async with self._check_slots:
                state, remark = await self._state_of(message)
            header = EndTransactionRequestHeader(
                producer_group=self.group,
                tran_state_table_offset=asked.tran_state_table_offset,
                commit_log_offset=asked.commit_log_offset,
                commit_or_rollback=state.value,
                msg_id=message.message_id,
                from_transaction_check=True,
                transaction_id=asked.transaction_id,
            )
            self._trace(message.topic, message.tags, " ".join(message.keys), header, address, state)
            await self._end_transaction(address, header, message.queue.broker_name, remark)
        except ClientError as error:
            _logger.warning(
                ("the broker could not be notified of the outcome of %s and will check again: %s"), asked.msg_id, error
            )
        finally:
            self._checks.discard((address, asked.commit_log_offset))
            self._idle.set()

    async def _state_of(self, message: ReceivedMessage) -> tuple[LocalState, str | None]:
        try:
            state: object = await self._listener.check(message)
        except Exception as error:
            _logger.warning("the outcome of %s could not be checked", message.message_id, exc_info=True)
            return LocalState.UNKNOWN, f"checkLocalTransactionState Exception: {_shown(error)}"
        return _known(state, message.message_id), None

    def _trace(
        self, topic: str, tags: str, keys: str, header: EndTransactionRequestHeader, address: str, state: LocalState
    ) -> None:
        if self._tracer is not None:
            self._tracer.transaction_ended(
                topic=topic, tags=tags, keys=keys, message_id=header.msg_id, address=address,
                state=_TRACED_STATES[state], from_check=bool(header.from_transaction_check),
            )  # fmt: skip

    async def _end_transaction(
        self, address: str, header: EndTransactionRequestHeader, broker_name: str, remark: str | None
    ) -> None:
        broker = {"bname": broker_name} if broker_name else {}
        command = request_command(RequestCode.END_TRANSACTION, header.to_fields() | broker)
        command.remark = remark
        await self._client.network.oneway(address, command)


def _known(state: object, message_id: str) -> LocalState:
    if isinstance(state, LocalState):
        return state
    _logger.warning("a listener must return a LocalState, not %r: %s is UNKNOWN", state, message_id)
    return LocalState.UNKNOWN


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_REMARK_CHARACTERS]
