"""SQL92 filters on message properties: RocketMQ's clients and a broker with filtering enabled."""

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from compat.python_scenario import FROM_FIRST, Collected, new_name, run, until
from compat.sql_expressions import Expressions
from delaymq.broker.filters import SQL_TYPE, compile_expression
from delaymq.client import (
    Client,
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    PullConsumer,
    PushConsumer,
    RefusedError,
)
from delaymq.message.properties import encode_properties
from delaymq.protocol.errors import RequestError
from harness import java
from harness.brokers import Cluster
from harness.clients import Pulled, Workbench
from harness.driver import ClientError, Driver

pytestmark = pytest.mark.core

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET", "sql": True}
SEEDS = range(4)
EXPRESSIONS_PER_SEED = 1_500
COMMAND_LIMIT_S = 60.0


@pytest.fixture(scope="module")
def filtering_cluster(new_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    with new_cluster(enablePropertyFilter="true", filterSupportRetry="true") as cluster:
        yield cluster


@pytest.fixture
def filtering(filtering_cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]) -> Workbench:
    return new_workbench(filtering_cluster)


def send_prices(clients: Workbench, topic: str, prices: range) -> None:
    """Send one message for each price, in random order."""
    waiting: list[Future[Any]] = [
        clients.producer.submit(topic, f"{price}", queue_id=0, tags="T", properties={"price": str(price), "kind": "eu"})
        for price in prices
    ]
    for each in waiting:
        clients.driver.result(each)


def test_push_consumer_receives_only_messages_that_match_its_expression(filtering: Workbench) -> None:
    topic, group = filtering.topic(queues=2), filtering.group()
    expression = "(price BETWEEN 3 AND 5 OR price >= 8) AND kind = 'eu' AND TAGS IN ('T') AND gone IS NULL"
    consumer = filtering.push(topic, group=group, expression=expression, **FIRST)
    send_prices(filtering, topic, range(10))
    filtering.producer.send(topic, "no number", properties={"price": "x", "kind": "eu"})
    filtering.producer.send(topic, "another kind", properties={"price": "9", "kind": "us"}, tags="T")
    filtering.producer.send(topic, "the last", properties={"price": "8", "kind": "eu"}, tags="T", queue_id=1)
    got = consumer.inbox.wait_for(lambda messages: b"the last" in [m.body for m in messages], timeout_s=60)
    got = consumer.inbox.wait_count(6, timeout_s=60)
    assert sorted(m.body for m in got) == [b"3", b"4", b"5", b"8", b"9", b"the last"]


def test_only_a_matching_message_ends_a_held_pull(
    filtering: Workbench,
) -> None:
    topic = filtering.topic(queues=1)
    consumer = filtering.push(topic, group=filtering.group(), expression="price > 5", **FIRST)
    filtering.producer.send(topic, "first", properties={"price": "6"})
    consumer.inbox.wait_count(1, timeout_s=60)
    waits_ms = []
    for number in range(3):
        filtering.producer.send(topic, "not for it", properties={"price": "1"})
        sent = filtering.producer.send(topic, f"for it {number}", properties={"price": "7"})
        got = consumer.inbox.wait_count(number + 2, timeout_s=60)[-1]
        assert got.message_id == sent.message_id
        waits_ms.append(got.arrival_timestamp_ms - got.store_timestamp_ms)
    # A pull that is not woken waits until the broker checks held pulls, every 5 s.
    assert min(waits_ms) < 2_000
    assert [m.body for m in consumer.inbox.messages()] == [b"first", b"for it 0", b"for it 1", b"for it 2"]


