"""Requests for a queue: messages and offsets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from operator import lt
from typing import Final

from delaymq.client.core.client import Client
from delaymq.client.decoding import INFLATED_HERE_BYTES, compressed_bytes, inflated, stored_messages
from delaymq.client.errors import BadAnswerError, ClientError, RefusedError, reading_answer, refusal
from delaymq.client.messages import ReceivedMessage, queue_offsets
from delaymq.client.subscriptions import Subscription
from delaymq.protocol.bodies import MASTER_ID, MessageQueue
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

MAY_SUSPEND = 2
WITH_SUBSCRIPTION = 4
HELD_PULL_MARGIN_MS = 15_000
"""Maximum delay of the response after the hold time of a pull, since brokers check held pulls every 5 s."""
ENOUGH_BYTES = 32 * 1024 * 1024
"""Maximum decompressed size of the bodies of a pull; the rest is pulled again. 32 messages of a few KiB can be 2 GiB
of zeros.
"""


class PullStatus(IntEnum):
    """Result of a pull."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NOTHING_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    ILLEGAL_OFFSET = ResponseCode.PULL_OFFSET_MOVED


_PULL_STATUSES: Final[dict[int, PullStatus]] = {status.value: status for status in PullStatus}


@dataclass(frozen=True, kw_only=True, slots=True)
class PullResult:
    """Messages of a pull with matching tags; `next_offset` is the start of the next pull, whatever the status."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class QueueCalls:
    """Requests for queues. Raises NoRouteError, UnreachableError, AnswerTimeoutError, RefusedError, BadAnswerError."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._suggested: dict[MessageQueue, int] = {}
        """Broker IDs of slaves suggested for queues whose broker is busy."""

    async def pull(
        self, queue: MessageQueue, offset: int, subscription: Subscription, *, max_messages: int = 32,
        suspend_ms: int = 0, retry_topic: str = "",
    ) -> PullResult:  # fmt: skip
        """Return messages from `offset` on; with `suspend_ms`, the broker waits this long if there is none."""
        header = PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=WITH_SUBSCRIPTION | (MAY_SUSPEND if suspend_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=suspend_ms,
            sub_version=subscription.version_ms,
            subscription=subscription.expression,
            expression_type=subscription.expression_type,
        )
        address = await self._client.address_of(queue, broker_id=self._suggested.get(queue, MASTER_ID))
        timeout_ms = suspend_ms + HELD_PULL_MARGIN_MS if suspend_ms else self._client.options.request_timeout_ms
        command = request_command(RequestCode.PULL_MESSAGE, header.to_fields())
        try:
            answer = await self._client.network.invoke(address, command, timeout_ms)
        except ClientError:
            self._suggested.pop(queue, None)  # the slave is gone, and the master has the messages, too
            raise
        status = _PULL_STATUSES.get(answer.code)
        if status is None:
            raise refusal(address, answer)
        with reading_answer(address):
            found = PullMessageResponseHeader.from_fields(answer.fields)
            self._follow(queue, found.suggest_which_broker_id)
            messages: list[ReceivedMessage] = []
            next_offset = found.next_begin_offset
            if status is PullStatus.FOUND:
                messages = stored_messages(answer.body, queue.broker_name, retry_topic=retry_topic, source=queue)
                _check_order(address, offset, queue_offsets(messages), next_offset)
                compressed = compressed_bytes(messages)
                if compressed:
                    count = len(messages)
                    inflate = partial(inflated, messages, queue.broker_name, ENOUGH_BYTES)
                    messages = await asyncio.to_thread(inflate) if compressed > INFLATED_HERE_BYTES else inflate()
                    if len(messages) < count:
                        next_offset = messages[-1].queue_offset + 1
        if subscription.tags:
            messages = [message for message in messages if subscription.accepts(message.tags)]
        return PullResult(
            status=status,
            messages=messages,
            next_offset=next_offset,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
        )

    def _follow(self, queue: MessageQueue, broker_id: int) -> None:
        """Follow the broker's suggestion for the next pull: a slave if the messages are no longer in its memory."""
        if broker_id != MASTER_ID:
            self._suggested[queue] = broker_id
        elif self._suggested:
            self._suggested.pop(queue, None)

    async def committed_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's offset at the broker, or None if it has none."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id
        )
        address = await self._client.address_of(queue)
        try:
            answer = await self._client.request(
                address, request_command(RequestCode.QUERY_CONSUMER_OFFSET, header.to_fields())
            )
        except RefusedError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        with reading_answer(address):
            return QueryConsumerOffsetResponseHeader.from_fields(answer.fields).offset

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset: the next message to consume."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        address = await self._client.address_of(queue)
        await self._client.request(address, request_command(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_fields()))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest existing message."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the next message."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at `timestamp_ms` or later."""
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        address = await self._client.address_of(queue)
        answer = await self._client.request(
            address, request_command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.to_fields())
        )
        with reading_answer(address):
            return SearchOffsetResponseHeader.from_fields(answer.fields).offset

    async def _offset(self, queue: MessageQueue, code: RequestCode) -> int:
        # Requests 30 and 31 and their responses have the same fields.
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        address = await self._client.address_of(queue)
        answer = await self._client.request(address, request_command(code, header.to_fields()))
        with reading_answer(address):
            return GetMaxOffsetResponseHeader.from_fields(answer.fields).offset


def _check_order(address: str, offset: int, offsets: list[int], next_offset: int) -> None:
    """Raise BadAnswerError for messages that would repeat endlessly, or whose progress is undefined."""
    # Strictly ascending, from `offset` on and below `next_offset`.
    if all(map(lt, [offset - 1, *offsets], [*offsets, next_offset])) and offset < next_offset:
        return
    raise BadAnswerError(
        address, f"a pull from offset {offset} returned offsets {offsets[:8]} and next offset {next_offset}"
    )
