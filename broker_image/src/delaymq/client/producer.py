"""Sending messages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from delaymq.client.client import Client
from delaymq.client.delays import level_for
from delaymq.client.errors import (
    AnswerTimeoutError,
    ClientError,
    ClosedError,
    NoRouteError,
    NoSuchDelayError,
    RefusedError,
    SendError,
    UnreachableError,
)
from delaymq.client.messages import Message, SendResult, outgoing_properties
from delaymq.client.options import ProducerOptions
from delaymq.client.routes import QueueRound, Route
from delaymq.client.sending import RETRIED, batch_body, send_command, send_result
from delaymq.message import names
from delaymq.message.names import group_problem
from delaymq.protocol.bodies import ConsumerData, MessageQueue, ProducerData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.headers import UnregisterClientRequestHeader

DEFAULT_GROUP = "delaymq-producer"
SAME_BROKER_PAUSE_MS = 100
"""Before another attempt on a broker that just failed when there is no other: a restart takes about a second."""

_starts = itertools.count()


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """A send in all its attempts; `broker` and `address` are of the last one."""

    topic: str
    unique_id: str
    queue: MessageQueue | None
    make_command: Callable[[MessageQueue, str], Awaitable[Command]]
    broker: str | None = None
    address: str = ""


class Producer:
    """Sends messages of one producer group; safe to use from many tasks. Use as `async with Producer(client) as p:`."""

    def __init__(self, client: Client, group: str = DEFAULT_GROUP, options: ProducerOptions | None = None) -> None:
        problem = group_problem(group)
        if problem is not None:
            raise ValueError(problem)
        self._client = client
        self.group = group
        self.options = options or ProducerOptions()
        self._rounds: dict[str, QueueRound] = {}
        self._started = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        await self._client.join(self)
        self._started = True

    async def close(self) -> None:
        """Tells the brokers that the group is gone from here."""
        if not self._started:
            return
        self._started = False
        self._client.leave(self)
        await unregister(self._client, self._rounds, producer_group=self.group)

    async def send(
        self, message: Message, *, delay: str | None = None, queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:  # fmt: skip
        """Sends and waits for the broker's answer. `delay`, such as `5s`, must be one of the broker's levels.

        Raises SendError when all attempts failed, RefusedError for what no attempt can cure, NoSuchDelayError,
        IllegalMessageError, NoRouteError. After a timeout the message may be stored: another send may double it.
        """
        unique_id = self._client.unique_ids.next()

        async def command(chosen: MessageQueue, address: str) -> Command:
            return await self._message_command(message, unique_id, delay, chosen, address)

        return await self._send(message.topic, command, unique_id, queue, timeout_ms)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Sends messages of one topic in one request: all are stored, or none. Errors as `send`."""
        ids = [self._client.unique_ids.next() for _ in messages]
        body = batch_body(messages, ids)
        properties = {names.WAIT: "true" if messages[0].wait_stored else "false"}

        async def command(chosen: MessageQueue, address: str) -> Command:
            return send_command(self.group, chosen, body, properties, options=self.options, batch=True)

        return await self._send(messages[0].topic, command, ",".join(ids), queue, timeout_ms)

    async def send_oneway(
        self, message: Message, *, delay: str | None = None, queue: MessageQueue | None = None
    ) -> str:
        """Sends without waiting for an answer; whether it was stored is not known. The unique id. Errors as `send`."""
        self._check_open()
        unique_id = self._client.unique_ids.next()
        route = await self._client.route_to_send(message.topic, self.options.new_topic_queues)
        chosen, address = self._choose(message.topic, route, queue, None)
        command = await self._message_command(message, unique_id, delay, chosen, address)
        await self._client.network.oneway(address, command)
        return unique_id

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be sent to."""
        return (await self._client.route_to_send(topic, self.options.new_topic_queues)).writable

    # What the client asks of its members.

    def producer_data(self) -> ProducerData | None:
        return ProducerData(group_name=self.group)

    def consumer_data(self) -> ConsumerData | None:
        return None

    def topics(self) -> Iterable[str]:
        return self._rounds

    def membership_changed(self) -> None:
        """Producers need no members."""

    def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Producers have no offsets."""

    # Inside.

    def _check_open(self) -> None:
        if not self._started:
            raise ClosedError("the producer is not started or closed: use `async with Producer(client)`")

    async def _message_command(
        self, message: Message, unique_id: str, delay: str | None, queue: MessageQueue, address: str
    ) -> Command:
        level = 0 if delay is None else await self._level(delay, queue.broker_name, address)
        properties = outgoing_properties(message, unique_id, level)
        return send_command(self.group, queue, message.body, properties, options=self.options, flag=message.flag)

    async def _level(self, delay: str, broker_name: str, address: str) -> int:
        try:
            return level_for(delay, await self._client.levels(address), broker_name)
        except NoSuchDelayError:
            # The table may just have been changed.
            return level_for(delay, await self._client.levels(address, fresh=True), broker_name)

    def _choose(
        self, topic: str, route: Route, queue: MessageQueue | None, avoid: str | None
    ) -> tuple[MessageQueue, str]:
        if queue is None:
            if not route.writable:
                raise NoRouteError(topic, "no broker of its route can be written to now")
            rounds = self._rounds.get(topic)
            if rounds is None:
                # Producers that start together do not all begin with the same queue.
                rounds = self._rounds.setdefault(topic, QueueRound(next(_starts)))
            queue = rounds.choose(route.writable, avoid)
        address = route.master(queue.broker_name)
        if address is None:
            raise NoRouteError(topic, f"its route has no broker {queue.broker_name} that can be written to")
        return queue, address

    async def _send(
        self,
        topic: str,
        make_command: Callable[[MessageQueue, str], Awaitable[Command]],
        unique_id: str,
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> SendResult:
        self._check_open()
        loop = asyncio.get_running_loop()
        limit_ms = timeout_ms or self.options.send_timeout_ms
        deadline = loop.time() + limit_ms / 1000
        attempt = _Attempt(topic=topic, unique_id=unique_id, queue=queue, make_command=make_command)
        failed: ClientError | None = None
        attempts = 0
        while attempts <= self.options.retries and loop.time() < deadline:
            attempts += 1
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._try_once(attempt, attempts, deadline)
            except RefusedError as error:
                if error.code not in RETRIED:
                    raise
                failed = error
            except (UnreachableError, AnswerTimeoutError) as error:
                failed = error
            except TimeoutError:
                # A connection that takes its time, or a NameServer.
                failed = AnswerTimeoutError(attempt.address or f"the route of {topic}", limit_ms)
            self._client.refresh_soon(topic)
        failed = failed or ClientError(f"nothing was sent within {limit_ms} ms")
        raise SendError(topic, attempts, failed) from failed

    async def _try_once(self, attempt: _Attempt, number: int, deadline: float) -> SendResult:
        client = self._client
        route = await client.route_to_send(attempt.topic, self.options.new_topic_queues)
        chosen, address = self._choose(attempt.topic, route, attempt.queue, attempt.broker)
        if chosen.broker_name == attempt.broker:
            await asyncio.sleep(SAME_BROKER_PAUSE_MS * (number - 1) / 1000)
        attempt.broker, attempt.address = chosen.broker_name, address
        command = await attempt.make_command(chosen, address)
        left_ms = max(int((deadline - asyncio.get_running_loop().time()) * 1000), 1)
        answer = await client.network.invoke(address, command, left_ms)
        return send_result(address, answer, attempt.unique_id, chosen)


async def unregister(
    client: Client, topics: Iterable[str], *, producer_group: str | None = None, consumer_group: str | None = None
) -> None:
    """Tells all brokers of the topics that a group is gone from this client, as far as they can be reached."""
    addresses = {
        address
        for topic in topics
        if (route := client.known_route(topic)) is not None
        for by_id in route.brokers.values()
        for address in by_id.values()
    }
    header = UnregisterClientRequestHeader(
        client_id=client.client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    for address in sorted(addresses & set(client.network.addresses)):
        try:
            await client.ask(address, request_command(RequestCode.UNREGISTER_CLIENT, header.to_fields()))
        except ClientError:
            continue  # the broker forgets clients by itself
