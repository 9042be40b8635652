"""A group member that prints each message as it arrives; a new group reads from the beginning.

It ends when `--count` different messages have arrived and no more for `--quiet-s`, after `--at-most-s`, or on SIGTERM.
"""

import argparse
import asyncio
import sys
import time

from delaymq.client import (
    Client,
    ClientError,
    ConsumeFrom,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.clock import now_ms
from lines import client_options, ended_event, parser, say

LOOK_EVERY_S = 0.05


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--topic", required=True)
    made.add_argument("--group", required=True)
    made.add_argument("--count", type=int, default=0, help="0: only --at-most-s or SIGTERM end it")
    made.add_argument("--quiet-s", type=float, default=1.0)
    return made.parse_args()


async def run(options: argparse.Namespace) -> None:
    ended = ended_event(options)
    seen: set[str] = set()
    arrivals = 0
    last = time.monotonic()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal arrivals, last
        arrivals += 1
        last = time.monotonic()
        key = " ".join(message.keys)
        seen.add(key)
        say(
            "got", key, message.queue.broker_name, message.queue.queue_id, message.queue_offset, message.due_ms,
            message.store_timestamp_ms, now_ms(), message.delay_level,
        )  # fmt: skip

    consumer_options = PushConsumerOptions(
        consume_from=ConsumeFrom.FIRST, rebalance_interval_ms=2_000, commit_interval_ms=1_000
    )
    deadline = time.monotonic() + options.at_most_s
    # Short interval, since tests create topics and groups while this runs.
    async with Client(options.name_servers, client_options(options, route_interval_ms=2_000)) as client:
        consumer = PushConsumer(client, options.group, handle, consumer_options)
        consumer.subscribe(options.topic)
        async with consumer:
            say("ready")
            while not ended.is_set() and time.monotonic() < deadline:
                quiet_s = time.monotonic() - last
                if options.count and len(seen) >= options.count and quiet_s >= options.quiet_s:
                    break
                await asyncio.sleep(LOOK_EVERY_S)
    say("end", {"arrivals": arrivals, "messages": len(seen)})


def main() -> None:
    try:
        asyncio.run(run(arguments()))
    except ClientError as error:
        sys.exit(f"consume: {error}")


if __name__ == "__main__":
    main()
