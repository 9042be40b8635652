"""`delaymq send`: send messages immediately or delayed, from arguments or line by line from a file."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer
from msgspec.structs import replace

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, NameServers
from delaymq.cli.target.connection import exit_code_of, explain, with_client
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, counted, print_json, progress
from delaymq.cli.terminal.stdin import in_thread, standard_input
from delaymq.cli.terminal.times import format_time, parse_due_time
from delaymq.client import Client, ClientError, Message, NoSuchDelayError, Producer, SendResult
from delaymq.client.due_times import delay_in_ms
from delaymq.client.messages import schedule_for
from delaymq.message.errors import IllegalMessageError
from delaymq.message.levels import MAX_LEVELS

MAX_COUNT: Final = 1_000_000
MAX_INPUT_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a body from standard input or of a line: the broker's default message size limit."""
MAX_AT_ONCE: Final = 1_000
MAX_RATE: Final = 1_000_000


class SameKey(StrEnum):
    """Treatments of a message whose delay key is that of a pending one."""

    REPLACE = "replace"
    KEEP = "keep"
    REFUSE = "refuse"


class Missed(StrEnum):
    """Treatments of missed runs of a repeating message."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


DelayOption = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Delivery delay, such as 1500ms, 5s, 1.5h or 7d, by the broker's clock."),
]
DueOption = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Due time with an offset from UTC, such as 2027-01-31T12:00+01:00."),
]
LevelOption = Annotated[
    int | None, typer.Option(min=1, max=MAX_LEVELS, help="Delay level of the broker's table, counted from 1.")
]
DelayKeyOption = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Name of the pending message, unique in its topic, by which it can be changed."),
]
SameKeyOption = Annotated[SameKey, typer.Option(help="Treatment if a message with this --delay-key is pending.")]
DelayGroupOption = Annotated[
    str | None,
    typer.Option(metavar="GROUP", help="Group of the message, by which its pending messages can be changed together."),
]
ExpireOption = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Drop the message if it would be later than this.")
]
CronOption = Annotated[
    str | None,
    typer.Option("--cron", metavar="EXPRESSION", help="Repeat at these times, such as '0 9 * * 1-5'."),
]
ZoneOption = Annotated[
    str | None,
    typer.Option("--zone", metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin (default: UTC)."),
]
EveryOption = Annotated[
    str | None, typer.Option("--every", metavar="DURATION", help="Repeat at this interval, such as 15m; at least 1s.")
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Do not repeat after this time, with an offset from UTC.")
]
RunsOption = Annotated[int | None, typer.Option("--runs", min=1, max=10**15 - 1, help="Repeat this number of times.")]
MissedOption = Annotated[
    Missed | None, typer.Option("--missed", help="Treatment of runs that a downtime missed (default: latest).")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Only print the number of sent messages at the end.")]


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic; brokers create it with the first message.")],
    bodies: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BODY]...", help="Message bodies, one message each; - reads one from stdin."),
    ] = None,
    lines: Annotated[
        str | None, typer.Option(metavar="FILE", help="Send each non-empty line of a file, or of stdin (-).")
    ] = None,
    delay: DelayOption = None,
    at: DueOption = None,
    delay_level: LevelOption = None,
    delay_key: DelayKeyOption = None,
    on_same_key: SameKeyOption = SameKey.REPLACE,
    delay_group: DelayGroupOption = None,
    expire: ExpireOption = None,
    cron: CronOption = None,
    zone: ZoneOption = None,
    every: EveryOption = None,
    until: UntilOption = None,
    runs: RunsOption = None,
    missed: MissedOption = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="A key to find the message by; repeatable.")
    ] = None,
    keys: Annotated[str, typer.Option(help="Several keys, separated by spaces.")] = "",
    tags: Annotated[str, typer.Option(help="A tag that consumers can filter by.")] = "",
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; repeatable.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Number of times to send each message.")] = 1,
    rate: Annotated[float | None, typer.Option(min=0.001, max=MAX_RATE, help="Maximum messages per second.")] = None,
    at_once: Annotated[
        int,
        typer.Option(min=1, max=MAX_AT_ONCE, help="Maximum concurrent sends; above 1, the order is not guaranteed."),
    ] = 1,
    quiet: QuietOption = False,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Send messages, immediately, delayed or repeatedly.

    --delay, --at, --delay-level, --cron and --every exclude each other and apply to every message. A broker without
    timed messages accepts only delays that are equal to one of its levels, and no due times. Examples: delaymq send
    Orders "hello later" --delay 5s --key 4711; delaymq send Orders "happy new year" --at 2027-01-01T00:00+01:00;
    delaymq send Reports "daily" --cron "0 9 * * 1-5" --zone Europe/Berlin; delaymq send Orders --lines orders.jsonl
    --rate 100; seq 1000 | delaymq send Orders --lines - --at-once 32 -q
    """
    if bool(bodies) == (lines is not None):
        raise CommandError("give either message texts or --lines FILE", EXIT_USAGE)
    where = target(namesrv, context=context)
    message = Message(
        topic=topic, body=b"", tags=tags, keys=(*(key or ()), *keys.split()), properties=_properties(properties or []),
        delay=_checked_delay(delay, at, delay_level, cron, every), at=None if at is None else parse_due_time(at),
        delay_level=delay_level or 0,
    )  # fmt: skip
    total = None if lines is not None else len(bodies or ()) * count
    texts = _lines(lines) if lines is not None else map(_body, bodies or ())
    messages = chain.from_iterable(repeat(replace(message, body=text), count) for text in texts)
    repeated = _repeated(cron, zone, every, until, runs, missed)
    show = _nothing if quiet else (_show_json(delay) if as_json else _show_line(message, repeats=bool(repeated)))
    managed = _managed(delay_key, on_same_key, delay_group, expire) | repeated
    sending = _Sending(show, at_once, rate, managed)
    bar = progress("messages", total) if quiet else nullcontext(lambda: None)

    async def work(client: Client) -> int:
        return await _send_all(client, sending, messages, bar, quiet=quiet, as_json=as_json, namesrv=where.namesrv)

    raise typer.Exit(with_client(where, work))


