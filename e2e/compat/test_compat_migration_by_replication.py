"""Migration by replication: a broker of the other kind follows the log and takes over under load, both ways."""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from harness import ports
from harness.brokers import HOST, OurCluster, OurSlave, RealCluster, RealSlave
from harness.clients import Producer, PushConsumer, Workbench
from harness.commitlog import delayed_messages, records, segments
from harness.driver import ClientError
from harness.waiting import until

LEVELS = "1s 2s 1s 1s 3s 4s 10s 1h"
CONFIG = {"messageDelayLevel": LEVELS, "mappedFileSizeCommitLog": str(64 << 10), "haSendHeartbeatInterval": "500"}
POLL_NAMESRV_MS = 500
QUEUES = 2
DELAYS = (None, 1, 2, 6)
"""Levels of the messages: none, 1 s, 2 s and 4 s, so that some are pending during the switchover."""

INTERVAL_S = 0.005
"""Pause between two sends: a load that two brokers and their clients can process on one machine."""

NewWorkbench = Callable[..., Workbench]


class Load:
    """Sends messages one at a time until it is stopped. Failed sends are not repeated."""

    def __init__(self, producer: Producer, topic: str, prefix: str) -> None:
        self.acknowledged: dict[str, float] = {}
        """Body → time of the response."""
        self.failed: set[str] = set()
        self._producer, self._topic, self._prefix = producer, topic, prefix
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(INTERVAL_S):
            body = f"{self._prefix}-{number}-{'x' * 1_000}"
            level = DELAYS[number % len(DELAYS)]
            number += 1
            try:
                fields = {} if level is None else {"delayLevel": level}
                sent = self._producer.send(self._topic, body, **fields)
                if sent.status == "SEND_OK":
                    self.acknowledged[body] = time.monotonic()
                else:
                    self.failed.add(body)  # stored, but perhaps not by the slave
            except ClientError:
                self.failed.add(body)
                time.sleep(0.05)

    def wait_for(self, more: int) -> None:
        """Wait until that many more messages have been acknowledged."""
        enough = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= enough, f"{more} more acknowledged messages")

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def longest_gap_s(self) -> float:
        times = sorted(self.acknowledged.values())
        return max(later - earlier for earlier, later in pairwise(times))


@contextmanager
def consumed(clients: Workbench, topic: str, prefix: str) -> Iterator[tuple[Load, PushConsumer]]:
    """Send messages that a group consumes, at the latest until the end of the context."""
    producer = clients.new_producer(pollNamesrvMs=POLL_NAMESRV_MS, retries=0)
    consumer = clients.push(topic, group=clients.group(), pollNamesrvMs=POLL_NAMESRV_MS)
    load = Load(producer, topic, prefix)
    try:
        yield load, consumer
    finally:
        load.stop()


def check(load: Load, consumer: PushConsumer) -> Counter[str]:
    """Wait until everything is consumed, and return how often each acknowledged message was."""
    consumer.inbox.wait_for(lambda got: {each.body.decode() for each in got} >= load.acknowledged.keys(), timeout_s=60)
    counts = Counter(each.body.decode() for each in consumer.inbox.messages())
    assert {body for body, count in counts.items() if count > 1} == set()
    assert counts.keys() <= load.acknowledged.keys() | load.failed
    return counts


def check_prefix(copy: Path, original: Path) -> None:
    """Check that a log is the beginning of another one, up to at most the last few records."""
    copied, stored = list(records(copy)), list(records(original))
    assert copied == stored[: len(copied)]
    assert len(stored) - len(copied) < 50
    complete = sorted(segments(copy))[:-1]
    assert {name: segments(copy)[name] for name in complete} == {name: segments(original)[name] for name in complete}


def take_over_files(former: Path, new: Path, *, with_log: bool = False) -> None:
    """Copy what a slave may lack, as in docs/migration.md."""
    for path in (former / "config").glob("*.json"):
        shutil.copy(path, new / "config" / path.name)
    for path in sorted((former / "commitlog").iterdir())[-3:] if with_log else ():
        shutil.copy(path, new / "commitlog" / path.name)


def test_delaymq_takes_over_from_rocketmq_under_load(new_workbench: NewWorkbench, isolated_network: None) -> None:
    with RealCluster(config=CONFIG) as real:
        clients = new_workbench(real)
        topic = clients.topic(queues=QUEUES)
        with consumed(clients, topic, "to-delaymq") as (load, consumer):
            load.wait_for(120)  # several segments, of which an empty slave of RocketMQ's receives the last one
            assert len(segments(real.store_path)) > 2
            with OurSlave(real) as ours:
                clients.mqadmin(
                    "updateBrokerConfig", "-b", real.broker_address, "-k", "brokerRole", "-v", "SYNC_MASTER"
                )
                load.wait_for(50)
                real.stop()
                assert ours.ask("plain-slaves")["master"]["problem"]
                ours.stop()
                check_prefix(ours.store_path, real.store_path)
                take_over_files(real.store_path, ours.store_path, with_log=True)
                ours.become_master()
                ours.start()
                load.wait_for(50)
                load.stop()
                check(load, consumer)
                print(f"interruption of sends: {load.longest_gap_s():.1f} s, failed: {len(load.failed)}")
                messages = delayed_messages(ours.store_path, LEVELS, real_topic=topic)
                assert {len(each.copies) for found in messages.values() for each in found} == {1}


def test_rocketmq_takes_over_from_delaymq_under_load(new_workbench: NewWorkbench, isolated_network: None) -> None:
    ha_port = str(ports.free_port())
    keys = {"haPlainSlaves": "true", "haPlainSlaveAddresses": HOST, "haListenPort": ha_port}
    with OurCluster(config={**CONFIG, **keys}, real_namesrv=True) as ours:
        clients = new_workbench(ours)
        topic = clients.topic(queues=QUEUES)
        with consumed(clients, topic, "to-rocketmq") as (load, consumer):
            load.wait_for(120)
            # With an address of its own, RocketMQ's slave connects 5 s earlier.
            with RealSlave(ours, config={"haMasterAddress": f"{HOST}:{ha_port}"}) as slave:
                until(
                    lambda: any(each["behindBytes"] == 0 for each in ours.ask("plain-slaves")["slaves"]),
                    "a copy of the log",
                )
                load.wait_for(50)
                ours.stop()
                assert segments(slave.store_path) == segments(ours.store_path)
                slave.stop()
                take_over_files(ours.store_path, slave.store_path)
                slave.become_master(slave.listen_port)
                slave.start()
                load.wait_for(50)
                load.stop()
                check(load, consumer)
                print(f"interruption of sends: {load.longest_gap_s():.1f} s, failed: {len(load.failed)}")
                messages = delayed_messages(slave.store_path, LEVELS, real_topic=topic)
                assert {len(each.copies) for found in messages.values() for each in found} == {1}
