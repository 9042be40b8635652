"""Stores rows in batches. If a row cannot be stored, it is redelivered together with the later rows of its batch."""

import asyncio
import sys
import time

from delaymq.client import (
    BatchPushConsumer,
    Client,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumerOptions,
    ReceivedMessage,
)

ROWS = 20


async def main(name_servers: str) -> None:
    run = time.time_ns()
    topic = f"Rows-{run}"
    table: set[str] = set()
    complete = asyncio.Event()

    async def store(messages: list[ReceivedMessage]) -> int:
        stored = 0
        for message in messages:
            if message.body == b"row 7" and message.reconsume_times == 0:
                break  # the rows before this one are acknowledged; this row and those after it are redelivered
            table.add(message.body.decode())
            stored += 1
        print(f"{stored} of {len(messages)} rows stored")
        if len(table) == ROWS:
            complete.set()
        return stored

    options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, batch=8, retry_delay_level=1)
    async with Client(name_servers) as client, Producer(client) as producer:
        await producer.send_batch([Message(topic=topic, body=b"row %d" % number) for number in range(ROWS)])
        consumer = BatchPushConsumer(client, f"rows-{run}", store, options)
        consumer.subscribe(topic)
        async with consumer, asyncio.timeout(60):
            await complete.wait()
    print(f"{len(table)} rows in the table")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
