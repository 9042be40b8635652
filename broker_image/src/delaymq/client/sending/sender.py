"""Sending to brokers: choice of queues, attempts, and recording of slow brokers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from delaymq.client.core.broker_faults import BrokerFaults
from delaymq.client.core.client import Client
from delaymq.client.core.delays import level_for
from delaymq.client.core.routes import QueueRound, Route, queue_for_key
from delaymq.client.due_times import Schedule
from delaymq.client.errors import (
    AnswerTimeoutError,
    ClientError,
    NoRouteError,
    NoSuchDelayError,
    RefusedError,
    SendError,
    UnreachableError,
)
from delaymq.client.messages import SendResult, SendStatus
from delaymq.client.options import ProducerOptions
from delaymq.client.sending.outgoing import Outgoing
from delaymq.client.sending.requests import RETRIED, send_result
from delaymq.message import names
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.command import Command
from delaymq.transport import ConnectionClosedError

SAME_BROKER_PAUSES_MS = (100, 1_000)
"""Pauses before the second and each further attempt on a broker that has just failed, if there is no other: a restart
or a switchover takes about a second.
"""

_starts = itertools.count()


class _Attempts(msgspec.Struct, gc=False):
    """State of a send across its attempts; `tried` and `address` refer to the last one."""

    outgoing: Outgoing
    fixed: MessageQueue | None
    """Queue chosen by the caller, or by the ordering key at the first attempt."""
    ordering_key: str | None
    deadline: float
    """Deadline by the event loop's clock, in seconds."""
    number: int = 0
    tried: MessageQueue | None = None
    address: str = ""
    is_asked: bool = False
    """Whether the request of the last attempt may have been sent."""


class FirstAttempt(NamedTuple):
    """First attempt of a send that has already been made."""

    queue: MessageQueue
    address: str
    outcome: SendResult | ClientError


