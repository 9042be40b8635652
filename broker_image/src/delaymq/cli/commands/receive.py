"""`delaymq receive`: consume as a group, or watch without one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Annotated, Any, Final

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, NameServers
from delaymq.cli.target.connection import with_client
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, counted, print_json
from delaymq.cli.terminal.sanitize import visible
from delaymq.cli.views.message_text import as_data, as_line
from delaymq.cli.views.tail import Tail
from delaymq.client import (
    Client,
    ClientError,
    ConsumeFrom,
    NoRouteError,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.client.subscriptions import subscription_to
from delaymq.clock import now_ms
from delaymq.message.levels import DelayLevels

MAX_COUNT: Final = 1_000_000
MAX_TAIL: Final = 10_000
DEFAULT_GROUP: Final = "delaymq-receive"
DEFAULT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_MS: Final = 100


def receive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    group: Annotated[
        str | None,
        typer.Option(help=f"The consumer group (default {DEFAULT_GROUP}); each group receives every message."),
    ] = None,
    tags: Annotated[str, typer.Option(help="Only messages with one of these tags: 'TagA || TagB'.")] = "*",
    sql: Annotated[
        str | None,
        typer.Option(help="Only messages that match the condition, such as 'price > 5' (needs enablePropertyFilter)."),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Exit after this number of messages.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further messages until Ctrl-C.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=86_400, help=f"Exit after this many seconds without a message (default {DEFAULT_TIMEOUT_S:g})."
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_TAIL,
            help="Show the newest N messages without a group; a filter hides those that do not match.",
        ),
    ] = None,
    each_queue: Annotated[bool, typer.Option("--each-queue", help="With --tail: the newest N of each queue.")] = False,
    queue: Annotated[int | None, typer.Option(min=0, help="With --tail: only this queue.")] = None,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Receive messages and show their lateness.

    A new group starts at the oldest message. The command exits after --timeout seconds without a message; with --follow
    it waits indefinitely. --tail uses no group and does not affect consumers. Examples: delaymq receive
    Orders --follow; delaymq receive Orders --tail 10; delaymq receive Orders --tail 0 --follow --sql 'price > 5'
    """
    where = target(namesrv, context=context)
    if sql is not None and tags != "*":
        text = "--sql and --tags are mutually exclusive: to filter by tag, put TAGS = 'TagA' in the --sql condition"
        raise CommandError(text, EXIT_USAGE)
    if tail is None:
        if each_queue or queue is not None:
            raise CommandError("--each-queue and --queue require --tail", EXIT_USAGE)
        wait_s = None if follow else (DEFAULT_TIMEOUT_S if timeout is None else timeout)
        raise typer.Exit(
            with_client(
                where,
                lambda client: _by_group(client, topic, group or DEFAULT_GROUP, (tags, sql), count, wait_s, as_json),
            )
        )
    if group is not None:
        raise CommandError("--tail uses no group: omit --group", EXIT_USAGE)
    if (count is not None or timeout is not None) and not follow:
        raise CommandError("--count and --timeout require --follow if --tail is given", EXIT_USAGE)

    async def tail_topic(client: Client) -> int:
        receiver = _Receiver(client, as_json, count, looks_back=True)
        looking = Tail(client, subscription_to(topic, tags, sql, 0), receiver)
        with contextlib.suppress(_LimitReachedError), _counting(receiver):
            following = await looking.last(tail, queue, each_queue)
            if follow:
                await _until_done(looking.follow(following), receiver.wait(timeout))
        if not follow and receiver.has_reader and not receiver.received:
            print(visible(f"delaymq: topic {topic} has no matching messages"), file=sys.stderr)
        return _ended(receiver, count, timeout)

    raise typer.Exit(with_client(where, tail_topic))


async def _until_done(following: Coroutine[Any, Any, None], done: Coroutine[Any, Any, None]) -> None:
    """Follow until `done` completes; raise the first error of either."""
    tasks = [asyncio.create_task(following), asyncio.create_task(done)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseExceptionGroup):
            raise outcome.exceptions[0]
        if isinstance(outcome, Exception):
            raise outcome


