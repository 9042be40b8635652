"""`delaymq send` and `delaymq receive`."""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
import time
from datetime import datetime
from typing import Annotated, Any

import typer

from delaymq.cli.connecting import with_client
from delaymq.cli.contexts import target
from delaymq.cli.errors import CommandError
from delaymq.cli.options import AsJson, ContextName, NameServers
from delaymq.cli.terminal import console, duration, print_json
from delaymq.client import (
    Client,
    ClientError,
    ConsumeFrom,
    Message,
    NoRouteError,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.clock import now_ms
from delaymq.message.levels import DelayLevels

MAX_COUNT = 1_000_000
MAX_INPUT_BYTES = 4 * 1024 * 1024
"""What is read from standard input for a body: the broker's limit of a message."""
SHOWN_CHARACTERS = 200
DEFAULT_GROUP = "delaymq-receive"
DEFAULT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_MS = 100


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic; brokers create it at the first message.")],
    body: Annotated[str, typer.Argument(metavar="BODY", help="The text, or - to read it from standard input.")],
    delay: Annotated[str | None, typer.Option(help="Arrive so much later: 5s, 1m, 2h, one of the broker's.")] = None,
    keys: Annotated[str, typer.Option(help="Keys to find it by, joined by blanks.")] = "",
    tags: Annotated[str, typer.Option(help="A tag that receivers can choose by.")] = "",
    count: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="How many times to send it.")] = 1,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Send a message, at once or delayed."""
    data = _input() if body == "-" else body.encode(errors="surrogateescape")
    message = Message(topic=topic, body=data, tags=tags, keys=tuple(keys.split()))
    out = console()

    async def work(client: Client) -> int:
        async with Producer(client, "delaymq-send") as producer:
            for _ in range(count):
                result = await producer.send(message, delay=delay)
                if as_json:
                    print_json(
                        {
                            "messageId": result.message_id,
                            "offsetMessageId": result.offset_message_id,
                            "status": result.status.name,
                            "broker": result.queue.broker_name,
                            "queueId": result.queue.queue_id,
                            "queueOffset": result.queue_offset,
                            "delay": delay,
                        }
                    )
                else:
                    place = f"{result.queue.broker_name}, queue {result.queue.queue_id}"
                    due = f", due in {delay}" if delay else f", offset {result.queue_offset}"
                    status = "" if result.status == 0 else f" ({result.status.name})"
                    out.print(f"sent {result.message_id} to {topic} ({place}{due}){status}", markup=False)
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def receive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    group: Annotated[str, typer.Option(help="The consumer group: each of them gets every message.")] = DEFAULT_GROUP,
    tags: Annotated[str, typer.Option(help="Only messages with one of these: 'TagA || TagB'.")] = "*",
    count: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="End after so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for ever, until Ctrl-C.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="End when nothing came for so many seconds.")
    ] = DEFAULT_TIMEOUT_S,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Receive messages and show how late they came.

    A new group begins with the oldest message. The command ends when nothing came for --timeout seconds: --follow
    waits for ever.
    """

    # A message that was pulled but is not wanted is given back by cancelling its handler: nothing to warn of.
    logging.getLogger("delaymq.client.handling").setLevel(logging.ERROR)

    async def work(client: Client) -> int:
        await client.route_to_send(topic, 1)  # so that a wrong address is told at once
        receiver = _Receiver(client, as_json, count)
        options = PushConsumerOptions(
            consume_from=ConsumeFrom.FIRST, concurrency=1, close_timeout_ms=CLOSE_TIMEOUT_MS, pull_batch=32
        )
        consumer = PushConsumer(client, group, receiver, options)
        consumer.subscribe(topic, tags)
        async with consumer:
            await receiver.wait(None if follow else timeout)
        if not receiver.has_reader:
            raise BrokenPipeError
        if count is not None and receiver.received < count:
            raise CommandError(f"{receiver.received} of {count} messages came; none for {timeout:g} s")
        if not receiver.received:
            print(await _why_nothing(client, topic, group, timeout), file=sys.stderr)
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


