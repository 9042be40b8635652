"""Quick recovery of RocketMQ's clients after a restart of DelayMQ, with either NameServer.

The clients use their default intervals (routes and heartbeats every 30 s): DelayMQ ensures that they recover sooner.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from harness.brokers import Cluster, OurCluster
from harness.clients import Producer, PushConsumer, Workbench
from harness.driver import ClientError, Received

pytestmark = pytest.mark.ours_only

RESUME_LIMIT_S = 15.0
"""Two to four seconds on an idle machine. A client that waited for its own timers would need 20 to 30."""
TRIES = {"clean stop": 1, "kill -9": 3}
"""A reset fails all requests of RocketMQ's client immediately, unless it writes to the dead connection before the
reset: then its other requests wait for their timeouts, half a minute. That cannot happen after a stop, but after a
kill, and more often on slow machines.
"""
CLIENT_TIMEOUTS_S = 90.0
CONFIG = {"messageDelayLevel": "1s 2s 1s 1s 3s 4s 10s 1h"}
DELAYED_LEVEL, DELAY_MS = 5, 3000

NewWorkbench = Callable[[Cluster], Workbench]


def send_until_accepted(producer: Producer, topic: str, body: str, *, until: float) -> None:
    """Retry until it succeeds, each time with a different body: a send without a response may have been stored."""
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


def wait_for_bodies(consumers: Sequence[PushConsumer], bodies: Sequence[str], *, until: float) -> None:
    """Wait until each consumer has received each message, whichever attempt was stored."""
    for consumer in consumers:
        for body in bodies:
            limit_s = max(0.0, until - time.monotonic())
            consumer.inbox.wait_for(partial(has_body, f"{body}-".encode()), timeout_s=limit_s)


def has_body(prefix: bytes, messages: list[Received]) -> bool:
    return any(message.body.startswith(prefix) for message in messages)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("real_namesrv", [False, True], ids=["own NameServer", "real NameServer"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
def test_clients_resume_within_seconds_of_a_restart(
    new_workbench: NewWorkbench, isolated_network: None, clean: bool, real_namesrv: bool
) -> None:
    with OurCluster(config=CONFIG, real_namesrv=real_namesrv) as cluster:
        clients = new_workbench(cluster)
        topic = clients.topic(queues=4)
        # Committing offsets would also write to the connection.
        rarely: dict[str, Any] = {"persistOffsetMs": 60_000}
        concurrent = clients.push(topic, group=clients.group(), **rarely)
        orderly = clients.push(topic, group=clients.group(), orderly=True, **rarely)
        consumers = (concurrent, orderly)
        producer = clients.new_producer(retries=0)
        for i in range(20):
            producer.send(topic, f"before{i}")
        for consumer in consumers:
            consumer.inbox.wait_count(20)

        tries = TRIES["clean stop" if clean else "kill -9"]
        for number in range(tries):
            # Now every queue of both consumers has a held pull.
            time.sleep(0.5)
            cluster.restart(clean=clean)
            until = time.monotonic() + RESUME_LIMIT_S
            bodies = [f"after{number}.{queue_id}" for queue_id in range(4)]
            for body in bodies:
                send_until_accepted(producer, topic, body, until=until)
            try:
                wait_for_bodies(consumers, bodies, until=until)
                break
            except AssertionError:
                if number == tries - 1:
                    raise
                wait_for_bodies(consumers, bodies, until=time.monotonic() + CLIENT_TIMEOUTS_S)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
def test_delayed_messages_from_before_a_restart_arrive_once_and_never_early(
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

        # A consumer may receive a message again after a crash, but the broker stored each copy only once.
        reader = clients.pull(group=clients.group())
        stored = [m for queue_id in range(4) for m in reader.pull(topic, queue_id, 0, max_count=32).messages]
        expected = Counter(f"{level}:{i}".encode() for level in (1, DELAYED_LEVEL) for i in range(20))
        assert Counter(m.body for m in stored) == expected
        late = [m for m in stored if m.body.startswith(b"5:")]
        assert all(m.store_timestamp_ms - m.born_timestamp_ms >= DELAY_MS for m in late)


def test_group_resumes_at_its_offsets_after_a_clean_restart(
    new_workbench: NewWorkbench, isolated_network: None
) -> None:
    with OurCluster(config=CONFIG) as cluster:
        clients = new_workbench(cluster)
        topic, group = clients.topic(queues=2), clients.group()
        first = clients.push(topic, group=group)
        for i in range(10):
            clients.producer.send(topic, f"before{i}")
        first.inbox.wait_count(10)
        # A pull in progress while offsets are stored could set an older one.
        time.sleep(0.5)
        clients.stop(first)
        cluster.restart(clean=True)
        send_until_accepted(clients.producer, topic, "after", until=time.monotonic() + RESUME_LIMIT_S)
        second = clients.push(topic, group=group)
        second.inbox.wait_count(1)
        time.sleep(0.5)
        assert all(m.body.startswith(b"after") for m in second.inbox.messages())