async def _send_all(
    client: Client,
    sending: _Sending,
    messages: Iterator[Message],
    bar: AbstractContextManager[Callable[[], None]],
    *,
    quiet: bool,
    as_json: bool,
    namesrv: str,
) -> int:
    """Send all messages and return the exit code. CommandError also states how many were sent."""
    began = time.monotonic()
    try:
        with bar as step:
            async with Producer(client, "delaymq-send") as producer:
                await sending.all(producer, in_thread(messages), step)
    except (ClientError, IllegalMessageError, ValueError) as error:
        if not sending.sent:
            raise
        text = f"{explain(error, namesrv)} (sent before the error: {counted(sending.sent, 'message')})"
        raise CommandError(text, exit_code_of(error)) from error
    if quiet:
        _report(sending.sent, time.monotonic() - began, as_json)
    return 0


class _Sending:
    """Sends concurrently up to a limit and a rate, and shows results in the order of sending."""

    def __init__(
        self, show: Callable[[SendResult], None], at_once: int, rate: float | None, managed: dict[str, Any]
    ) -> None:
        """`managed` are arguments of `Producer.schedule`; without any, messages need no due time."""
        self.sent = 0
        self._managed = managed
        self._show = show
        self._at_once = at_once
        self._rate = rate

    async def all(self, producer: Producer, messages: AsyncIterator[Message], step: Callable[[], None]) -> None:
        """Send all messages; stop at the first failure, after the results of earlier sends have been shown."""
        under_way: deque[asyncio.Task[SendResult]] = deque()
        began = time.monotonic()
        try:
            number = 0
            async for message in messages:
                if self._rate is not None:
                    await asyncio.sleep(max(began + number / self._rate - time.monotonic(), 0))
                number += 1
                under_way.append(asyncio.create_task(self._send(producer, message)))
                # Before the next line is read, so that slow input shows each result immediately.
                while under_way and (len(under_way) >= self._at_once or under_way[0].done()):
                    self._done(await under_way.popleft(), step)
            while under_way:
                self._done(await under_way.popleft(), step)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _send(self, producer: Producer, message: Message) -> SendResult:
        if not self._managed:
            return await producer.send(message)
        return (await producer.schedule(message, **self._managed)).result

    def _done(self, result: SendResult, step: Callable[[], None]) -> None:
        self.sent += 1
        self._show(result)
        step()


def _nothing(_: SendResult) -> None:
    """Show nothing."""


def _show_json(delay: str | None) -> Callable[[SendResult], None]:
    def show(result: SendResult) -> None:
        print_json(
            {
                "messageId": result.message_id,
                "offsetMessageId": result.offset_message_id,
                "status": result.status.name,
                "broker": result.queue.broker_name,
                "queueId": result.queue.queue_id,
                "queueOffset": result.queue_offset,
                "delay": delay,
                "dueMs": result.due_ms,
                "recallHandle": result.recall_handle,
                "kept": result.is_kept,
            }
        )

    return show


def _show_line(message: Message, *, repeats: bool) -> Callable[[SendResult], None]:
    out = console()

    def show(result: SendResult) -> None:
        place = f"{result.queue.broker_name}, queue {result.queue.queue_id}"
        status = "" if result.status == 0 else f" ({result.status.name})"
        verb = "kept" if result.is_kept else "sent"
        when = _when(message, result, repeats=repeats)
        line = f"{verb} {result.message_id} to {message.topic} ({place}, {when}){status}"
        out.print(line, soft_wrap=True)

    return show


