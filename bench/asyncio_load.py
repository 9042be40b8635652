"""Load program equivalent to bench/java, with DelayMQ's asyncio client in place of RocketMQ's: the same commands in
the same format.

Input: `id command name=value …`; output: one JSON object per line. Threads there are tasks here. `--uvloop` uses
uvloop instead of asyncio's event loop.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from delaymq.client import (
    BatchPushConsumer,
    Client,
    ClientError,
    ClientOptions,
    ConsumeFrom,
    Message,
    Producer,
    ProducerOptions,
    PushConsumerOptions,
    ReceivedMessage,
)

AT_MOST_S = 120.0
SETTLE_S = 1.0
"""Time until queues are assigned and pulls are held."""
PAUSE_AFTER_FAILURE_S = 0.02
_STAMP = struct.Struct(">qqq")  # number of the run, send time in ns, number in the run

CONSUMER = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, batch=32)
"""The listener of the Java consumer receives the same number of messages at a time."""

Options = dict[str, str]
Result = dict[str, object]
_numbers = itertools.count(1)


class Load:
    """A client and a producer for each NameServer, kept until `forget`."""

    def __init__(self) -> None:
        self._clients: dict[str, tuple[Client, Producer]] = {}

    async def producer(self, options: Options) -> Producer:
        return (await self._client(options["namesrv"]))[1]

    async def _client(self, name_server: str) -> tuple[Client, Producer]:
        known = self._clients.get(name_server)
        if known is None:
            client = Client(name_server, ClientOptions(instance_name=f"load-{os.getpid()}-{next(_numbers)}"))
            producer = Producer(client, "load_producer", ProducerOptions(retries=0, new_topic_queues=8))
            known = self._clients[name_server] = client, producer
            await client.start()
            await producer.start()
        return known

    async def forget(self, options: Options) -> Result:
        known = self._clients.pop(options["namesrv"], None)
        if known is not None:
            await known[0].close()
        return {"forgotten": True}

    async def send(self, options: Options) -> Result:
        return await Sending(await self.producer(options), options).run()

    async def consume(self, options: Options) -> Result:
        """Read `count` messages with a new group, timed from the first to the last."""
        client, _ = await self._client(options["namesrv"])
        count = int(options["count"])
        received, first, last = 0, 0, 0
        done = asyncio.Event()

        async def handle(messages: Sequence[ReceivedMessage]) -> None:
            nonlocal received, first, last
            if not received:
                first = time.monotonic_ns()
            received += len(messages)
            if received >= count and not last:
                last = time.monotonic_ns()
                done.set()

        consumer = BatchPushConsumer(client, options["group"], handle, CONSUMER)
        consumer.subscribe(options["topic"])
        async with asyncio.timeout(AT_MOST_S), consumer:
            await done.wait()
        elapsed_s = max(last - first, 1) / 1e9
        return {"received": received, "elapsed_s": elapsed_s, "rate": count / elapsed_s}

    async def latency(self, options: Options) -> Result:
        """Send `count` messages at `rate` per second; measure the time until this process's handler receives each."""
        client, producer = await self._client(options["namesrv"])
        topic, count, rate = options["topic"], int(options["count"]), float(options["rate"])
        run, skipped, filler = time.monotonic_ns(), count // 10, bytes(76)
        durations_ns: list[int] = []
        received = 0
        done = asyncio.Event()

        async def handle(messages: Sequence[ReceivedMessage]) -> None:
            nonlocal received
            now = time.monotonic_ns()
            for message in messages:
                if len(message.body) < _STAMP.size:
                    continue
                of_run, sent, number = _STAMP.unpack_from(message.body)
                if of_run != run:
                    continue  # from an earlier run
                if number >= skipped:
                    durations_ns.append(now - sent)
                received += 1
            if received >= count:
                done.set()

        consumer = BatchPushConsumer(client, options["group"], handle, CONSUMER)
        consumer.subscribe(topic)
        async with asyncio.timeout(AT_MOST_S), consumer:
            await asyncio.sleep(SETTLE_S)
            start = time.monotonic_ns()
            for number in range(count):
                left_s = (start + number * 1e9 / rate - time.monotonic_ns()) / 1e9
                if left_s > 0:
                    await asyncio.sleep(left_s)
                body = _STAMP.pack(run, time.monotonic_ns(), number) + filler
                await producer.send(Message(topic=topic, body=body))
            await done.wait()
        return {"received": received} | percentiles(durations_ns)


