"""A member of a group against a running broker: its status, and direct consumption."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from delaymq.client import Client, ClientOptions, ConsumeFrom, PushConsumer, PushConsumerOptions, ReceivedMessage
from delaymq_testing.cli_running import Done, Standalone, called

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    broker = Standalone(tmp_path_factory.mktemp("broker"))
    with broker.running():
        yield broker


@contextmanager
def member(standalone: Standalone, group: str, topic: str) -> Iterator[tuple[str, list[bytes]]]:
    """A consumer in a thread of its own that fails the second time; its client id, and the bodies that it gets."""
    bodies: list[bytes] = []
    ids: list[str] = []
    there, loops = threading.Event(), []
    stop = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        there.set()
        if bodies.count(b"bad") > 1:
            raise RuntimeError("\x1b[31mno paper")

    async def consume() -> None:
        loops.append(asyncio.get_running_loop())
        options = ClientOptions(instance_name="printer")
        async with Client(standalone.environment["DELAYMQ_NAMESRV"], options) as client:
            ids.append(client.client_id)
            consumer = PushConsumer(client, group, handle, PushConsumerOptions(consume_from=ConsumeFrom.FIRST))
            consumer.subscribe(topic)
            async with consumer:
                await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(consume(),))
    thread.start()
    try:
        assert there.wait(LIMIT_S)
        yield ids[0], bodies
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)


def test_member_shows_its_status_and_consumes_a_message_directly(standalone: Standalone) -> None:
    def ask(*words: str) -> Done:
        return called(*words, environment=standalone.environment)

    ask("topic", "create", "Printed", "--queues", "1")
    sent = [json.loads(ask("send", "Printed", body, "--json").out) for body in ("good", "bad")]
    with member(standalone, "printers", "Printed") as (client_id, bodies):
        shown = ask("group", "member", "printers", client_id)
        assert shown.code == 0
        assert "Printed" in shown.out
        assert "PROP_CONSUME_TYPE" in shown.out
        told = json.loads(ask("group", "member", "printers", client_id, "--stacks", "--json").out)
        assert list(told) == ["properties", "subscriptions", "queues", "rates", "stacks"]
        queues = {queue["topic"]: queue for queue in told["queues"]}
        assert (queues["Printed"]["broker"], queues["Printed"]["queueId"]) == ("broker-a", 0)
        assert {"topic": "Printed", "expression": "*"} in told["subscriptions"]
        assert "consume" in told["stacks"]
        assert "at " in ask("group", "member", "printers", client_id, "--stacks").out

        words = ("--group", "printers", "--member", client_id)
        good = ask("message", "consume", sent[0]["offsetMessageId"], *words)
        assert (good.code, good.out.split(" after")[0]) == (0, "CR_SUCCESS")
        bad = ask("message", "consume", sent[1]["offsetMessageId"], *words)
        assert bad.code == 1
        assert "CR_THROW_EXCEPTION" in bad.out
        assert "\\x1b[31mno paper" in bad.out
        told = json.loads(ask("message", "consume", sent[1]["offsetMessageId"], *words, "--json").out)
        assert (told["result"], told["remark"]) == ("CR_THROW_EXCEPTION", "RuntimeError: \x1b[31mno paper")
        assert bodies.count(b"good") == 2
        assert bodies.count(b"bad") == 3


def test_unknown_member_gets_no_request(standalone: Standalone) -> None:
    def ask(*words: str) -> Done:
        return called(*words, environment=standalone.environment)

    nobody = ask("group", "member", "printers", "nobody@1")
    assert nobody.code == 1
    assert (
        "nobody@1 is not a member of group printers: list the members with `delaymq group members printers`"
    ) in nobody.err
    sent = json.loads(ask("send", "Printed", "x", "--json").out)
    gone = ask("message", "consume", sent["offsetMessageId"], "--group", "printers", "--member", "nobody@1")
    assert gone.code == 1
    assert "not online" in gone.err
    wrong = ask("message", "consume", "no-id", "--group", "printers", "--member", "nobody@1")
    assert wrong.code == 2
    assert "no-id: an offset message id has 32 or 56 hex digits" in wrong.err
