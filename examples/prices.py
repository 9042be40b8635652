"""Request and reply: a producer sends requests, and a consumer sends a reply to each of them."""

import asyncio
import sys

from delaymq.client import Client, ConsumeFrom, Message, Producer, PushConsumer, PushConsumerOptions, ReceivedMessage

TOPIC = "PriceQuestions"
PRICES = {b"tea": b"3 EUR", b"cake": b"5 EUR"}
WAIT_MS = 30_000


async def main(namesrv: str) -> None:
    async with Client(namesrv) as client, Producer(client, "price-askers") as producer:

        async def handle(message: ReceivedMessage) -> None:
            await producer.reply(message, PRICES.get(message.body, b"not sold here"))

        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST)
        consumer = PushConsumer(client, "price-repliers", handle, options)
        consumer.subscribe(TOPIC)
        async with consumer:
            # Requests may be sent concurrently: each receives its own reply.
            questions = [Message(topic=TOPIC, body=body) for body in (b"tea", b"cake", b"coal")]
            replies = await asyncio.gather(*(producer.request(question, WAIT_MS) for question in questions))
            for question, reply in zip(questions, replies, strict=True):
                print(f"{question.body.decode()}: {reply.body.decode()}")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