class Sending:
    """Sends for `seconds`, or until `count` messages are acknowledged."""

    def __init__(self, producer: Producer, options: Options) -> None:
        self._producer = producer
        self._topic = options["topic"]
        self._body = os.urandom(int(options.get("size", "100")))
        mode = options.get("mode", "sync")
        self._batch = int(options.get("batch", "32")) if mode == "batch" else 1
        self._tasks = int(options.get("window" if mode == "async" else "threads", "1"))
        self._count = int(options["count"]) if "count" in options else None
        self._seconds = float(options.get("seconds", AT_MOST_S))
        self._begun = self.acknowledged = self.failed = 0
        self._errors: Counter[str] = Counter()
        self._durations_ns: list[int] = []

    async def run(self) -> Result:
        """Return the rate of acknowledged messages, failures, and latencies of single sends."""
        began = time.monotonic_ns()
        deadline = began + int(self._seconds * 1e9)
        await asyncio.gather(*(self._work(deadline) for _ in range(self._tasks)))
        elapsed_s = (time.monotonic_ns() - began) / 1e9
        return {
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "elapsed_s": elapsed_s,
            "rate": self.acknowledged / elapsed_s,
            "errors": dict(self._errors),
        } | percentiles(self._durations_ns)

    async def _work(self, deadline: int) -> None:
        while (before := time.monotonic_ns()) < deadline and (self._count is None or self._begun < self._count):
            self._begun += self._batch
            try:
                if self._batch > 1:
                    messages = [Message(topic=self._topic, body=self._body) for _ in range(self._batch)]
                    await self._producer.send_batch(messages)
                else:
                    await self._producer.send(Message(topic=self._topic, body=self._body))
            except ClientError as error:
                self._begun -= self._batch
                self.failed += self._batch
                self._errors[f"{type(error).__name__}: {error}" if len(self._errors) < 8 else "other"] += 1
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
                continue
            self.acknowledged += self._batch
            self._durations_ns.append(time.monotonic_ns() - before)


def percentiles(durations_ns: list[int]) -> Result:
    """Return p50 and p99 in microseconds; 0 without values."""
    ordered = sorted(durations_ns) or [0]
    return {f"p{part}_us": ordered[min(len(ordered) * part // 100, len(ordered) - 1)] / 1e3 for part in (50, 99)}


async def serve() -> None:
    """Execute commands until the input ends."""
    load = Load()
    commands: dict[str, Callable[[Options], Awaitable[Result]]] = {
        "send": load.send, "consume": load.consume, "latency": load.latency, "forget": load.forget,
    }  # fmt: skip
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        number, name, *words = line.decode().split()
        options = dict(word.split("=", 1) for word in words)
        task = asyncio.create_task(answer(number, commands[name](options)))
        running.add(task)
        task.add_done_callback(running.discard)


async def answer(number: str, work: Awaitable[Result]) -> None:
    """Run a command and write its response."""
    reply: dict[str, object]
    try:
        reply = {"id": number, "ok": True, "result": await work}
    except Exception as error:
        reply = {"id": number, "ok": False, "error": f"{type(error).__name__}: {error}"}
    gc.collect()
    print(json.dumps(reply), flush=True)


def main(words: list[str]) -> None:
    """Run on asyncio's event loop, or on uvloop."""
    factory = None
    if "--uvloop" in words:
        import uvloop

        factory = uvloop.new_event_loop
    with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main(sys.argv[1:])
