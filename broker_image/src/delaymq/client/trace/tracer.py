"""Sending of a producer's or consumer's traces to the trace topic, in the background and within limits."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from delaymq.client.core.background import Background
from delaymq.client.core.client import Client
from delaymq.client.errors import ClientError
from delaymq.client.messages import Message, ReceivedMessage, SendResult, SendStatus
from delaymq.client.options import ProducerOptions
from delaymq.client.sending.outgoing import Outgoing, outgoing_message
from delaymq.client.sending.sender import Sender
from delaymq.client.trace.format import (
    DEFAULT_REGION,
    ConsumeEnd,
    MessageKind,
    Trace,
    after_consuming,
    batches,
    before_consuming,
    published,
    transaction_ended,
)
from delaymq.clock import now_ms
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.ids import parse_offset_message_id
from delaymq.message.properties import PAIR_SEPARATOR, parse_properties
from delaymq.throttled_log import ThrottledLogger

MAX_WAITING: Final = 2_048
"""Maximum number of traces waiting to be sent; if the topic's brokers are too slow, further ones are dropped."""
GATHERED_MS: Final = 500
MAX_BATCH_CHARACTERS: Final = 118_000
MAX_KEY_CHARACTERS: Final = 16_000
"""Maximum length of a message's keys, since all its properties have at most 32 KiB."""
FINAL_SEND_TIMEOUT_S: Final = 3.0
"""Time limit for sending the remaining traces at close."""
_OPTIONS: Final = ProducerOptions(send_timeout_ms=5_000, max_message_bytes=4 * 128_000)

_logger = logging.getLogger(__name__)
_numbers = itertools.count(1)


class Begun(NamedTuple):
    """Messages in a handler, from `Tracer.begins` to `Tracer.ends`."""

    request_id: str
    at_ms: int
    messages: Sequence[ReceivedMessage]


