"""Message traces of the Python client, read by RocketMQ's client and mqadmin, on either broker."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from compat.python_scenario import FROM_FIRST, new_name, run, subscribed, until
from delaymq.client import (
    Client,
    HalfMessage,
    LocalState,
    Message,
    Outcome,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    TransactionOptions,
    TransactionProducer,
)
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import ClientError
from harness.errors import HarnessError

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
LIMIT_S = 60.0
Found = TypeVar("Found")
MEASURED = {"costMs", "requestId", "offsetMsgId", "msgId", "transactionId"}
"""Fields that differ in each trace."""


class Listener:
    async def execute(self, message: HalfMessage, arg: object) -> LocalState:
        return LocalState.COMMIT

    async def check(self, message: ReceivedMessage) -> LocalState:
        return LocalState.COMMIT


def test_python_trace_records_equal_java_trace_records(cluster: Cluster, clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    group, readers = clients.name("Traced"), clients.group(retry_topic=True)
    fields: dict[str, Any] = {"tags": "T", "keys": "k1 k2"}
    java = clients.new_producer(group=group, trace=True)
    consumer = clients.push(topic, group=readers, trace=True, **{"from": "CONSUME_FROM_FIRST_OFFSET"})
    sent = [java.send(topic, "hello", **fields), java.send(topic, "later", delayLevel=1)]
    theirs = [_traces(clients, each.message_id, {"Pub", "SubBefore", "SubAfter"}) for each in sent]
    clients.stop(consumer)
    ours: list[dict[str, dict[str, Any]]] = []

    async def scenario(client: Client) -> None:
        async def handle(message: ReceivedMessage) -> None:
            pass

        push = subscribed(client, readers, topic, handle, replace(FROM_FIRST, enable_trace=True))
        async with Producer(client, group, ProducerOptions(enable_trace=True)) as producer, push:
            first = await producer.send(Message(topic=topic, body=b"hello", tags="T", keys=("k1", "k2")))
            second = await producer.send(Message(topic=topic, body=b"later", delay_level=1))
            for each in (first, second):
                wanted = {"Pub", "SubBefore", "SubAfter"}
                ours.append(await asyncio.to_thread(_traces, clients, each.message_id, wanted))

    run(cluster, scenario)
    for python, reference in zip(ours, theirs, strict=True):
        for kind, trace in reference.items():
            assert _steady(python[kind]) == _steady(trace)
        assert python["SubBefore"]["requestId"] == python["SubAfter"]["requestId"]
        assert python["Pub"]["costMs"] >= 0
    assert [each["Pub"]["msgType"] for each in ours] == ["Normal_Msg", "Delay_Msg"]
    # By its keys and by its id.
    assert {each["msgId"] for each in _found(clients, "k2") if each["type"] == "Pub"} >= {ours[0]["Pub"]["msgId"]}


def test_mqadmin_shows_trace_of_messages_sent_and_consumed_in_python(cluster: Cluster, clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)

    async def scenario(client: Client) -> None:
        async def handle(message: ReceivedMessage) -> Outcome | None:
            if message.body == b"3" and message.reconsume_times == 0:
                return Outcome.RETRY
            if message.body == b"4" and message.reconsume_times == 0:
                raise RuntimeError("not today")
            return None

        options = replace(FROM_FIRST, enable_trace=True, retry_delay_level=1)
        consumer = subscribed(client, group, topic, handle, options)
        async with consumer, Producer(client, "PyTraced", ProducerOptions(enable_trace=True)) as producer:
            batch = await producer.send_batch([Message(topic=topic, body=b"%d" % number) for number in range(5)])
            ids = batch.message_id.split(",")
            await until(lambda: consumer.stats().topics[topic].consumed == 5)
        shown = [await asyncio.to_thread(_shown, clients, each, 2 if n > 2 else 1) for n, each in enumerate(ids)]
        for number, text in enumerate(shown):
            assert re.search(r"^Pub +PyTraced +127\.0\.0\.1 .* success *$", text, re.MULTILINE), text
            ends = re.findall(rf"^Sub +{group} .* (success|failed) *$", text, re.MULTILINE)
            assert sorted(ends) == (["success"] if number < 3 else ["failed", "success"])
        codes = [_ends(await asyncio.to_thread(_found, clients, each)) for each in ids]
        assert codes == [[0], [0], [0], [0, 4], [0, 2]]

    run(cluster, scenario)


def test_end_of_a_transaction_is_traced(cluster: Cluster, clients: Workbench) -> None:
    topic = clients.topic(queues=1)

    async def scenario(client: Client) -> None:
        options = TransactionOptions(enable_trace=True, trace_topic="OwnTraces")
        group = new_name("Transactions")
        async with TransactionProducer(client, group, Listener(), options) as producer:
            result = await producer.send_in_transaction(Message(topic=topic, body=b"x", tags="T", keys=("k",)))
        traces = await asyncio.to_thread(
            _traces, clients, result.sent.message_id, {"Pub", "EndTransaction"}, topic="OwnTraces"
        )
        assert traces["Pub"]["msgType"] == "Trans_Msg_Half"
        ended = traces["EndTransaction"]
        assert (ended["group"], ended["topic"], ended["tags"], ended["keys"]) == (group, topic, "T", "k")
        assert (ended["state"], ended["fromCheck"], ended["msgType"]) == ("COMMIT_MESSAGE", False, "Trans_msg_Commit")
        assert ended["transactionId"] == result.sent.message_id

    run(cluster, scenario)


def _steady(trace: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in trace.items() if name not in MEASURED}


def _ends(traces: list[dict[str, Any]]) -> list[int]:
    return sorted(trace["contextCode"] for trace in traces if trace["type"] == "SubAfter")


def _found(clients: Workbench, key: str, topic: str = TRACE_TOPIC) -> list[dict[str, Any]]:
    """Return all traces of a unique id or a key."""
    try:
        messages = clients.admin.query(topic, key)
    except ClientError:
        return []  # none yet, or the topic is not known yet
    traces = [trace for message in messages for trace in clients.traces(message.body)]
    return [trace for trace in traces if trace["msgId"] == key or key in trace["keys"].split()]


def _traces(
    clients: Workbench, message_id: str, wanted: set[str], *, topic: str = TRACE_TOPIC
) -> dict[str, dict[str, Any]]:
    """Return the traces of a message by type, once the requested ones exist."""

    def look() -> dict[str, dict[str, Any]] | None:
        found = {trace["type"]: trace for trace in _found(clients, message_id, topic)}
        return found if found.keys() >= wanted else None

    return _wait(look)


def _shown(clients: Workbench, message_id: str, ends: int) -> str:
    """Return mqadmin's output for a message that was consumed `ends` times."""

    def look() -> str | None:
        try:
            text = clients.mqadmin("queryMsgTraceById", "-i", message_id)
        except HarnessError:
            return None
        return text if len(re.findall("^Sub ", text, re.MULTILINE)) >= ends and "Pub" in text else None

    return _wait(look)


def _wait(look: Callable[[], Found | None]) -> Found:
    deadline = time.monotonic() + LIMIT_S
    while (found := look()) is None:
        assert time.monotonic() < deadline, "the traces did not arrive in time"
        time.sleep(0.1)
    return found
