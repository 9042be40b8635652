"""Sends orders concurrently. An `ordering_key` keeps the steps of each order in sequence, even after a failure."""

import asyncio
import sys
import time

from delaymq.client import Client, ConsumeFrom, Message, Producer, PushConsumer, PushConsumerOptions, ReceivedMessage

STEPS = ("placed", "paid", "packed", "shipped")
ORDERS = ("order-1", "order-2", "order-3")


async def main(name_servers: str) -> None:
    run = time.time_ns()
    topic = f"Steps-{run}"
    seen: dict[str, list[str]] = {order: [] for order in ORDERS}
    all_shipped = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        order, step = message.body.decode().split()
        if order == "order-2" and step == "paid" and message.reconsume_times == 0:
            raise ConnectionError("the bank does not answer")  # later messages of the queue wait for the retry
        seen[order].append(step)
        print(order, step)
        if all(len(steps) == len(STEPS) for steps in seen.values()):
            all_shipped.set()

    async def place(producer: Producer, order: str) -> None:
        for step in STEPS:
            await producer.send(Message(topic=topic, body=f"{order} {step}".encode()), ordering_key=order)

    async with Client(name_servers) as client, Producer(client) as producer:
        await asyncio.gather(*(place(producer, order) for order in ORDERS))
        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, ordered=True)
        consumer = PushConsumer(client, f"steps-{run}", handle, options)
        consumer.subscribe(topic)
        async with consumer, asyncio.timeout(60):
            await all_shipped.wait()
    print("each in order:", all(tuple(steps) == STEPS for steps in seen.values()))


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
