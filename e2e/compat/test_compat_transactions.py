"""Transactions of RocketMQ's Java producer: commit, rollback, checks, giving up, and resumed checks."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from compat.python_scenario import NewCluster
from harness.brokers import Cluster
from harness.clients import Sent, TransactionProducer, Workbench
from harness.driver import ClientError, Received

COMMIT, ROLLBACK = 8, 12
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECK_MAX = 3
CONFIG = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000", "transactionCheckMax": str(CHECK_MAX)}
LIMIT_S = 60.0
"""Rounds of one second each, on a shared machine."""


@pytest.fixture(scope="module")
def cluster(new_cluster: NewCluster) -> Iterator[Cluster]:
    """Provide a cluster that checks open transactions soon."""
    with new_cluster(**CONFIG) as cluster:
        yield cluster


@pytest.fixture
def clients(cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]) -> Workbench:
    return new_workbench(cluster)


def read_all(clients: Workbench, topic: str, queues: int = 1) -> list[Received]:
    consumer = clients.pull(group=clients.group())
    messages: list[Received] = []
    for queue_id in range(queues):
        offset = 0
        while (pulled := consumer.pull(topic, queue_id, offset)).messages:
            messages += pulled.messages
            offset = pulled.next_begin_offset
    clients.stop(consumer)
    return messages


def wait_for(what: Callable[[], list[Received]], count: int = 1) -> list[Received]:
    deadline = time.monotonic() + LIMIT_S
    while len(found := what()) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} messages"
        time.sleep(0.3)
    return found


def given_up(clients: Workbench, body: str) -> list[Received]:
    try:
        return [message for message in read_all(clients, GIVEN_UP_TOPIC) if message.body == body.encode()]
    except ClientError:  # the topic is created on first use
        return []


def test_committed_message_arrives_once_and_rolled_back_message_never(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.transactions()
    committed = producer.send(topic, "paid", "C", tags="paid", keys="order-1")
    producer.send(topic, "refused", "R")
    producer.send(topic, "failed, then checked", "XR")
    producer.send(topic, "paid too", "C")
    messages = wait_for(lambda: read_all(clients, topic), 2)
    assert [message.body for message in messages] == [b"paid", b"paid too"]
    assert messages[0].message_id == committed.message_id
    assert messages[0].system_flag & 12 == COMMIT
    assert messages[0].properties["PGROUP"] == producer.group
    assert messages[0].properties["TAGS"] == "paid"
    assert [m.body for m in clients.admin.query(topic, "order-1")] == [b"paid"]
    producer.inbox.wait_count(1, timeout_s=LIMIT_S)
    assert len(read_all(clients, topic)) == 2


def test_unknown_outcome_is_checked_until_it_is_known(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.transactions()
    sent = producer.send(topic, "later", "UUC", keys="k")
    rolled_back = producer.send(topic, "never", "UR")
    (message,) = wait_for(lambda: read_all(clients, topic))
    assert message.body == b"later"
    asked = [each for each in producer.inbox.messages() if each.body == b"later"]
    assert [each.properties["TRANSACTION_CHECK_TIMES"] for each in asked] == ["1", "2"]
    for each in asked:
        assert (each.topic, each.keys, each.properties["UNIQ_KEY"]) == (topic, "k", sent.message_id)
        assert each.arrival_timestamp_ms - each.born_timestamp_ms >= 1_000
    assert sum(each.body == b"never" for each in producer.inbox.messages()) == 1
    assert [m.body for m in read_all(clients, topic)] == [b"later"]
    assert rolled_back.message_id != sent.message_id


def test_check_immunity_time_of_a_transaction_is_respected(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.transactions()
    # RocketMQ's broker counts each round within this time as a check: it must be shorter than all of them together.
    producer.send(topic, "patient", "UC", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "2"})
    (asked,) = producer.inbox.wait_count(1, timeout_s=LIMIT_S)
    assert asked.arrival_timestamp_ms - asked.born_timestamp_ms >= 2_000
    assert wait_for(lambda: read_all(clients, topic))[0].body == b"patient"


def test_transaction_without_outcome_is_given_up_and_its_checks_can_be_resumed(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.transactions()
    producer.send(topic, "lost", "U" * (CHECK_MAX + 1) + "C")
    (copy,) = wait_for(lambda: given_up(clients, "lost"))
    assert copy.properties["REAL_TOPIC"] == topic
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == str(CHECK_MAX)
    assert len(producer.inbox.messages()) == CHECK_MAX
    assert read_all(clients, topic) == []
    assert clients.admin.call("transactions.resume", offsetMsgId=copy.offset_message_id) is True
    assert wait_for(lambda: read_all(clients, topic))[0].body == b"lost"
    assert producer.inbox.messages()[CHECK_MAX].properties["TRANSACTION_CHECK_TIMES"] == "1"


def test_check_is_sent_to_another_producer_of_the_group_when_the_first_is_gone(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    first = clients.transactions()
    first.send(topic, "left behind", "UC")
    clients.stop(first)
    second = clients.transactions(group=first.group)
    second.send(topic, "registers", "C")  # heartbeats are sent to brokers in known routes
    (asked,) = second.inbox.wait_count(1, timeout_s=LIMIT_S)
    assert asked.body == b"left behind"
    assert {m.body for m in wait_for(lambda: read_all(clients, topic), 2)} == {b"left behind", b"registers"}


def test_checks_are_distributed_among_producers_of_a_group(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    first = clients.transactions()
    producers = [first, clients.transactions(group=first.group)]
    for producer in producers:
        producer.send(topic, "registers", "C")
    for number in range(6):
        producers[0].send(topic, f"open {number}", "UC")
    wait_for(lambda: read_all(clients, topic), 8)
    asked = [len(producer.inbox.messages()) for producer in producers]
    assert sum(asked) >= 6
    assert min(asked) >= 1


def end(
    clients: Workbench, producer: TransactionProducer, half: Sent, state: int, **changes: Any
) -> tuple[int, str | None]:
    return producer.end(half, state, broker=clients.broker_address, **changes)


def test_mismatched_end_of_transaction_is_rejected_with_remarks_of_rocketmq(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.transactions()
    half = producer.prepare(topic, "open")
    assert end(clients, producer, half, COMMIT, group="others") == (1, "The producer group wrong")
    wrong_offset = end(clients, producer, half, COMMIT, queueOffset=half.queue_offset + 1)
    assert wrong_offset == (1, "The transaction state table offset wrong")
    nothing = end(clients, producer, half, ROLLBACK, commitLogOffset=1 << 40)
    assert nothing == (1, "Find prepared transaction message failed")
    assert end(clients, producer, half, COMMIT) == (0, None)
    assert [m.body for m in read_all(clients, topic)] == [b"open"]


@pytest.mark.ours_only  # RocketMQ's broker delays the half message, and drops it when it is due
def test_transaction_with_delay_is_delayed_from_its_commit(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.transactions()
    half = producer.prepare(topic, "delayed", delayLevel=2)
    committed_ms = int(time.time() * 1000)
    assert end(clients, producer, half, COMMIT) == (0, None)
    (message,) = wait_for(lambda: read_all(clients, topic))
    assert message.store_timestamp_ms - committed_ms >= 1_900  # level 2: 2 s, on the same clock
    assert message.properties["DELAY"] == "2"


def test_half_messages_and_op_marks_are_stored_as_by_rocketmq(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    producer = clients.transactions()
    half = producer.prepare(topic, "looked at", keys="key of a half message")
    found = clients.admin.view(half.offset_message_id)
    assert (found.topic, found.queue_id, found.queue_offset) == (HALF_TOPIC, 0, half.queue_offset)
    assert found.properties["REAL_TOPIC"] == topic
    assert int(found.properties["REAL_QID"]) == half.queue_id
    assert found.system_flag & 12 == 0
    assert end(clients, producer, half, ROLLBACK)[0] == 0  # the real broker's remark: not set any response code
    clients.admin.offsets(topic, 0)  # the client takes the broker's address from the route of a topic
    marks = clients.admin.offsets(OP_TOPIC, 0)
    consumer = clients.pull(group=clients.group())
    try:
        (mark,) = consumer.pull(OP_TOPIC, 0, marks["max"] - 1).messages
    except ClientError:
        return  # neither broker allows reads of a topic without a configuration
    assert (mark.body, mark.tags) == (str(half.queue_offset).encode(), "d")


def test_broker_can_reject_transactions(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.transactions()
    change = ("updateBrokerConfig", "-b", clients.broker_address, "-k", "rejectTransactionMessage", "-v")
    clients.mqadmin(*change, "true")
    try:
        with pytest.raises(ClientError, match="16"):
            producer.send(topic, "rejected", "C")
    finally:
        clients.mqadmin(*change, "false")
    producer.send(topic, "accepted", "C")
    assert [m.body for m in wait_for(lambda: read_all(clients, topic))] == [b"accepted"]


@pytest.mark.ours_only
def test_repeated_commit_creates_no_second_message(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    producer = clients.transactions()
    half = producer.prepare(topic, "once")
    for from_check in (False, True, False):
        assert end(clients, producer, half, COMMIT, fromCheck=from_check) == (0, None)
    assert end(clients, producer, half, ROLLBACK) == (1, "The transaction has already been committed")
    assert [m.body for m in read_all(clients, topic)] == [b"once"]