def test_pull_returns_status_and_next_offset(filtering: Workbench) -> None:
    topic = filtering.topic(queues=1)
    send_prices(filtering, topic, range(6))
    # The client obtains a broker's version from heartbeats, and sends no expression before.
    consumer = filtering.pull(group=filtering.group(), heartbeatMs=100)
    consumer.pull(topic, 0, 0)

    def pull(expression: str, offset: int = 0) -> Pulled:
        deadline = time.monotonic() + 60
        while True:
            try:
                return consumer.pull(topic, 0, offset, expression=expression, sql=True)
            except ClientError as error:
                if "does not upgrade" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    some = pull("price > 3")
    assert (some.status, some.next_begin_offset, len(some.messages)) == ("FOUND", 6, 2)
    none = pull("price > 5")
    assert (none.status, none.next_begin_offset, none.messages) == ("NO_MATCHED_MSG", 6, [])
    at_end = pull("price > 5", 6)
    assert (at_end.status, at_end.next_begin_offset) == ("NO_NEW_MSG", 6)
    beyond = pull("price > 5", 60)
    assert (beyond.status, beyond.next_begin_offset) == ("OFFSET_ILLEGAL", 6)


def test_lite_pull_consumer_filters_by_expression(filtering: Workbench) -> None:
    topic = filtering.topic(queues=1)
    send_prices(filtering, topic, range(6))
    options = {"sql": True, "from": "CONSUME_FROM_FIRST_OFFSET"}
    consumer = filtering.lite_pull(topic, group=filtering.group(), expression="price IN ('2', '4')", **options)
    assert sorted(m.body for m in consumer.poll_until(2, timeout_s=60)) == [b"2", b"4"]


def test_python_client_filters_by_expression(filtering_cluster: Cluster, filtering: Workbench) -> None:
    topic = filtering.topic(queues=1)
    send_prices(filtering, topic, range(6))

    async def scenario(client: Client) -> None:
        collected = Collected()
        pushed = PushConsumer(client, new_name("Group"), collected, FROM_FIRST)
        pushed.subscribe(topic, sql="price > 3 AND TAGS = 'T'")
        polled = LitePullConsumer(client, new_name("Group"), LitePullOptions(consume_from=ConsumeFrom.FIRST))
        polled.subscribe(topic, sql="price IN ('1')")
        async with pushed, polled, PullConsumer(client, new_name("Group")) as pulling:
            await until(lambda: len(collected.bodies) == 2)
            assert sorted(collected.bodies) == [b"4", b"5"]
            assert [message.body for message in await polled.poll(30_000)] == [b"1"]
            (queue,) = await pulling.queues(topic)
            found = await pulling.pull(queue, 0, sql="price <= 1")
            assert sorted(message.body for message in found.messages) == [b"0", b"1"]
        wrong = PushConsumer(client, new_name("Group"), collected)
        wrong.subscribe(topic, sql="price >")
        with pytest.raises(RefusedError) as caught:
            await wrong.start()
        assert caught.value.code == 23

    run(filtering_cluster, scenario)


