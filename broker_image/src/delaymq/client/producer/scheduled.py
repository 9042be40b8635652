"""Pending messages: their names, and changes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec

from delaymq.client.core.client import Client
from delaymq.client.core.routes import Route, queue_for_key
from delaymq.client.due_times import Delay, Schedule, delay_in_ms, due_in_ms
from delaymq.client.errors import (
    BadAnswerError,
    ClientError,
    NotPendingError,
    SendError,
    UnreachableError,
    refusal,
)
from delaymq.client.messages import SendResult
from delaymq.client.options import ProducerOptions
from delaymq.client.producer.all_brokers import from_all
from delaymq.client.sending.properties import properties_text
from delaymq.client.sending.requests import request_of
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command

_DONE: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )
)
_UNKNOWN: Final = "unknown"


class Changed(msgspec.Struct, frozen=True):
    """A change of pending messages that was made."""

    broker_name: str
    """Broker that has the message; empty for those of a group or topic, which may be at several."""
    messages: int
    """Number of changed messages: more than 1 if a producer repeated its send, and 0 if the message was cancelled
    before. For a group, the number at all brokers that responded; for a pause and its end, that of the pending messages
    to which it applies."""
    due_ms: int | None = None
    """New due time in ms since 1970; None for a cancelled message."""
    missing: tuple[str, ...] = ()
    """Names of brokers of the topic that did not respond, where the messages of a group may be unchanged."""


class DelayChanges:
    """Changes of pending messages, at the brokers of their topics."""

    def __init__(self, client: Client, group: str, options: ProducerOptions) -> None:
        self._client = client
        self._group = group
        self._options = options

    async def change(
        self,
        topic: str,
        action: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        schedule: Schedule | None = None,
        broker_name: str | None = None,
        timeout_ms: int | None = None,
    ) -> Changed:
        """Make a change at the broker that has the message. Errors as `Producer.cancel`.

        The request goes first to the named broker, or else to the one to which messages with this key are sent.
        """
        if (key is None) == (message_id is None):
            raise ValueError("name the message by either key or message_id")
        properties = {names.DELAY_ACTION: action}
        properties |= {names.DELAY_KEY: key} if key is not None else {names.TIMER_DELETE_UNIQUE_KEY: str(message_id)}
        if schedule is not None:
            properties |= dict([schedule.timer_property])
        text = properties_text(properties)
        limit_ms = timeout_ms or self._options.send_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self._ask(topic, text, key, broker_name, limit_ms)
        except TimeoutError as error:
            failed = ClientError(f"no broker answered within {limit_ms} ms: the change may have been made")
            raise SendError(topic, 1, failed) from error

    async def change_group(
        self, topic: str, action: str, group: str | None, *, schedule: Schedule | None = None
    ) -> Changed:
        """Make a change of a group, or pause or resume it or (with None) the topic, at all brokers of the topic.

        Errors as `Producer.cancel`; SendError if no broker responds.
        """
        properties = {names.DELAY_ACTION: action} | ({} if group is None else group_property(group))
        if schedule is not None:
            properties |= dict([schedule.timer_property])
        client, text = self._client, properties_text(properties)
        route = client.known_route(topic) or await client.route_to_send(topic, self._options.new_topic_queues)
        places = _in_order(route, None, None)
        done, lost = await from_all({queue.broker_name: self._ask_for_group(queue, at, text) for queue, at in places})
        if not done and lost:
            first = next(iter(lost.values()))
            raise SendError(topic, 1, first) from first
        return Changed(
            broker_name="",
            messages=sum(each.messages for each in done),
            due_ms=max((each.due_ms for each in done if each.due_ms is not None), default=None),
            missing=tuple(lost),
        )

    async def _ask_for_group(self, queue: MessageQueue, address: str, text: str) -> Changed:
        answer = await self._request(queue, address, text, self._options.send_timeout_ms)
        if answer.code in _DONE:
            return _changed(address, answer, queue.broker_name)
        if answer.code == ResponseCode.ILLEGAL_OPERATION and answer.fields.get("delayFate") == _UNKNOWN:
            return Changed(queue.broker_name, 0)  # the broker has no pending messages of the group
        raise refusal(address, answer)

    async def _request(self, queue: MessageQueue, address: str, text: str, limit_ms: int) -> Command:
        await self._client.delays.require_changes(address)
        new_topic_queues = self._options.new_topic_queues
        request = request_of(self._group, queue, b"", text, sys_flag=0, flag=0, new_topic_queues=new_topic_queues)
        return await self._client.network.invoke(address, request, limit_ms)

    async def _ask(self, topic: str, text: str, key: str | None, broker_name: str | None, limit_ms: int) -> Changed:
        client = self._client
        route = client.known_route(topic) or await client.route_to_send(topic, self._options.new_topic_queues)
        failure: ClientError | None = None
        # A broker may know an earlier message with this key, while a later one is pending at another broker.
        known: Changed | NotPendingError | None = None
        for queue, address in _in_order(route, key, broker_name):
            try:
                answer = await self._request(queue, address, text, limit_ms)
            except UnreachableError as error:
                failure = error
                continue
            if answer.code in _DONE:
                done = _changed(address, answer, queue.broker_name)
                if done.messages or key is None:
                    return done
                known = known or done
                continue
            if answer.code != ResponseCode.ILLEGAL_OPERATION:
                raise refusal(address, answer)
            if answer.fields.get("delayFate", _UNKNOWN) != _UNKNOWN:
                known = known or _not_pending(answer, queue.broker_name)
                if key is None:
                    break
        if isinstance(known, Changed):
            return known
        if known is not None:
            raise known
        if failure is not None:
            # The broker that did not answer may have the message.
            raise SendError(topic, 1, failure) from failure
        raise NotPendingError(_UNKNOWN, "no broker of the topic knows a pending message with this name")


def _in_order(route: Route, key: str | None, broker_name: str | None) -> Iterator[tuple[MessageQueue, str]]:
    """Yield a queue and the address of each broker of a topic, beginning with the most likely one."""
    first = broker_name
    if first is None and key is not None and route.writable:
        first = queue_for_key(route.writable, key).broker_name
    for name in sorted(route.brokers, key=lambda each: (each != first, each)):
        address = route.master(name)
        if address is not None:
            yield MessageQueue(name, 0, route.topic), address


def _changed(address: str, answer: Command, broker_name: str) -> Changed:
    fields = answer.fields
    try:
        due = fields.get("delayDueMs")
        return Changed(broker_name, int(fields["delayChanged"]), None if due is None else int(due))
    except (KeyError, ValueError) as error:
        raise BadAnswerError(address, f"the response to a change does not describe it ({error})") from error


def _not_pending(answer: Command, broker_name: str) -> NotPendingError:
    fields = answer.fields
    at = fields.get("delayAtMs", "")
    return NotPendingError(
        fields.get("delayFate", _UNKNOWN),
        f"{broker_name}: {answer.remark or ''}",
        int(at) if at.isdigit() else None,
        fields.get("delayBy", ""),
    )


def schedule_of(at: datetime | None, after: Delay | None) -> Schedule:
    """Return a new due time. ValueError unless exactly one is given; errors of both as in `Producer.send`."""
    if (at is None) == (after is None):
        raise ValueError("give either at or after")
    if at is not None:
        return Schedule(due_ms=due_in_ms(at))
    return Schedule(delay_ms=delay_in_ms(after))


class Scheduled:
    """A message that `Producer.schedule` has sent. It is pending until it is due, or until someone changes it.

    A repeating message is pending until its schedule ends. A cancel ends it, and the other changes apply to its next
    run.
    """

    def __init__(self, changes: DelayChanges, topic: str, key: str | None, result: SendResult) -> None:
        self.topic = topic
        self.key = key
        self.result = result
        """Result of the send."""
        self._changes = changes

    @property
    def due_ms(self) -> int | None:
        """Due time in ms since 1970 when it was sent; of a repeating message, that of its first run."""
        return self.result.due_ms

    @property
    def is_kept(self) -> bool:
        """Whether nothing was sent because a message with the same key was pending, which this object then names."""
        return self.result.is_kept

    async def cancel(self) -> Changed:
        """Cancel the message. Errors as `Producer.cancel`."""
        return await self._change("cancel")

    async def move(self, *, at: datetime | None = None, after: Delay | None = None) -> Changed:
        """Let the message be due at another time, or after a delay from now. Errors as `Producer.cancel`."""
        return await self._change("move", schedule_of(at, after))

    async def fire(self) -> Changed:
        """Deliver the message now. Errors as `Producer.cancel`."""
        return await self._change("fire")

    async def touch(self) -> Changed:
        """Restart the delay of the message from now. Errors as `Producer.cancel`."""
        return await self._change("touch")

    async def _change(self, action: str, schedule: Schedule | None = None) -> Changed:
        # The key may by now be that of a later message.
        return await self._changes.change(
            self.topic,
            action,
            message_id=self.result.message_id,
            schedule=schedule,
            broker_name=self.result.queue.broker_name,
        )


def repeat_properties(
    cron: str | None,
    zone: str | None,
    every: Delay | None,
    until: datetime | None,
    runs: int | None,
    missed: str | None,
) -> dict[str, str]:
    """Return the properties of a repeating message; none if nothing requests one.

    IllegalMessageError if arguments exclude each other or are invalid. The broker checks expression and zone.
    """
    if cron is None and every is None:
        if (zone, until, runs, missed) != (None,) * 4:
            raise IllegalMessageError("zone, until, runs and missed need a repeating message: give cron or every")
        return {}
    if cron is not None and every is not None:
        raise IllegalMessageError("give either cron or every")
    if zone is not None and cron is None:
        raise IllegalMessageError("an interval has no time zone: give zone only with cron")
    if missed is not None and missed not in ("latest", "all", "none"):
        raise IllegalMessageError(f"missed is {missed!r}: use latest, all or none")
    properties = {
        names.DELAY_CRON: cron,
        names.DELAY_ZONE: zone,
        names.DELAY_EVERY_MS: None if every is None else str(delay_in_ms(every)),
        names.DELAY_UNTIL_MS: None if until is None else str(due_in_ms(until)),
        names.DELAY_RUNS: None if runs is None else str(runs),
        names.DELAY_MISSED: missed,
    }
    for name in (names.DELAY_CRON, names.DELAY_ZONE):
        if properties[name] == "":
            raise IllegalMessageError(f"{name} is empty: give a value, or None")
    return {name: value for name, value in properties.items() if value is not None}


def group_property(group: str) -> dict[str, str]:
    """Return the property of a group. IllegalMessageError if it is empty."""
    if not group:
        raise IllegalMessageError("the group is empty: give one, or None")
    return {names.DELAY_GROUP: group}


def delay_properties(
    key: str | None, on_same_key: str, expire_after: Delay | None, group: str | None
) -> dict[str, str]:
    """Return the properties of a scheduled message. IllegalMessageError if one is invalid."""
    if on_same_key not in ("replace", "keep", "refuse"):
        raise IllegalMessageError(f"on_same_key is {on_same_key!r}: use replace, keep or refuse")
    properties: dict[str, str] = {}
    if key is not None:
        if not key:
            raise IllegalMessageError("the key is empty: give one, or None")
        properties |= {names.DELAY_KEY: key, names.DELAY_ON_SAME_KEY: on_same_key}
    if group is not None:
        properties |= group_property(group)
    if expire_after is not None:
        properties[names.DELAY_EXPIRE_MS] = str(delay_in_ms(expire_after))
    return properties