async def _why_nothing(client: Client, topic: str, group: str, timeout_s: float) -> str:
    text = f"delaymq: nothing came for {timeout_s:g} s"
    try:
        await client.route(topic, fresh=True)
    except NoRouteError:
        return f"{text}: there is no topic {topic} yet, a broker creates it at the first message"
    return f"{text}: group {group} has read all that topic {topic} has for it; --follow waits for more"


async def _for_ever() -> None:
    """A message that is not done stays uncommitted: the next receiver of the group gets it."""
    await asyncio.Event().wait()


class _Receiver:
    """A handler that shows each message, and ends after so many."""

    def __init__(self, client: Client, as_json: bool, count: int | None) -> None:
        self.received = 0
        self.has_reader = True
        """Whether what is shown still goes anywhere."""
        self._client = client
        self._as_json = as_json
        self._count = count
        self._console = console()
        self._last = time.monotonic()
        self._full = asyncio.Event()

    async def wait(self, timeout_s: float | None) -> None:
        """Returns when all have come, or when nothing came for `timeout_s`."""
        self._last = time.monotonic()
        while not self._full.is_set():
            left_s = None if timeout_s is None else self._last + timeout_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            try:
                async with asyncio.timeout(left_s):
                    await self._full.wait()
            except TimeoutError:
                continue

    async def __call__(self, message: ReceivedMessage) -> None:
        if self._full.is_set():
            await _for_ever()
        arrived_ms = now_ms()
        due_ms = await self._due_ms(message)
        try:
            if self._as_json:
                print_json(as_data(message, arrived_ms, due_ms))
            else:
                self._console.print(as_line(message, arrived_ms, due_ms), markup=False)
        except (BrokenPipeError, SystemExit):  # rich turns the one into the other
            self.has_reader = False
            self._full.set()
            await _for_ever()
        self._last = time.monotonic()
        self.received += 1
        if self._count is not None and self.received >= self._count:
            self._full.set()

    async def _due_ms(self, message: ReceivedMessage) -> int | None:
        if message.delay_level == 0:
            return None
        if message.due_ms is not None:
            return message.due_ms
        address = await self._client.address_of(message.queue)
        try:
            levels: DelayLevels = await self._client.levels(address)
        except ClientError:
            return None
        return message.born_timestamp_ms + levels.delay_ms(message.delay_level)


def as_line(message: ReceivedMessage, arrived_ms: int, due_ms: int | None) -> str:
    """One message as a line for people."""
    clock = datetime.fromtimestamp(arrived_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        text = f"0x{message.body.hex()}"
    text = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
    parts = [clock, text]
    if message.tags:
        parts.append(f"tags {message.tags}")
    if message.keys:
        parts.append(f"keys {' '.join(message.keys)}")
    if message.reconsume_times:
        parts.append(f"retry {message.reconsume_times}")
    if due_ms is not None:
        parts.append(f"delayed {duration(due_ms - message.born_timestamp_ms)}")
        parts.append(f"late by {duration(arrived_ms - due_ms)}")
    parts.append(f"queue {message.queue.queue_id}, offset {message.queue_offset}")
    return "  ".join(parts)


def as_data(message: ReceivedMessage, arrived_ms: int, due_ms: int | None) -> dict[str, Any]:
    """One message as JSON; a body that is no text is in bodyBase64."""
    data: dict[str, Any] = {
        "messageId": message.message_id,
        "offsetMessageId": message.offset_message_id,
        "topic": message.topic,
        "tags": message.tags,
        "keys": list(message.keys),
        "broker": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "reconsumeTimes": message.reconsume_times,
        "bornMs": message.born_timestamp_ms,
        "storedMs": message.store_timestamp_ms,
        "arrivedMs": arrived_ms,
        "delayLevel": message.delay_level,
        "dueMs": due_ms,
        "latenessMs": None if due_ms is None else arrived_ms - due_ms,
        "properties": message.properties,
    }
    try:
        data["body"] = message.body.decode()
    except UnicodeDecodeError:
        data["bodyBase64"] = base64.b64encode(message.body).decode()
    return data


def _input() -> bytes:
    data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        raise CommandError(f"standard input has more than {MAX_INPUT_BYTES} bytes: a message cannot be larger")
    return data
