"""Sends delayed messages at a constant rate and prints the outcome of each.

Every message has a unique key, RUN-0 to RUN-n, in KEYS and as its body, so that it is recognised in the broker's log
and by consumers even if its send failed. `--retries 0`: each message is sent only once.
"""

import argparse
import asyncio
import itertools
import sys
import time
from datetime import UTC, datetime, timedelta

from delaymq.client import Client, ClientError, Message, Producer, ProducerOptions, SendStatus
from delaymq.clock import now_ms
from lines import client_options, ended_event, integers, parser, say

MAX_IN_FLIGHT = 500
"""Maximum number of pending sends."""
FIRST_ROUTE_S = 30.0
"""Time until a new topic's route is known everywhere."""
FIRST_ROUTE_EVERY_S = 0.2


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--topic", required=True)
    made.add_argument("--run", required=True, help="first part of the messages' keys")
    made.add_argument("--count", type=int, default=0, help="0: until --at-most-s or SIGTERM")
    made.add_argument("--rate", type=float, default=200.0, help="messages a second")
    made.add_argument("--levels", type=integers, default=[0], help="delay levels, taken in turn; 0: not delayed")
    made.add_argument("--delay", help="delay of each message, such as 30d, instead of a level")
    made.add_argument("--together-after-s", type=float, help="the same due time for all, in seconds from the start")
    made.add_argument("--show", choices=("all", "failures"), default="all", help="sends to print")
    made.add_argument("--retries", type=int, default=2)
    # RocketMQ's default of 3 s is shorter than occasional stalls of a shared machine.
    made.add_argument("--timeout-ms", type=int, default=15_000)
    made.add_argument("--body-bytes", type=int, default=0, help="pad the body to this size")
    made.add_argument("--route-interval-ms", type=int, default=30_000)
    return made.parse_args()


async def run(options: argparse.Namespace) -> None:
    producer_options = ProducerOptions(send_timeout_ms=options.timeout_ms, retries=options.retries)
    ended = ended_event(options)
    async with (
        Client(options.name_servers, client_options(options, route_interval_ms=options.route_interval_ms)) as client,
        Producer(client, "e2e-producer", producer_options) as producer,
    ):
        await _route(producer, options.topic)
        say("ready")
        counts = await _send_all(producer, options, ended)
    say("end", counts)


async def _send_all(producer: Producer, options: argparse.Namespace, ended: asyncio.Event) -> dict[str, int]:
    counts = {"acknowledged": 0, "failed": 0}
    tasks: set[asyncio.Task[None]] = set()
    started = time.monotonic()
    after_s = options.together_after_s
    at = None if after_s is None else datetime.now(UTC) + timedelta(seconds=after_s)
    for number in itertools.count():
        due = started + number / options.rate
        if (options.count and number >= options.count) or due > started + options.at_most_s:
            break
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        if ended.is_set():
            break
        if len(tasks) >= MAX_IN_FLIGHT:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        key, level = f"{options.run}-{number}", options.levels[number % len(options.levels)]
        message = Message(
            topic=options.topic, body=key.encode().ljust(options.body_bytes), keys=(key,), delay_level=level,
            delay=options.delay, at=at,
        )  # fmt: skip
        task = asyncio.create_task(_send(producer, message, options, counts))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks, timeout=options.timeout_ms / 1000 + 5)
    return counts


async def _send(producer: Producer, message: Message, options: argparse.Namespace, counts: dict[str, int]) -> None:
    key, level = message.keys[0], message.delay_level
    began_ms = now_ms()
    try:
        result = await producer.send(message)
    except ClientError as error:
        counts["failed"] += 1
        say("failed", key, level, began_ms, now_ms(), str(error))
        return
    if result.status is not SendStatus.OK:
        counts["failed"] += 1
        say("failed", key, level, began_ms, now_ms(), result.status.name)
        return
    counts["acknowledged"] += 1
    if options.show == "all":
        say("sent", key, level, began_ms, now_ms(), result.offset_message_id, result.queue.broker_name)


async def _route(producer: Producer, topic: str) -> None:
    """Wait for the topic's route; raise the last error after the timeout."""
    deadline = time.monotonic() + FIRST_ROUTE_S
    while True:
        try:
            await producer.queues(topic)
            return
        except ClientError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(FIRST_ROUTE_EVERY_S)


def main() -> None:
    try:
        asyncio.run(run(arguments()))
    except ClientError as error:
        sys.exit(f"produce: {error}")


if __name__ == "__main__":
    main()