def test_command_line_filters_by_expression_without_a_group(filtering_cluster: Cluster, filtering: Workbench) -> None:
    topic = filtering.topic(queues=1)
    send_prices(filtering, topic, range(6))
    words = ["receive", topic, "--tail", "20", "--sql", "price > 3 AND TAGS = 'T'"]
    done = subprocess.run(
        [sys.executable, "-m", "delaymq", *words, "--json", "--namesrv", filtering_cluster.namesrv_address],
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(json.loads(line)["body"] for line in done.stdout.splitlines()) == ["4", "5"]


def test_delayed_message_is_filtered_on_delivery(filtering: Workbench) -> None:
    topic = filtering.topic(queues=1)
    consumer = filtering.push(topic, group=filtering.group(), expression="price > 5", **FIRST)
    filtering.producer.send(topic, "no", properties={"price": "1"}, delayLevel=1)
    filtering.producer.send(topic, "yes", properties={"price": "6"}, delayLevel=1)
    assert [m.body for m in consumer.inbox.wait_count(1, timeout_s=60)] == [b"yes"]


def test_retries_that_match_the_expression_are_delivered(filtering: Workbench) -> None:
    topic, group = filtering.topic(queues=1), filtering.group(retry_topic=True)
    consumer = filtering.push(topic, group=group, expression="price > 5", failTimes=2, **FIRST)
    filtering.producer.send(topic, "again", properties={"price": "6"})
    got = consumer.inbox.wait_count(3, timeout_s=60)
    assert [m.reconsume_times for m in got] == [0, 1, 2]
    assert {m.body for m in got} == {b"again"}


def test_retries_that_no_longer_match_the_expression_are_not_delivered(filtering: Workbench) -> None:
    topic, group = filtering.topic(queues=1), filtering.group(retry_topic=True)
    # The level of 3 s leaves time to change the expression.
    first = filtering.push(topic, group=group, expression="price > 5", failTimes=9, retryLevel=5, **FIRST)
    filtering.producer.send(topic, "dear", properties={"price": "9"})
    first.inbox.wait_count(1, timeout_s=60)
    filtering.producer.send(topic, "cheap", properties={"price": "6"})
    first.inbox.wait_count(2, timeout_s=60)
    time.sleep(0.5)
    filtering.stop(first)
    second = filtering.push(topic, group=group, expression="price > 8", **FIRST)
    got = second.inbox.wait_count(1, timeout_s=60)
    time.sleep(1)
    assert {m.body for m in second.inbox.messages()} == {b"dear"}
    assert got[0].reconsume_times == 1


@pytest.mark.parametrize(
    ("expression", "place"),
    [("price >", "line 1, column 8"), ("price > 'x'", "line 1, column 7"), ("price\n== 1", "line 2, column 2")],
)
def test_invalid_expression_is_rejected_when_the_consumer_starts(
    filtering: Workbench, against: str, expression: str, place: str
) -> None:
    topic = filtering.topic(queues=1)
    with pytest.raises(ClientError) as caught:
        filtering.push(topic, group=filtering.group(), expression=expression, **FIRST)
    assert caught.value.code == 23
    if against == "ours":
        assert caught.value.remark.startswith("Invalid MessageSelector: ")
        assert place in caught.value.remark
    else:
        assert re.search("ParseException|cannot be compared", caught.value.remark)


def test_consumer_with_expression_is_rejected_if_filtering_is_disabled(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    with pytest.raises(ClientError) as caught:
        clients.push(topic, group=clients.group(), expression="price > 5", **FIRST)
    assert caught.value.code == 1
    assert "The broker does not support consumer to filter message by SQL92" in caught.value.remark


@pytest.mark.parametrize("seed", SEEDS)
def test_expressions_are_evaluated_as_by_rocketmq(driver: Driver, seed: int) -> None:
    """RocketMQ's own parser and evaluator are the reference, whichever broker the other tests use."""
    writer = Expressions(random.Random(seed), fault_ratio=0.3)
    cases = [
        {"expression": writer.expression(), "properties": [writer.message() for _ in range(6)]}
        for _ in range(EXPRESSIONS_PER_SEED)
    ]
    theirs = driver.call("filter.evaluate", libraries=str(java.libraries("broker")), cases=cases)
    differences = [
        (case["expression"], case["properties"], wanted, found)
        for case, wanted in zip(cases, theirs, strict=True)
        if (found := what_we_make_of(case)) != wanted
    ]
    assert differences == []
    accepted = [answer for answer in theirs if answer is not None]
    assert EXPRESSIONS_PER_SEED // 2 < len(accepted) < EXPRESSIONS_PER_SEED
    assert sum(map(sum, accepted)) > EXPRESSIONS_PER_SEED // 2


def what_we_make_of(case: dict[str, Any]) -> list[bool] | None:
    try:
        matches = compile_expression(SQL_TYPE, case["expression"]).properties
    except RequestError:
        return None
    assert matches is not None
    return [matches(encode_properties(message)) for message in case["properties"]]