class Tracer:
    """Traces of a producer or consumer (`role`: PRODUCE or CONSUME). Only `close` waits or raises."""

    def __init__(self, client: Client, group: str, role: str, topic: str) -> None:
        self.topic = topic
        self.dropped = 0
        """Number of traces that were dropped, because too many were waiting or their brokers rejected them."""
        self._client = client
        self._group = group
        name = f"_INNER_TRACE_PRODUCER-{group}-{role}-{next(_numbers)}"[: names.MAX_GROUP_LENGTH]
        self._sender = Sender(client, name, _OPTIONS)
        self._waiting: deque[Trace] = deque()
        self._on_their_way = 0
        self._arrived = asyncio.Event()
        self._sending = asyncio.Lock()
        """Lock held while traces are being sent, so that a close lets them arrive."""
        self._background = Background(f"traces of {group}")
        self._throttled = ThrottledLogger(_logger, now_ms)

    def start(self) -> None:
        """Start sending."""
        self._background.spawn(self._send_forever())

    async def close(self) -> None:
        """Send the remaining traces, within a time limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINAL_SEND_TIMEOUT_S):
                await self._send_waiting()
        await self._background.close()
        left = len(self._waiting) + self._on_their_way
        if left:
            self._drop(left, "the last traces could not be sent in time")
            self._waiting.clear()

    def cancel(self) -> None:
        """Stop sending: the owner's close was cancelled, or this was closed."""
        self._background.cancel()

    # Called by the owner.

    def sent(self, outgoing: Outgoing, result: SendResult, began_ms: int) -> None:
        """Trace a send with a response. Each message of a batch has its own trace."""
        if not result.trace_on or outgoing.topic.startswith(self.topic):
            return
        properties = parse_properties(outgoing.properties)
        kind = MessageKind.NORMAL
        if outgoing.schedule is not None or names.DELAY in properties:
            kind = MessageKind.DELAYED
        if properties.get(names.TRANSACTION_PREPARED) == "true":
            kind = MessageKind.HALF
        ids = result.message_id.split(",")
        offset_ids = result.offset_message_id.split(",")
        for number, message_id in enumerate(ids):
            self._append(
                published(
                    at_ms=began_ms,
                    region=result.region or DEFAULT_REGION,
                    group=self._group,
                    topic=outgoing.topic,
                    message_id=message_id,
                    tags=properties.get(names.TAGS, ""),
                    keys=properties.get(names.KEYS, ""),
                    store_host=_host(offset_ids[0]),
                    body_bytes=len(outgoing.body) // len(ids),
                    cost_ms=(now_ms() - began_ms) // len(ids),
                    kind=kind,
                    offset_message_id=offset_ids[min(number, len(offset_ids) - 1)],
                    success=result.status is SendStatus.OK,
                )
            )

    def transaction_ended(
        self, *, topic: str, tags: str, keys: str, message_id: str, address: str, state: str, from_check: bool
    ) -> None:
        """Trace the outcome of a transaction reported to the broker at `address`."""
        self._append(
            transaction_ended(
                at_ms=now_ms(), region=DEFAULT_REGION, group=self._group, topic=topic, message_id=message_id,
                tags=tags, keys=keys, store_host=address, transaction_id=message_id, state=state, from_check=from_check,
            )
        )  # fmt: skip

    def begins(self, messages: Sequence[ReceivedMessage]) -> Begun:
        """Trace messages before their handler."""
        traced = [each for each in messages if each.properties.get(names.TRACE_ON) != "false"]
        begun = Begun(self._client.unique_ids.next(), now_ms(), traced)
        for message in traced:
            self._append(
                before_consuming(
                    at_ms=begun.at_ms,
                    region=message.properties.get(names.MSG_REGION, ""),
                    group=self._group,
                    request_id=begun.request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=message.properties.get(names.KEYS, ""),
                )
            )
        return begun

    def ends(self, begun: Begun, end: ConsumeEnd) -> None:
        """Trace messages after their handler."""
        at_ms = now_ms()
        for message in begun.messages:
            self._append(
                after_consuming(
                    at_ms=at_ms,
                    group=self._group,
                    request_id=begun.request_id,
                    message_id=message.message_id,
                    cost_ms=(at_ms - begun.at_ms) // len(begun.messages),
                    success=end is ConsumeEnd.SUCCESS,
                    keys=message.properties.get(names.KEYS, ""),
                    end=end,
                )
            )

    # Internal.

    def _append(self, trace: Trace) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._drop(1, f"{MAX_WAITING} are already waiting")
            return
        self._waiting.append(trace)
        if len(self._waiting) == 1:
            self._arrived.set()

    async def _send_forever(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            await asyncio.sleep(GATHERED_MS / 1000)
            await self._send_waiting()

    async def _send_waiting(self) -> None:
        async with self._sending:
            while self._waiting:
                traces, self._waiting = self._waiting, deque()
                self._on_their_way = len(traces)
                for text, keys in batches(traces, MAX_BATCH_CHARACTERS, MAX_KEY_CHARACTERS):
                    await self._send(text, keys)
                    self._on_their_way -= text.count(PAIR_SEPARATOR)

    async def _send(self, text: str, keys: tuple[str, ...]) -> None:
        limit_ms = _OPTIONS.send_timeout_ms
        deadline = asyncio.get_running_loop().time() + limit_ms / 1000
        try:
            message = Message(topic=self.topic, body=text.encode(errors="replace"), keys=keys)
            outgoing = await outgoing_message(message, self._client.unique_ids, _OPTIONS)
            await self._sender.send(outgoing, None, None, deadline, limit_ms)
        except (ClientError, IllegalMessageError) as error:
            self._drop(text.count(PAIR_SEPARATOR), str(error))

    def _drop(self, count: int, why: str) -> None:
        self.dropped += count
        self._throttled.warning("%s: traces to %s are dropped (%s)", self._group, self.topic, why)


def _host(offset_message_id: str) -> str:
    """Return the host that stores the message, from its ID."""
    try:
        address, port, _ = parse_offset_message_id(offset_message_id)
    except ValueError:
        return ""
    return f"{address}:{port}"
