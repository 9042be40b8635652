"""Content of the console's tests and screenshots, created with the client, as programs would."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from delaymq.client import (
    Client,
    ClientOptions,
    ConsumeFrom,
    Message,
    Outcome,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
    SendResult,
)
from delaymq.client.core.delays import level_for
from delaymq.client.due_times import delay_in_ms
from msgspec.structs import replace

LIMIT_S = 60.0
POLL_S = 0.02
FROM_FIRST = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=200)
NO_SECOND_TRY = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, max_reconsume_times=0, commit_interval_ms=200)
T = TypeVar("T")


def run(namesrv_address: str, scenario: Callable[[Client], Awaitable[T]], options: ClientOptions | None = None) -> T:
    """Run `scenario` with a client, within a time limit, in its own thread: playwright uses this thread's loop."""
    results: list[T] = []
    failures: list[BaseException] = []

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S), Client(namesrv_address, options) as client:
            results.append(await scenario(client))

    def work() -> None:
        try:
            asyncio.run(bounded())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


async def send(client: Client, *messages: Message, delay: str | None = None) -> list[SendResult]:
    """Send messages one at a time, to fix their order; a delay must be one of the broker's levels."""
    async with Producer(client, "shop-front") as producer:
        level = 0 if delay is None else await _level_of(client, messages[0].topic, delay)
        return [await producer.send(replace(message, delay_level=level)) for message in messages]


async def _level_of(client: Client, topic: str, delay: str) -> int:
    """Return the level of a delay. A delay of the send would become a timed message, which has no level."""
    route = await client.route_to_send(topic, 1)
    [broker_name] = {queue.broker_name for queue in route.writable}
    address = route.master(broker_name)
    assert address is not None
    return level_for(delay_in_ms(delay), await client.delays.levels(address), broker_name)


async def consume(client: Client, group: str, topic: str, count: int) -> list[ReceivedMessage]:
    """Consume `count` messages and commit them."""
    taken: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        taken.append(message)

    consumer = PushConsumer(client, group, handle, FROM_FIRST)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(taken) >= count)
    return taken


async def kill_letters(client: Client, group: str, topic: str, keys: set[str]) -> None:
    """Consume a topic with a group that always fails for messages with these keys."""
    failed: set[str] = set()

    async def handle(message: ReceivedMessage) -> Outcome:
        bad = keys & set(message.keys)
        failed.update(bad)
        return Outcome.RETRY if bad else Outcome.DONE

    consumer = PushConsumer(client, group, handle, NO_SECOND_TRY)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: failed == keys)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait, within the time limit of `run`."""
    while not is_so():  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(POLL_S)


class Member:
    """A consumer in its own thread, connected while the `with` block runs."""

    def __init__(self, namesrv_address: str, group: str, topic: str, *, pause_s: float = 0.0) -> None:
        self.client_id = ""
        self._pause_s = pause_s
        """Processing time of each message."""
        self._address, self._group, self._topic = namesrv_address, group, topic
        self._started = threading.Event()
        self._ending = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> "Member":
        self._thread.start()
        self._started.wait(LIMIT_S)
        if self._failures:
            raise self._failures[0]
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(LIMIT_S)

    def _work(self) -> None:
        try:
            asyncio.run(self._stay())
        except BaseException as error:
            self._failures.append(error)
        finally:
            self._started.set()

    async def _stay(self) -> None:
        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(self._pause_s)

        async with Client(self._address) as client:
            consumer = PushConsumer(client, self._group, handle, FROM_FIRST)
            consumer.subscribe(self._topic)
            async with consumer:
                self.client_id = client.client_id
                self._started.set()
                await until(self._ending.is_set)
