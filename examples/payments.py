"""Announces an order only if its payment is in the database: the transaction is completed even after a crash.

Takes the NameServer's address as an optional argument.
"""

import asyncio
import sqlite3
import sys

from delaymq.client import (
    Client,
    ConsumeFrom,
    HalfMessage,
    LocalState,
    Message,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
    TransactionProducer,
)

TOPIC = "PaidOrders"


class Payments:
    """Stores a payment together with its unique id in one database transaction: either both are stored, or neither."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute(
            "CREATE TABLE payment (order_name TEXT, cents INTEGER CHECK (cents > 0), message_id TEXT)"
        )

    async def execute(self, message: HalfMessage, arg: object) -> LocalState:
        # Fast enough for the event loop. Call a database server from a thread or through an asyncio library.
        try:
            with self.database:
                row = (message.body.decode(), arg, message.message_id)
                self.database.execute("INSERT INTO payment VALUES (?, ?, ?)", row)
        except sqlite3.IntegrityError:
            return LocalState.ROLLBACK
        return LocalState.COMMIT

    async def check(self, message: ReceivedMessage) -> LocalState:
        """Determine the outcome from the database, for a broker that received neither a commit nor a rollback."""
        found = self.database.execute("SELECT 1 FROM payment WHERE message_id = ?", (message.message_id,)).fetchone()
        return LocalState.COMMIT if found else LocalState.ROLLBACK


async def main(namesrv: str) -> None:
    announced: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: ReceivedMessage) -> None:
        announced.put_nowait(message.body.decode())

    async with Client(namesrv) as client, TransactionProducer(client, "payments", Payments()) as producer:
        consumer = PushConsumer(client, "shipping", handle, PushConsumerOptions(consume_from=ConsumeFrom.FIRST))
        consumer.subscribe(TOPIC)
        for order, cents in (("a book", 1_200), ("air", 0), ("a lamp", 3_500)):
            result = await producer.send_in_transaction(Message(topic=TOPIC, body=order.encode()), arg=cents)
            print(f"{order}: {result.state.name}")
        async with consumer:
            shipped = sorted([await announced.get(), await announced.get()])
            print(f"shipped: {', '.join(shipped)}")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
