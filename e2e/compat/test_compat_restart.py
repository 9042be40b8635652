"""A restart of our broker does not cost RocketMQ's clients half a minute, with our NameServer or the real one.

The clients have their own default intervals (routes and heartbeats every 30 s): what makes them quick is the broker.
"""

import time
from collections import Counter
from collections.abc import Callable

import pytest
from harness.brokers import Cluster, OurCluster
from harness.clients import Producer, PushConsumer, Workbench
from harness.driver import ClientError

pytestmark = pytest.mark.ours_only

# Two to four on a free machine. A client that waited for its own timers would need 20 to 30.
RESUME_LIMIT_S = 15.0
CONFIG = {"messageDelayLevel": "1s 2s 1s 1s 3s 4s 10s 1h"}
DELAYED_LEVEL, DELAY_MS = 5, 3000

NewWorkbench = Callable[[Cluster], Workbench]


def send_until_accepted(producer: Producer, topic: str, body: str, *, until: float) -> None:
    """Try again and again, each try with a body of its own: one that got no answer may have been stored."""
    attempt = 0
    while True:
        try:
            producer.send(topic, f"{body}-{attempt}")
            return
        except ClientError as e:
            if time.monotonic() > until:
                raise AssertionError(f"no send was accepted within {RESUME_LIMIT_S:g} s of the restart") from e
            attempt += 1
            time.sleep(0.05)


def wait_for_prefix(consumer: PushConsumer, prefix: bytes, *, until: float) -> None:
    limit_s = max(0.0, until - time.monotonic())
    consumer.inbox.wait_for(lambda messages: any(m.body.startswith(prefix) for m in messages), timeout_s=limit_s)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("real_namesrv", [False, True], ids=["own NameServer", "real NameServer"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
def test_clients_resume_within_seconds_of_a_restart(
    new_workbench: NewWorkbench, isolated_network: None, clean: bool, real_namesrv: bool
) -> None:
    with OurCluster(config=CONFIG, real_namesrv=real_namesrv) as cluster:
        clients = new_workbench(cluster)
        topic = clients.topic(queues=4)
        concurrent = clients.push(topic, group=clients.group())
        orderly = clients.push(topic, group=clients.group(), orderly=True)
        producer = clients.new_producer(retries=0)
        for i in range(20):
            producer.send(topic, f"before{i}")
        for consumer in (concurrent, orderly):
            consumer.inbox.wait_count(20)
        # Every queue of both consumers now waits in a long poll.
        time.sleep(0.5)

        cluster.restart(clean=clean)
        until = time.monotonic() + RESUME_LIMIT_S
        for queue_id in range(4):
            send_until_accepted(producer, topic, f"after{queue_id}", until=until)
        for consumer in (concurrent, orderly):
            for queue_id in range(4):
                wait_for_prefix(consumer, f"after{queue_id}-".encode(), until=until)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
def test_delayed_messages_of_before_a_restart_arrive_once_and_never_early(
    new_workbench: NewWorkbench, isolated_network: None, clean: bool
) -> None:
    with OurCluster(config=CONFIG) as cluster:
        clients = new_workbench(cluster)
        topic = clients.topic(queues=4)
        consumer = clients.push(topic, group=clients.group())
        for level in (1, DELAYED_LEVEL):
            for i in range(20):
                clients.producer.send(topic, f"{level}:{i}", delayLevel=level)
        consumer.inbox.wait_count(20)
        cluster.restart(clean=clean)
        consumer.inbox.wait_for(lambda got: len({m.body for m in got}) == 40, timeout_s=15)
        time.sleep(1)

        # A consumer may see a message again after a crash; the broker stored each copy once.
        reader = clients.pull(group=clients.group())
        stored = [m for queue_id in range(4) for m in reader.pull(topic, queue_id, 0, max_count=32).messages]
        expected = Counter(f"{level}:{i}".encode() for level in (1, DELAYED_LEVEL) for i in range(20))
        assert Counter(m.body for m in stored) == expected
        late = [m for m in stored if m.body.startswith(b"5:")]
        assert all(m.store_timestamp_ms - m.born_timestamp_ms >= DELAY_MS for m in late)


def test_a_group_goes_on_from_its_offsets_after_a_clean_restart(
    new_workbench: NewWorkbench, isolated_network: None
) -> None:
    with OurCluster(config=CONFIG) as cluster:
        clients = new_workbench(cluster)
        topic, group = clients.topic(queues=2), clients.group()
        first = clients.push(topic, group=group)
        for i in range(10):
            clients.producer.send(topic, f"before{i}")
        first.inbox.wait_count(10)
        # A pull that is under way while offsets are stored could set an older one.
        time.sleep(0.5)
        clients.stop(first)
        cluster.restart(clean=True)
        send_until_accepted(clients.producer, topic, "after", until=time.monotonic() + RESUME_LIMIT_S)
        second = clients.push(topic, group=group)
        second.inbox.wait_count(1)
        time.sleep(0.5)
        assert all(m.body.startswith(b"after") for m in second.inbox.messages())
