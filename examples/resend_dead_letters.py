"""Resends messages that became dead letters during an outage to their group, through the broker's HTTP API.

Set DELAYMQ_HTTP to the broker's HTTP address, and DELAYMQ_HTTP_TOKEN to its token if it requires one.
"""

import asyncio
import os
import sys
import time
from typing import Any

import aiohttp
from delaymq.client import (
    Admin,
    Client,
    ConsumeFrom,
    Message,
    NoRouteError,
    Outcome,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.message.names import dead_letter_topic

PAYMENTS = 3
OPTIONS = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, max_reconsume_times=0)


async def main(name_servers: str, http: str) -> None:
    run = time.time_ns()
    topic, group = f"Payments-{run}", f"payments-{run}"
    bank_answers = False
    paid: set[str] = set()
    all_paid = asyncio.Event()

    async def pay(message: ReceivedMessage) -> Outcome | None:
        if not bank_answers:
            return Outcome.RETRY
        paid.add(message.body.decode())
        if len(paid) == PAYMENTS:
            all_paid.set()
        return None

    async with Client(name_servers) as client, Producer(client) as producer, asyncio.timeout(60):
        for number in range(PAYMENTS):
            await producer.send(Message(topic=topic, body=b"payment %d" % number))
        consumer = PushConsumer(client, group, pay, OPTIONS)
        consumer.subscribe(topic)
        async with consumer:
            letters = await dead_letters(client, group)
            print(f"{len(letters)} dead letters")
            bank_answers = True
            answer = await resend(http, group, letters)
            print(f"{len(answer['resent'])} sent again, {len(answer['failed'])} not")
            await all_paid.wait()
            print(f"{len(paid)} paid")


async def dead_letters(client: Client, group: str) -> list[ReceivedMessage]:
    """Wait for all dead letters and return them. The broker creates their topic with the first one."""
    while True:
        try:
            letters = await Admin(client).last_messages(dead_letter_topic(group), PAYMENTS)
        except NoRouteError:
            letters = []
        if len(letters) == PAYMENTS:
            return letters
        await asyncio.sleep(0.2)


async def resend(http: str, group: str, letters: list[ReceivedMessage]) -> dict[str, Any]:
    """Request the resending of at most 64 dead letters, and return the broker's response."""
    asked = {"messages": [{"offsetMessageId": letter.offset_message_id} for letter in letters]}
    token = os.environ.get("DELAYMQ_HTTP_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers, raise_for_status=True) as session,
        session.post(f"{http}/api/v1/deadletters/{group}/resend", json=asked) as response,
    ):
        answer: dict[str, Any] = await response.json()
        return answer


HTTP = os.environ.get("DELAYMQ_HTTP", "http://127.0.0.1:8080")
asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876", HTTP))
