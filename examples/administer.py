"""Creates a topic and a group, resets the group to the beginning of the topic, and deletes both."""

import asyncio
import sys
import time

from delaymq.client import EARLIEST, Admin, Client, GroupConfig, Message, Producer


async def main(name_servers: str) -> None:
    run = time.time_ns()
    topic, group = f"Invoices-{run}", f"accounting-{run}"
    async with Client(name_servers) as client, Producer(client) as producer:
        admin = Admin(client)
        await admin.create_topic(topic, queues=1)
        await admin.put_group(GroupConfig(group=group))
        await producer.send_batch([Message(topic=topic, body=b"%d EUR" % number) for number in range(5)])
        for queue in await admin.topic_stats(topic):
            await admin.set_offset(group, queue, 5)
        outcome = await admin.reset_offset(group, topic, EARLIEST)
        for queue, offsets in outcome.queues.items():
            print(f"queue {queue.queue_id}: continues at {offsets.new} instead of {offsets.old}")
        await admin.delete_group(group)
        await admin.delete_topic(topic)
        print("still there:", await admin.topic_exists(topic))


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
