"""Starts clients one at a time, each with a connection of its own and one send, and prints failed sends.

They resemble the processes of an application that restart while a group changes its master.
"""

import argparse
import asyncio
from collections.abc import Iterator

from delaymq.client import Client, ClientError, Message, Producer, ProducerOptions
from delaymq.clock import now_ms
from lines import client_options, ended_event, parser, say


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--topic", required=True)
    made.add_argument("--count", type=int, required=True)
    made.add_argument("--parallel", type=int, default=10)
    made.add_argument("--timeout-ms", type=int, default=15_000)
    return made.parse_args()


async def run(options: argparse.Namespace) -> None:
    ended = ended_event(options)
    counts = {"acknowledged": 0, "failed": 0}
    numbers = iter(range(options.count))
    say("ready")
    async with asyncio.TaskGroup() as group:
        for _ in range(options.parallel):
            group.create_task(_work(numbers, options, ended, counts))
    say("end", counts)


async def _work(
    numbers: Iterator[int], options: argparse.Namespace, ended: asyncio.Event, counts: dict[str, int]
) -> None:
    for number in numbers:
        if ended.is_set():
            return
        began_ms = now_ms()
        try:
            async with (
                Client(options.name_servers, client_options(options)) as client,
                Producer(client, "connects", ProducerOptions(send_timeout_ms=options.timeout_ms)) as producer,
            ):
                await producer.send(Message(topic=options.topic, body=b"hello", keys=(f"connect-{number}",)))
        except ClientError as error:
            counts["failed"] += 1
            say("failed", f"connect-{number}", 0, began_ms, now_ms(), str(error))
        else:
            counts["acknowledged"] += 1


def main() -> None:
    asyncio.run(run(arguments()))


if __name__ == "__main__":
    main()