async def _by_group(
    client: Client,
    topic: str,
    group: str,
    wanted: tuple[str, str | None],
    count: int | None,
    wait_s: float | None,
    as_json: bool,
) -> int:
    # A pulled message beyond --count is returned by cancelling its handler, which is not worth a warning.
    logging.getLogger("delaymq.client.consumer.handlers.consume_service").setLevel(logging.ERROR)
    await client.route_to_send(topic, 1)  # reports a wrong address immediately
    receiver = _Receiver(client, as_json, count)
    options = PushConsumerOptions(
        consume_from=ConsumeFrom.FIRST, concurrency=1, close_timeout_ms=CLOSE_TIMEOUT_MS, pull_batch=32
    )
    consumer = PushConsumer(client, group, receiver, options)
    tags, sql = wanted
    consumer.subscribe(topic, tags, sql=sql)
    with _counting(receiver):
        async with consumer:
            await receiver.wait(wait_s)
    code = _ended(receiver, count, wait_s)
    if not receiver.received:
        print(visible(await _why_nothing(client, topic, group, wait_s or 0)), file=sys.stderr)
    return code


@contextlib.contextmanager
def _counting(receiver: _Receiver) -> Iterator[None]:
    """Print the number of received messages when Ctrl-C cancels the command."""
    try:
        yield
    except asyncio.CancelledError:
        print(f"delaymq: {counted(receiver.received, 'message')} received", file=sys.stderr, flush=True)
        raise


def _ended(receiver: _Receiver, count: int | None, wait_s: float | None) -> int:
    if not receiver.has_reader:
        raise BrokenPipeError
    if count is not None and receiver.received < count:
        none = "" if wait_s is None else f"; no more within {wait_s:g} s"
        raise CommandError(f"received {receiver.received} of {counted(count, 'message')}{none}")
    return 0


async def _why_nothing(client: Client, topic: str, group: str, timeout_s: float) -> str:
    text = f"delaymq: no message received within {timeout_s:g} s"
    try:
        await client.route(topic, fresh=True)
    except NoRouteError:
        return f"{text}: topic {topic} does not exist yet; a broker creates it with the first message"
    return f"{text}: group {group} has consumed all messages of topic {topic}; --follow waits for more"


async def _for_ever() -> None:
    """Wait for ever: an unfinished message stays uncommitted, and the group's next consumer receives it."""
    await asyncio.Event().wait()


class _LimitReachedError(Exception):
    """Stops watching without a group, where nothing is committed."""


class _Receiver:
    """Handler that shows each message and stops after `count` messages."""

    def __init__(self, client: Client, as_json: bool, count: int | None, *, looks_back: bool = False) -> None:
        self.received = 0
        self.has_reader = True
        """Whether the output still has a reader."""
        self._client = client
        self._as_json = as_json
        self._count = count
        self._looks_back = looks_back
        self._console = console()
        self._last = time.monotonic()
        self._full = asyncio.Event()

    async def wait(self, timeout_s: float | None) -> None:
        """Return when `count` messages have arrived, or after `timeout_s` without a message."""
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
            await self._leave()
        # Messages stored before the command started are not late.
        arrived_ms = message.store_timestamp_ms if self._looks_back else now_ms()
        due_ms = await self._due_ms(message)
        try:
            if self._as_json:
                print_json(as_data(message, arrived_ms, due_ms))
            else:
                self._console.print(as_line(message, arrived_ms, due_ms), soft_wrap=True)
        except (BrokenPipeError, SystemExit):  # rich converts the former into the latter
            self.has_reader = False
            self._full.set()
            await self._leave()
        self._last = time.monotonic()
        self.received += 1
        if self._count is not None and self.received >= self._count:
            self._full.set()

    async def _leave(self) -> None:
        if self._looks_back:
            raise _LimitReachedError
        await _for_ever()

    async def _due_ms(self, message: ReceivedMessage) -> int | None:
        if message.due_ms is not None or message.delay_level == 0:
            return message.due_ms
        address = await self._client.address_of(message.queue)
        try:
            levels: DelayLevels = await self._client.delays.levels(address)
        except ClientError:
            return None
        return message.born_timestamp_ms + levels.delay_ms(message.delay_level)
