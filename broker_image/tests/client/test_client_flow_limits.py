"""The three limits of a consumer: it pauses reading automatically, and resumes when there is capacity."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from delaymq.client import ConsumeFrom, PushConsumerOptions, ReceivedMessage
from delaymq_testing.client.consuming import subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

MESSAGES = 200
QUICK = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=20, close_timeout_ms=200, concurrency=4)


class FirstHangs:
    """A handler that blocks on the first message until released, and returns immediately for all others."""

    def __init__(self, *, others_too: bool) -> None:
        self.may_end = asyncio.Event()
        self.ended = 0
        self._others_too = others_too

    async def __call__(self, message: ReceivedMessage) -> None:
        if self._others_too or message.body[:2] == b"0:":
            await self.may_end.wait()
        self.ended += 1


def test_default_limits_equal_rocketmqs() -> None:
    options = PushConsumerOptions()
    limits = (options.max_cached_messages, options.max_cached_bytes, options.max_cached_span)
    assert limits == (1_000, 100 * 1024 * 1024, 2_000)


@pytest.mark.parametrize(
    ("limit", "others_too", "least", "most"),
    [
        # A pull brings up to 32 more than were missing.
        ({"max_cached_messages": 50}, True, 50, 50 + 32),
        ({"max_cached_bytes": 50_000}, True, 50, 50 + 32),
        ({"max_cached_span": 50}, False, 50, 50 + 32),
    ],
)
def test_consumer_pauses_at_each_limit_and_resumes(
    limit: dict[str, Any], others_too: bool, least: int, most: int
) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(MESSAGES):
            broker.add("T", b"%d:" % number + bytes(1_000))
        handler = FirstHangs(others_too=others_too)
        async with running(broker) as (client, _), subscribed(client, handler, replace(QUICK, **limit)) as consumer:
            if others_too:
                await until(lambda: consumer.stats().cached_messages >= least)
                await asyncio.sleep(0.05)  # for what would come too much
                assert consumer.stats().cached_messages <= most
            else:
                await until(lambda: handler.ended >= least - 1)
                await asyncio.sleep(0.05)
                assert handler.ended <= most
            handler.may_end.set()
            await until(lambda: broker.committed == MESSAGES)
        assert handler.ended == MESSAGES

    run(scenario)
