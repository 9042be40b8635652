"""Pulls a topic queue by queue and commits after each page, for jobs that control the pace of consumption."""

import asyncio
import sys

from delaymq.client import Admin, Client, Message, Producer, PullConsumer, PullStatus

TOPIC = "ByHand"


async def main(name_servers: str) -> None:
    async with Client(name_servers) as client, Producer(client) as producer:
        await Admin(client).create_topic(TOPIC, queues=2)
        await producer.send_batch([Message(topic=TOPIC, body=b"message %d" % number) for number in range(5)])
        async with PullConsumer(client, "by-hand") as consumer:
            for queue in await consumer.queues(TOPIC):
                offset = await consumer.calls.committed_offset(queue) or 0
                while (page := await consumer.pull(queue, offset)).status is not PullStatus.NOTHING_NEW:
                    for message in page.messages:
                        print(f"queue {queue.queue_id}, offset {message.queue_offset}: {message.body.decode()}")
                    offset = page.next_offset
                    await consumer.calls.commit(queue, offset)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
