"""The producer: sends, batches, one-way sends, requests and replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Self

from delaymq.client.core.client import Client
from delaymq.client.core.replies import reply_message, reply_to
from delaymq.client.core.unregister import unregister
from delaymq.client.due_times import Delay, Schedule
from delaymq.client.errors import (
    AnswerTimeoutError,
    ClientError,
    ClosedError,
    NoReplyError,
    SendError,
    UnreachableError,
)
from delaymq.client.messages import Message, ReceivedMessage, SendResult
from delaymq.client.options import ProducerOptions
from delaymq.client.producer.in_flight import InFlight
from delaymq.client.producer.pending import PendingCount, PendingList, PendingLists, pending_query
from delaymq.client.producer.plain_sends import PlainSends
from delaymq.client.producer.scheduled import (
    Changed,
    DelayChanges,
    Scheduled,
    delay_properties,
    repeat_properties,
    schedule_of,
)
from delaymq.client.sending.outgoing import Outgoing, outgoing_batch, outgoing_message
from delaymq.client.sending.sender import Sender
from delaymq.client.trace.tracer import Tracer
from delaymq.clock import now_ms
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.names import group_problem
from delaymq.protocol.bodies import ConsumerData, MessageQueue, ProducerData

DEFAULT_GROUP = "delaymq-producer"
MAX_INTRODUCED = 10_000
"""Maximum number of topics remembered from earlier requests; for others, each request is preceded by a heartbeat."""

__all__ = ["Producer", "unregister"]

_logger = logging.getLogger(__name__)


class Producer:
    """Sends messages of one producer group.

    Use as `async with Producer(client) as p:`; it can be shared by many tasks. A send ends after its timeout,
    including all its attempts, and is not repeated afterwards: a message without a response may be stored. If
    `max_unanswered_sends` are in progress, further sends wait, within their own timeouts. Cancelling a send leaves
    nothing behind, but does not revoke a request that was already sent.
    """

    def __init__(self, client: Client, group: str = DEFAULT_GROUP, options: ProducerOptions | None = None) -> None:
        problem = group_problem(group)
        if problem is not None:
            raise ValueError(problem)
        self._client = client
        self.group = group
        self.options = options or ProducerOptions()
        self._in_flight = InFlight(self.options.max_unanswered_sends, self.options.max_unanswered_bytes)
        self._sender = Sender(client, group, self.options)
        self._plain: PlainSends | None = None
        if not self.options.enable_trace and not self.options.latency_faults:
            self._plain = PlainSends(client, group, self.options, self._sender, self._in_flight)
        self._changes = DelayChanges(client, group, self.options)
        self._pending = PendingLists(client)
        self._tracer: Tracer | None = None
        if self.options.enable_trace:
            self._tracer = Tracer(client, group, "PRODUCE", self.options.trace_topic)
        self._started = False
        self._introduced: set[str] = set()
        """Topics whose brokers have this producer registered, as long as their connections last."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the client; the group is registered with each broker at the first send to it."""
        await self._client.join(self)
        if self._tracer is not None:
            self._tracer.start()
        self._started = True

    async def close(self) -> None:
        """Wait for sends in progress, at most the send timeout, and unregister the group from the brokers.

        Sends that start later, or are still waiting, raise ClosedError.
        """
        if not self._started:
            return
        self._started = False
        try:
            await self._in_flight.end(self.options.send_timeout_ms)
            if self._tracer is not None:
                await self._tracer.close()
        finally:
            if self._tracer is not None:
                self._tracer.cancel()  # also when the caller is cancelled
            self._client.leave(self)
        if not self._client.has_producer(self.group):
            await unregister(self._client, self._sender.topics, producer_group=self.group)

    async def send(
        self,
        message: Message,
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait for the broker's response.

        `delay`, such as `1500ms`, a number of seconds or a timedelta, counts from the message's arrival, by the
        broker's clock. `at` is a due time with a time zone; one in the past means now. Both are rounded up to
        milliseconds, and exclude each other and the delay, due time and delay level of `message`. On brokers without
        timed messages, a delay must be one of the broker's levels, and `at` raises NoSuchDelayError.

        `ordering_key`: messages with the same key go to the same queue, even after failed attempts, as long as the
        topic's queues do not change; they keep their order if each send is awaited before the next.

        Raises SendError if all attempts failed, RefusedError for errors that a retry cannot resolve,
        NoSuchDelayError, IllegalMessageError, NoRouteError, ClosedError. After a timeout the message may be stored,
        and sending it again may duplicate it.
        """
        is_usual = delay is None and at is None and queue is None and ordering_key is None and timeout_ms is None
        if is_usual and self._started and self._plain is not None:
            attempt = self._plain.of_message(message)
            if attempt is not None:
                result = await self._plain.make(attempt)
                self._log_sent(result, message.topic, "")
                return result
        self._check(queue, ordering_key)
        outgoing = await outgoing_message(message, self._client.unique_ids, self.options, delay=delay, at=at)
        return await self._send(outgoing, queue, ordering_key, timeout_ms)

    async def schedule(
        self,
        message: Message,
        *,
        at: datetime | None = None,
        after: Delay | None = None,
        key: str | None = None,
        on_same_key: str = "replace",
        expire_after: Delay | None = None,
        cron: str | None = None,
        zone: str | None = None,
        every: Delay | None = None,
        until: datetime | None = None,
        runs: int | None = None,
        missed: str | None = None,
        group: str | None = None,
        timeout_ms: int | None = None,
    ) -> Scheduled:
        """Send a message that is due later, or repeats, and return an object by which it can be cancelled and moved.

        `at` and `after` are as `at` and `delay` of `send`. `key` names the message while it is pending, and is unique
        in its topic. If a message with this key is pending, it is replaced. With `on_same_key="keep"`, it is kept
        instead of the new one, and with `refuse`, the new one is rejected. A message that would be later than
        `expire_after` is dropped. Messages with the same `group` can be changed together.

        With `cron`, such as `0 9 * * 1-5`, or `every`, the message repeats: each run delivers a copy. `zone` is the
        time zone of `cron`, such as `Europe/Berlin`, and UTC by default. The schedule ends after `runs` runs or at
        `until`. `missed` is the treatment of runs that were missed: `latest` (default), `all` or `none`.

        Keys are unique within a broker, so a message with a key is sent to a queue chosen by the key. Its broker may
        change if the number of queues does. Errors as `send`; NoSuchDelayError also if the broker supports no keys.
        """
        self._check(None, None)
        repeating = repeat_properties(cron, zone, every, until, runs, missed)
        own = delay_properties(key, on_same_key, expire_after, group) | repeating
        outgoing = await outgoing_message(message, self._client.unique_ids, self.options, own, delay=after, at=at)
        has_due = outgoing.schedule is not None or message.delay_level
        if has_due and repeating:
            raise IllegalMessageError("a message has one schedule: give only one of at, after, cron and every")
        if not (has_due or repeating or key is not None):
            raise IllegalMessageError("a scheduled message needs a due time: give at, after, cron or every")
        result = await self._send(outgoing, None, key, timeout_ms)
        return Scheduled(self._changes, message.topic, key, result)

    async def cancel(
        self, topic: str, *, key: str | None = None, message_id: str | None = None, group: str | None = None
    ) -> Changed:
        """Cancel a pending message, named by its key or by the unique id from its send, or all those of a group.

        For one message, the request goes to the brokers of the topic, one at a time, until one knows the message.
        Raises NotPendingError, whose `fate` says what happened to the message, SendError if the brokers do not answer,
        NoSuchDelayError if one is too old, and RefusedError for other errors. A message that was cancelled before
        counts as cancelled.

        For a group, it goes to all brokers of the topic. The result contains the sum, 0 if nothing was pending, and
        `missing` names brokers that did not respond.
        """
        return await self._change(topic, "cancel", key, message_id, group)

    async def move(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        group: str | None = None,
        at: datetime | None = None,
        after: Delay | None = None,
    ) -> Changed:
        """Let pending messages be due at another time, or after a delay from now. Names and errors as `cancel`."""
        return await self._change(topic, "move", key, message_id, group, schedule_of(at, after))

    async def fire(
        self, topic: str, *, key: str | None = None, message_id: str | None = None, group: str | None = None
    ) -> Changed:
        """Deliver pending messages now. Names and errors as `cancel`."""
        return await self._change(topic, "fire", key, message_id, group)

    async def touch(self, topic: str, *, key: str | None = None, message_id: str | None = None) -> Changed:
        """Restart the delay of a pending message from now. Errors as `cancel`."""
        return await self._change(topic, "touch", key, message_id, None)

    async def pause(self, topic: str, group: str | None = None) -> Changed:
        """Deliver no delayed message of a group, or of the topic, until `resume`. Result and errors as `cancel`."""
        self._check(None, None)
        return await self._changes.change_group(topic, "pause", group)

    async def resume(self, topic: str, group: str | None = None) -> Changed:
        """End a pause; overdue messages are delivered immediately. Result and errors as `cancel`."""
        self._check(None, None)
        return await self._changes.change_group(topic, "resume", group)

    async def pending(
        self,
        topic: str,
        *,
        key: str | None = None,
        tag: str | None = None,
        group: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        held: bool = False,
        limit: int = 100,
    ) -> PendingList:
        """Return the pending messages of a topic that are due first, at most `limit` (up to 10,000), without bodies.

        `key` selects messages with this DELAY_KEY, key or unique id, and `since` and `until` those that are due then
        or later, and earlier. With `held`, only those are listed that are due, and not delivered because of a pause.
        The request goes to all brokers of the topic, and `missing` of the result names those that did not respond.

        Raises RefusedError if an account lacks the permission SUB for the topic, or for other errors of a broker,
        NoSuchDelayError if one is too old, UnreachableError and AnswerTimeoutError if no broker responds, NoRouteError,
        IllegalMessageError and ClosedError.
        """
        self._check(None, None)
        return await self._pending.first(pending_query(topic, key, tag, group, since, until, held=held), limit)

    async def count_pending(
        self,
        topic: str,
        *,
        key: str | None = None,
        tag: str | None = None,
        group: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        held: bool = False,
    ) -> PendingCount:
        """Return the number of pending messages of a topic. Arguments, `missing` and errors as `pending`.

        With a tag, or with a group and times, the messages are read to be counted.
        """
        self._check(None, None)
        return await self._pending.count(pending_query(topic, key, tag, group, since, until, held=held))

    async def _change(
        self,
        topic: str,
        action: str,
        key: str | None,
        message_id: str | None,
        group: str | None,
        schedule: Schedule | None = None,
    ) -> Changed:
        self._check(None, None)
        if group is None:
            return await self._changes.change(topic, action, key=key, message_id=message_id, schedule=schedule)
        if key is not None or message_id is not None:
            raise ValueError("name either a message or a group")
        return await self._changes.change_group(topic, action, group, schedule=schedule)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request: either all are stored, in one queue, or none. Errors as `send`.

        Each message may have its own `delay` or `at`, if the broker supports timed messages. `split_batches` divides
        any number of messages into batches of permitted size.
        """
        self._check(queue, ordering_key)
        outgoing = outgoing_batch(messages, self._client.unique_ids, self.options)
        if self._plain is not None and queue is None and ordering_key is None and timeout_ms is None:
            attempt = self._plain.of_batch(outgoing)
            if attempt is not None:
                result = await self._plain.make(attempt)
                self._log_sent(result, outgoing.topic, outgoing.keys)
                return result
        return await self._send(outgoing, queue, ordering_key, timeout_ms)

    async def send_oneway(
        self,
        message: Message,
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
    ) -> str:
        """Send a message without waiting for a response, and return its unique id. Errors as `send`.

        Whether it was stored is unknown. Waits while the broker does not read the connection, at most the send
        timeout.
        """
        self._check(queue, ordering_key)
        outgoing = await outgoing_message(message, self._client.unique_ids, self.options, delay=delay, at=at)
        limit_ms = self.options.send_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._sender.oneway(outgoing, queue, ordering_key)
        except TimeoutError:
            failed = ClientError(f"the message could not be written within {limit_ms} ms")
            raise SendError(outgoing.topic, 1, failed) from failed
        except (UnreachableError, AnswerTimeoutError) as error:
            self._client.refresh_soon(outgoing.topic)
            raise SendError(outgoing.topic, 1, error) from error
        return outgoing.message_id

    async def request(
        self,
        message: Message,
        timeout_ms: int,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
    ) -> ReceivedMessage:
        """Send a message and wait until a consumer of the topic replies (`reply`); the first reply is returned.

        `timeout_ms` covers the whole call. Raises NoReplyError if the request was sent and no reply arrived,
        otherwise as `send`.
        """
        self._check(queue, ordering_key)
        if timeout_ms <= 0:
            raise ValueError(f"timeout_ms of a request must be positive, not {timeout_ms}")
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        with self._client.requests.waiting() as (correlation_id, reply):
            own = {
                names.CORRELATION_ID: correlation_id,
                names.REPLY_TO_CLIENT: self._client.client_id,
                names.TTL: str(timeout_ms),
            }
            outgoing = await outgoing_message(message, self._client.unique_ids, self.options, own)
            await self._introduce(outgoing.topic, deadline)
            try:
                await self._send(outgoing, queue, ordering_key, min(timeout_ms, self.options.send_timeout_ms))
            except SendError:
                if not reply.done():  # otherwise only the response was lost
                    raise
            try:
                async with asyncio.timeout_at(deadline):
                    pushed = await reply
            except TimeoutError:
                raise NoReplyError(outgoing.topic, timeout_ms) from None
        return await reply_message(pushed)

    async def reply(self, request: ReceivedMessage, body: bytes, *, timeout_ms: int | None = None) -> SendResult:
        """Send `body` as the reply to a request, for example from its consumer's handler.

        Raises ValueError if the message is not a request, otherwise as `send`; also SendError if the requesting
        producer has disconnected.
        """
        return await self.send(reply_to(request, body), timeout_ms=timeout_ms)

    async def _introduce(self, topic: str, deadline: float) -> None:
        """Register this producer with brokers by a heartbeat, which replies and transaction checks require."""
        if topic in self._introduced:
            return
        try:
            async with asyncio.timeout_at(deadline):
                route = await self._client.route_to_send(topic, self.options.new_topic_queues)
                await self._client.heartbeat_to(route.addresses())
        except TimeoutError as error:
            failed = ClientError("the brokers of its route did not respond in time")
            raise SendError(topic, 0, failed) from error
        if len(self._introduced) < MAX_INTRODUCED:
            self._introduced.add(topic)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of a topic. Raises NoRouteError, or ClientError if no NameServer responds."""
        return (await self._client.route_to_send(topic, self.options.new_topic_queues)).writable

    # Called by the client.

    def producer_data(self) -> ProducerData | None:
        return ProducerData(group_name=self.group)

    def consumer_data(self) -> ConsumerData | None:
        return None

    def topics(self) -> Iterable[str]:
        return self._sender.topics

    def membership_changed(self) -> None:
        """Do nothing: producers are not rebalanced."""

    def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Do nothing: producers have no offsets."""

    # Internal.

    def _check(self, queue: MessageQueue | None, ordering_key: str | None) -> None:
        if not self._started:
            raise ClosedError("the producer has not been started or is closed: use `async with Producer(client)`")
        if queue is not None and ordering_key is not None:
            raise ValueError("give a queue or an ordering key, not both: the key selects the queue")

    async def _send(
        self, outgoing: Outgoing, queue: MessageQueue | None, ordering_key: str | None, timeout_ms: int | None
    ) -> SendResult:
        limit_ms = timeout_ms or self.options.send_timeout_ms
        deadline = asyncio.get_running_loop().time() + limit_ms / 1000
        size_bytes = len(outgoing.body)
        began_ms = 0 if self._tracer is None else now_ms()
        if not self._in_flight.try_enter(size_bytes):
            await self._wait_for_room(outgoing.topic, size_bytes, deadline, limit_ms)
        try:
            result = await self._sender.send(outgoing, queue, ordering_key, deadline, limit_ms)
        finally:
            self._in_flight.leave(size_bytes)
        if self._tracer is not None:
            self._tracer.sent(outgoing, result, began_ms)
        self._log_sent(result, outgoing.topic, outgoing.keys)
        return result

    def _log_sent(self, result: SendResult, topic: str, keys: str) -> None:
        if _logger.isEnabledFor(logging.DEBUG):
            _logger.debug(
                "sent topic=%s message_id=%s keys=%r status=%s broker=%s queue=%d offset=%d offset_message_id=%s",
                topic, result.message_id, keys, result.status.name, result.queue.broker_name, result.queue.queue_id,
                result.queue_offset, result.offset_message_id,
            )  # fmt: skip

    async def _wait_for_room(self, topic: str, size_bytes: int, deadline: float, limit_ms: int) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._in_flight.enter(size_bytes)
        except TimeoutError:
            failed = ClientError(
                f"{len(self._in_flight)} sends are in progress and none finished within {limit_ms} ms: send fewer "
                "messages concurrently, or find out why the broker is slow"
            )
            raise SendError(topic, 0, failed) from failed
