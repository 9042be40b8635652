"""Polls a topic, commits after processing the messages, then seeks to the beginning and polls them again."""

import asyncio
import sys
import time

from delaymq.client import Client, ConsumeFrom, LitePullConsumer, LitePullOptions, Message, Producer

READINGS = 10


async def main(name_servers: str) -> None:
    run = time.time_ns()
    topic = f"Readings-{run}"
    async with Client(name_servers) as client, Producer(client) as producer:
        await producer.send_batch([Message(topic=topic, body=b"%d" % number) for number in range(READINGS)])
        options = LitePullOptions(consume_from=ConsumeFrom.FIRST, auto_commit=False)
        consumer = LitePullConsumer(client, f"readings-{run}", options)
        consumer.subscribe(topic)
        async with consumer, asyncio.timeout(60):
            print("sum of all readings:", await sum_of(consumer))
            await consumer.commit()
            for queue in consumer.assigned:
                await consumer.seek_to_begin(queue)
            print("the same again:", await sum_of(consumer))


async def sum_of(consumer: LitePullConsumer) -> int:
    """Return the sum of the next READINGS messages."""
    readings: list[int] = []
    while len(readings) < READINGS:
        readings += [int(message.body) for message in await consumer.poll(timeout_ms=1000)]
    return sum(readings)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
