"""Cancels orders that are not paid in time: one delayed check for each order replaces scans of a table of orders."""

import asyncio
import sys
import time

from delaymq.client import Client, Message, Producer, PushConsumer, ReceivedMessage

TOPIC = "PaymentChecks"
PAYMENT_LIMIT = "5s"


async def main(name_servers: str) -> None:
    run = time.time_ns()
    unpaid = {f"order-{run}-{number}" for number in range(1, 4)}
    orders = sorted(unpaid)
    checked: list[str] = []
    all_checked = asyncio.Event()

    async def check(message: ReceivedMessage) -> None:
        order = message.body.decode()
        if order not in orders:
            return  # sent by an earlier run
        print(f"{order}: {'not paid in time, cancelled' if order in unpaid else 'was paid'}")
        checked.append(order)
        if len(checked) == len(orders):
            all_checked.set()

    async with Client(name_servers) as client, Producer(client) as producer:
        for order in orders:
            await producer.send(Message(topic=TOPIC, body=order.encode(), keys=(order,)), delay=PAYMENT_LIMIT)
            print(f"{order}: placed, to be paid within {PAYMENT_LIMIT}")
        consumer = PushConsumer(client, f"cancel-unpaid-{run}", check)
        consumer.subscribe(TOPIC)
        async with consumer, asyncio.timeout(30):
            await asyncio.sleep(1)
            unpaid.discard(orders[1])
            print(f"{orders[1]}: paid")
            await all_checked.wait()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