class Sender:
    """Sends of a producer."""

    def __init__(self, client: Client, group: str, options: ProducerOptions) -> None:
        self._client = client
        self._group = group
        self._options = options
        self._rounds: dict[str, QueueRound] = {}
        self._faults: BrokerFaults | None = None
        if options.latency_faults:
            self._faults = BrokerFaults(options.fault_latencies_ms, options.fault_pauses_ms, options.fault_failure_ms)

    def rounds(self, topic: str) -> QueueRound:
        """Return the selection of a topic's queues."""
        rounds = self._rounds.get(topic)
        if rounds is None:
            # Producers that start together do not all begin with the same queue.
            rounds = self._rounds.setdefault(topic, QueueRound(next(_starts)))
        return rounds

    @property
    def topics(self) -> Iterable[str]:
        """The topics used so far."""
        return self._rounds.keys()

    async def send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None,
        ordering_key: str | None,
        deadline: float,
        limit_ms: int,
        first: FirstAttempt | None = None,
    ) -> SendResult:
        """Send until a broker has stored it, the attempts are used up or the time is over. Errors as Producer.send.

        `first` is an attempt that has already been made.
        """
        attempts = _Attempts(outgoing, queue, ordering_key, deadline)
        if first is not None:
            attempts.tried, attempts.address, attempts.is_asked = first.queue, first.address, True
        loop = asyncio.get_running_loop()
        failed: ClientError | None = None
        unsafe: SendResult | None = None
        while first is not None or (attempts.number <= self._options.retries and loop.time() < deadline):
            attempts.number += 1
            try:
                made, first = first, None
                result = await self._attempt(attempts, loop) if made is None else _result_of(made)
            except RefusedError as error:
                if error.code not in RETRIED:
                    raise
                failed = error
                if outgoing.is_reply and self._all_tried(attempts):
                    break  # the same broker would only store the reply again
            except UnreachableError as error:
                failed = error
                if outgoing.once_only and isinstance(error.__cause__, ConnectionClosedError):
                    break
            except AnswerTimeoutError as error:
                failed = error
                if attempts.is_asked:
                    break  # the attempt used all the remaining time, and the message may be stored
            except TimeoutError:
                # A slow NameServer, or a request for a broker's delay levels.
                failed = AnswerTimeoutError(attempts.address or f"the route of {outgoing.topic}", limit_ms)
            else:
                if result.status is SendStatus.OK or not self._options.retry_unsafe:
                    return result
                unsafe = result
                continue
            self._client.refresh_soon(outgoing.topic)
        if unsafe is not None:
            return unsafe
        failed = failed or ClientError(f"nothing was sent within {limit_ms} ms")
        raise SendError(outgoing.topic, attempts.number, failed) from failed

    async def oneway(self, outgoing: Outgoing, queue: MessageQueue | None, ordering_key: str | None) -> None:
        """Write a one-way request to a broker's connection. Errors as Network.oneway, and those of routes and
        levels.
        """
        attempts = _Attempts(outgoing, queue, ordering_key, 0, number=1)
        _, command = await self._prepared(attempts)
        await self._client.network.oneway(attempts.address, command)

    async def _attempt(self, attempts: _Attempts, loop: asyncio.AbstractEventLoop) -> SendResult:
        attempts.is_asked = False
        outgoing = attempts.outgoing
        known = self._client.known_route(outgoing.topic)
        if attempts.number == 1 and outgoing.needs_no_broker and known is not None:
            queue = self._place(attempts, known)
            command = outgoing.request(self._group, queue, self._options.new_topic_queues)
        else:
            async with asyncio.timeout_at(attempts.deadline):
                queue, command = await self._prepared(attempts)
        began = loop.time()
        left_ms = max(int((attempts.deadline - began) * 1000), 1)
        attempts.is_asked = True
        try:
            answer = await self._client.network.invoke(attempts.address, command, left_ms)
            result = send_result(attempts.address, answer, outgoing.message_id, queue)
        except (UnreachableError, AnswerTimeoutError, RefusedError) as error:
            if self._faults is not None and (not isinstance(error, RefusedError) or error.code in RETRIED):
                now = loop.time()
                self._faults.failed(queue.broker_name, (now - began) * 1000, now * 1000)
            raise
        if self._faults is not None:
            now = loop.time()
            self._faults.answered(queue.broker_name, (now - began) * 1000, now * 1000)
        return result

    async def _prepared(self, attempts: _Attempts) -> tuple[MessageQueue, Command]:
        """Return the queue of the next attempt and the request for it."""
        outgoing, client = attempts.outgoing, self._client
        new_topic_queues = self._options.new_topic_queues
        route = client.known_route(outgoing.topic) or await client.route_to_send(outgoing.topic, new_topic_queues)
        before = attempts.tried
        queue = self._place(attempts, route)
        address = attempts.address
        if before is not None and before.broker_name == queue.broker_name:
            await asyncio.sleep(SAME_BROKER_PAUSES_MS[0 if attempts.number == 2 else 1] / 1000)
        delaying = None
        if outgoing.delays_commit:
            await client.delays.require_delayed_commits(address)
        if outgoing.has_timed:
            await client.delays.require_timers(address)
        if outgoing.is_managed:
            await client.delays.require_changes(address)
        if outgoing.schedule is not None:
            delaying = await self._delaying(outgoing.schedule, queue.broker_name, address)
        return queue, outgoing.request(self._group, queue, new_topic_queues, delaying)

    def _place(self, attempts: _Attempts, route: Route) -> MessageQueue:
        """Choose the queue of the next attempt, and set `tried` and `address`."""
        queue = self._choose(attempts, route)
        address = route.master(queue.broker_name)
        if address is None:
            hint = f"broker {queue.broker_name} of its route is currently not writable: retry later"
            raise NoRouteError(attempts.outgoing.topic, hint)
        attempts.tried, attempts.address = queue, address
        return queue

    def _all_tried(self, attempts: _Attempts) -> bool:
        """Return whether every broker of the route has been tried."""
        route = self._client.known_route(attempts.outgoing.topic)
        return route is None or attempts.number >= len({queue.broker_name for queue in route.writable})

    def _choose(self, attempts: _Attempts, route: Route) -> MessageQueue:
        topic = route.topic
        rounds = self.rounds(topic)
        if attempts.fixed is not None:
            return attempts.fixed
        if not route.writable:
            raise NoRouteError(topic, "no broker of its route is currently writable: retry later")
        if attempts.ordering_key is not None:
            attempts.fixed = queue_for_key(route.writable, attempts.ordering_key)
            return attempts.fixed
        avoid = None if attempts.tried is None else attempts.tried.broker_name
        now_ms = 0.0 if self._faults is None else asyncio.get_running_loop().time() * 1000
        return rounds.choose(route.writable, avoid, self._faults, now_ms)

    async def _delaying(self, schedule: Schedule, broker_name: str, address: str) -> tuple[str, str]:
        """Return the property that delays a message on this broker; a level, if it does not support timed messages."""
        delays = self._client.delays
        if schedule.delay_ms is None:
            await delays.require_timers(address)
        if await delays.has_timers(address):
            return schedule.timer_property
        try:
            level = level_for(schedule.delay_ms or 0, await delays.levels(address), broker_name)
        except NoSuchDelayError:
            # The table may just have been changed, or the broker upgraded.
            if await delays.has_timers(address, fresh=True):
                return schedule.timer_property
            level = level_for(schedule.delay_ms or 0, await delays.levels(address), broker_name)
        return names.DELAY, str(level)


def _result_of(made: FirstAttempt) -> SendResult:
    if isinstance(made.outcome, ClientError):
        raise made.outcome
    return made.outcome