def _when(message: Message, result: SendResult, *, repeats: bool) -> str:
    """Return when a sent message is due, or its offset if it was not delayed."""
    if result.recall_handle is not None:
        after = "due" if message.delay is None else f"due in {message.delay} at"
        after = "first run at" if repeats and not result.is_kept else after
        return f"{after} {format_time(result.due_ms) or 'an unknown time'}, recall handle {result.recall_handle}"
    schedule = schedule_for(message)
    if schedule is not None and schedule.delay_ms is not None:
        return f"due in {message.delay}"
    if message.delay_level:
        return f"delay level {message.delay_level}"
    return f"{'due immediately, ' if message.at else ''}offset {result.queue_offset}"


def _report(sent: int, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json({"sent": sent, "seconds": round(seconds, 3)})
    else:
        console().print(f"{counted(sent, 'message')} sent in {seconds:.1f} s")


def _checked_delay(
    delay: str | None, at: str | None, delay_level: int | None, cron: str | None, every: str | None
) -> str | None:
    """Return `delay`; CommandError if it is invalid, or more than one of the options is given."""
    options = {"--delay": delay, "--at": at, "--delay-level": delay_level, "--cron": cron, "--every": every}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise CommandError(f"{' and '.join(given)} exclude each other: give one of them", EXIT_USAGE)
    try:
        if delay is not None:
            delay_in_ms(delay)
    except NoSuchDelayError as error:
        raise CommandError(f"--delay: {error}", EXIT_USAGE) from error
    return delay


def _repeated(
    cron: str | None, zone: str | None, every: str | None, until: str | None, runs: int | None, missed: Missed | None
) -> dict[str, Any]:
    """Return the arguments of `Producer.schedule` for a repeating message; CommandError if one is invalid."""
    options = {"--zone": zone, "--until": until, "--runs": runs, "--missed": missed}
    given = [name for name, value in options.items() if value is not None]
    if cron is None and every is None:
        if given:
            raise CommandError(f"{given[0]} needs --cron or --every", EXIT_USAGE)
        return {}
    if zone is not None and cron is None:
        raise CommandError("--zone needs --cron: an interval has no time zone", EXIT_USAGE)
    try:
        if every is not None:
            delay_in_ms(every)
    except NoSuchDelayError as error:
        raise CommandError(f"--every: {error}", EXIT_USAGE) from error
    return {
        "cron": cron,
        "zone": zone,
        "every": every,
        "until": None if until is None else parse_due_time(until),
        "runs": runs,
        "missed": None if missed is None else missed.value,
    }


def _managed(
    delay_key: str | None, on_same_key: SameKey, delay_group: str | None, expire: str | None
) -> dict[str, Any]:
    """Return the arguments of `Producer.schedule`; CommandError if one is invalid."""
    if on_same_key is not SameKey.REPLACE and delay_key is None:
        raise CommandError("--on-same-key needs --delay-key", EXIT_USAGE)
    try:
        if expire is not None:
            delay_in_ms(expire)
    except NoSuchDelayError as error:
        raise CommandError(f"--expire: {error}", EXIT_USAGE) from error
    managed: dict[str, Any] = {} if expire is None else {"expire_after": expire}
    if delay_group is not None:
        managed["group"] = delay_group
    return managed if delay_key is None else {**managed, "key": delay_key, "on_same_key": on_same_key.value}


def _properties(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise CommandError(f"--property {word}: use NAME=VALUE", EXIT_USAGE)
        found[name] = value
    return found


def _body(text: str) -> bytes:
    if text != "-":
        return text.encode(errors="surrogateescape")
    data = standard_input().read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        text = f"standard input exceeds {MAX_INPUT_BYTES} bytes, the maximum size of a message: send less"
        raise CommandError(text, EXIT_USAGE)
    return data


def _lines(name: str) -> Iterator[bytes]:
    """Yield the lines of a file without their line ends, read as they are sent."""
    if name == "-":
        yield from _lines_of(standard_input(), "standard input")
        return
    try:
        with Path(name).open("rb") as file:
            yield from _lines_of(file, name)
    except OSError as error:
        raise CommandError(f"--lines {name}: cannot read the file: {error.strerror}", EXIT_USAGE) from error


def _lines_of(file: BinaryIO, name: str) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_INPUT_BYTES + 2):
        number += 1
        text = line.rstrip(b"\r\n")
        if len(text) > MAX_INPUT_BYTES:
            problem = f"exceeds {MAX_INPUT_BYTES} bytes, the maximum size of a message: shorten it"
            raise CommandError(f"{name}, line {number} {problem}", EXIT_USAGE)
        if text:
            yield text
