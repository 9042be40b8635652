"""Sends a reminder that is due in five seconds, and receives it."""

import asyncio
import sys
import time

from delaymq.client import Client, Message, Producer, PushConsumer, ReceivedMessage


async def main(name_servers: str) -> None:
    arrived = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        if message.message_id != sent.message_id:
            return  # sent by an earlier run: a new group starts at the beginning of a young topic
        waited_s = time.time() - message.born_timestamp_ms / 1000
        print(f"{message.body.decode()!r} arrived after {waited_s:.3f} s")
        arrived.set()

    async with Client(name_servers) as client, Producer(client) as producer:
        # The first send creates the topic.
        sent = await producer.send(Message(topic="Reminders", body=b"water the plants"), delay="5s")
        print("sent, due in 5 s")
        consumer = PushConsumer(client, f"reminder-{time.time_ns()}", handle)
        consumer.subscribe("Reminders")
        async with consumer, asyncio.timeout(30):
            await arrived.wait()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
