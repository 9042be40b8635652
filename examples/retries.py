"""A handler that fails: the message is retried after a delay level, and becomes a dead letter after the last retry."""

import asyncio
import sys
import time

from delaymq.client import (
    Admin,
    Client,
    ConsumeFrom,
    Message,
    NoRouteError,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.message.names import dead_letter_topic

MAX_RETRIES = 2


async def main(name_servers: str) -> None:
    run = time.time_ns()
    topic, group = f"Payments-{run}", f"payments-{run}"
    gave_up = asyncio.Event()

    async def fail(message: ReceivedMessage) -> Outcome:
        print(f"attempt {message.reconsume_times + 1} of {MAX_RETRIES + 1}: the bank does not answer")
        if message.reconsume_times == MAX_RETRIES:
            gave_up.set()
        return Outcome.RETRY

    options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, max_reconsume_times=MAX_RETRIES, retry_delay_level=1)
    async with Client(name_servers) as client, Producer(client) as producer:
        await Admin(client).create_topic(topic, queues=1)
        await producer.send(Message(topic=topic, body=b"pay 5 EUR"))
        consumer = PushConsumer(client, group, fail, options)
        consumer.subscribe(topic)
        async with consumer, asyncio.timeout(60):
            await gave_up.wait()
            print(f"dead letter: {(await first_of(client, dead_letter_topic(group))).body.decode()!r}")
        await Admin(client).delete_topic(topic)


async def first_of(client: Client, topic: str) -> ReceivedMessage:
    """Wait for the first message of a topic that may not exist yet, and return it."""
    async with PullConsumer(client, "dead-letters") as consumer:
        while True:
            try:
                for queue in await consumer.queues(topic):
                    if found := (await consumer.pull(queue, 0)).messages:
                        return found[0]
            except NoRouteError:
                pass  # the broker creates the topic with the first dead letter
            await asyncio.sleep(0.1)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
