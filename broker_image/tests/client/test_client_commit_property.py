"""No offset is ever committed past an unfinished message, and none is lost."""

import asyncio
import random
from dataclasses import replace

import pytest
from delaymq.client import ConsumeFrom, PushConsumerOptions, ReceivedMessage
from delaymq.protocol.bodies import MessageQueue, ResetOffset
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.client.consuming import subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

MESSAGES = 60
CONSUMERS = 4
QUICK = PushConsumerOptions(
    consume_from=ConsumeFrom.FIRST, commit_interval_ms=5, close_timeout_ms=20, local_retry_ms=5, unsent_retry_ms=5,
    rebalance_interval_ms=10,
)  # fmt: skip


class Watched:
    """A broker that notes commits beyond what is done, and handlers of an ordered queue that run side by side."""

    def __init__(self, chance: random.Random, *, ordered: bool) -> None:
        self.broker = FakeBroker()
        self.wrong: list[str] = []
        self._chance = chance
        self._ordered = ordered
        self._done: set[int] = set()
        self._at_work = 0
        for number in range(MESSAGES):
            self.broker.add("T", b"%d" % number)
        self._commit = self.broker.scripts[RequestCode.UPDATE_CONSUMER_OFFSET]
        self.broker.scripts[RequestCode.UPDATE_CONSUMER_OFFSET] = self._committed
        self.broker.scripts[RequestCode.CONSUMER_SEND_MSG_BACK] = self._taken_back

    @property
    def first_not_done(self) -> int:
        return next(number for number in range(MESSAGES + 1) if number not in self._done)

    async def handle(self, message: ReceivedMessage) -> None:
        self._at_work += 1
        try:
            if self._ordered and self._at_work > 1:
                self.wrong.append(f"two handlers of an ordered queue at {message.queue_offset}")
            await asyncio.sleep(self._chance.random() * 0.03)
        finally:
            self._at_work -= 1
        fate = self._chance.random()
        if fate < 0.1:
            raise ValueError
        if fate < 0.15:
            raise asyncio.CancelledError
        self._done.add(message.queue_offset)

    def reset(self, offset: int) -> None:
        table = ResetOffset(offset_table={MessageQueue("broker-a", 0, "T"): offset})
        fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
        self.broker.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, table.encode())

    def _committed(self, command: Command) -> Response | None:
        if command.fields["topic"] == "T" and int(command.fields["commitOffset"]) > self.first_not_done:
            self.wrong.append(f"{command.fields['commitOffset']} committed, {self.first_not_done} is not done")
        return self._commit(command)

    def _taken_back(self, command: Command) -> Response | None:
        self._done.add(int(command.fields["offset"]) // 1000)
        return Response()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_unfinished_messages_are_never_committed(seed: int, ordered: bool) -> None:
    chance = random.Random(seed)

    async def scenario() -> None:
        watched = Watched(chance, ordered=ordered)
        async with running(watched.broker) as (client, _):
            for _ in range(CONSUMERS):
                options = replace(QUICK, ordered=ordered, concurrency=chance.choice([1, 5, 20]))
                consumer = subscribed(client, watched.handle, options)
                await consumer.start()
                for _ in range(chance.randrange(6)):
                    await asyncio.sleep(chance.random() * 0.05)
                    match chance.randrange(3):
                        case 0:
                            watched.reset(chance.randrange(watched.first_not_done + 1))
                        case 1:
                            consumer.subscribe("T")
                        case _:
                            consumer.membership_changed()
                closing = asyncio.create_task(consumer.close())
                await asyncio.sleep(chance.random() * 0.02)
                if chance.random() < 0.4:
                    closing.cancel()
                await asyncio.wait([closing])
            async with subscribed(client, watched.handle, replace(QUICK, ordered=ordered)):
                await until(lambda: watched.broker.committed == MESSAGES)
        assert watched.wrong == []

    run(scenario)
