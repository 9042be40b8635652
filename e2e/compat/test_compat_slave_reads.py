"""Lagging consumers are directed to a slave, and return when it has no further messages or is gone.

The slave is RocketMQ's, with a copy of the master's store; it does not receive later messages.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import groupby
from typing import Any

import pytest
from harness import ports
from harness.brokers import HOST, Cluster
from harness.clients import Workbench
from harness.driver import Driver
from harness.name_servers import BrokerNode, Kind, NameServerNode
from harness.waiting import until

FIRST: dict[str, Any] = {"from": "CONSUME_FROM_FIRST_OFFSET"}
SENDS_AWAY = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": "0"}
"""Every message counts as far behind, so one pull returns 8 and suggests another broker."""
HURRIED: dict[str, Any] = {"pollNamesrvMs": 1_000, "heartbeatMs": 1_000}


@pytest.mark.timeout(300)  # four programs start, one at a time
def test_lagging_consumer_reads_from_slave_until_slave_has_no_more_or_is_gone(against: str, driver: Driver) -> None:
    kind: Kind = "ours" if against == "ours" else "real"
    with ExitStack() as stack:
        namesrv = stack.enter_context(NameServerNode(kind))
        master = stack.enter_context(BrokerNode(kind, [namesrv.address], config=SENDS_AWAY))
        addresses: dict[str, Any] = {"namesrv_address": namesrv.address, "broker_address": master.address}
        clients = stack.enter_context(closing(Workbench(driver, **addresses)))
        topic, group = clients.topic(queues=1), clients.group()
        send(clients, topic, 0, 24)
        slave = stack.enter_context(slave_of(master, namesrv))
        expected = {"0": master.address, "1": slave.address}
        until(lambda: clients.admin.route(topic)["brokerDatas"][0]["brokerAddrs"] == expected, "both addresses")
        send(clients, topic, 24, 48)

        consumer = clients.push(topic, group=group, recordPulls=True, **HURRIED, **FIRST)
        consumer.inbox.wait_count(48, timeout_s=60)
        names = {master.address: "master", slave.address: "slave"}
        until(lambda: (master.address, 48) in consumer.pulls(topic), "a pull at the end")
        # A pull that overtakes the heartbeat with its subscription is rejected and repeated.
        assert [(names[address], offset) for (address, offset), _ in groupby(consumer.pulls(topic))] == [
            ("master", 0),
            *(("slave", 8), ("slave", 16)),
            *(("slave", 24), ("master", 24)),  # the slave's end
            *(("slave", 32), ("master", 32)),  # beyond it
            *(("slave", 40), ("master", 40)),
            *(("slave", 48), ("master", 48)),
        ]

        slave.kill()
        send(clients, topic, 48, 72)
        came = consumer.inbox.wait_count(72, timeout_s=60)
        assert sorted(int(message.body) for message in came) == list(range(72))
        # The master stored the offsets, whichever broker returned the messages.
        until(lambda: clients.admin.consumed(group)[topic, 0] == (72, 72), "the offset at the master")


def slave_of(master: BrokerNode, namesrv: NameServerNode) -> BrokerNode:
    """Return a slave with a copy of the master's current store, and nothing to replicate from."""
    config = {**SENDS_AWAY, "brokerId": "1", "brokerRole": "SLAVE", "haMasterAddress": f"{HOST}:{ports.free_port()}"}
    config |= {"longPollingEnable": "false", "shortPollingTimeMills": "200"}
    slave = BrokerNode("real", [namesrv.address], config=config)
    # Includes lists of topics and groups: slaves fetch them only every 10 s. A file may be replaced meanwhile.
    copy = partial(shutil.copytree, master.store_path, slave.store_path, dirs_exist_ok=True)
    until(copy, "a copy of the master's store")
    return slave


def send(clients: Workbench, topic: str, begin: int, end: int) -> None:
    for number in range(begin, end):
        clients.producer.send(topic, str(number))


@pytest.fixture(scope="module")
def suggesting_cluster(new_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    with new_cluster(**SENDS_AWAY) as cluster:
        yield cluster


@pytest.fixture
def suggesting(suggesting_cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]) -> Iterator[Workbench]:
    clients = new_workbench(suggesting_cluster)
    yield clients
    for key, value in SENDS_AWAY.items():
        configure(clients, key, value)


def configure(clients: Workbench, key: str, value: str) -> None:
    clients.mqadmin("updateBrokerConfig", "-b", clients.broker_address, "-k", key, "-v", value)


def test_group_is_directed_to_the_brokers_of_its_settings(suggesting: Workbench) -> None:
    topic, group = suggesting.topic(queues=1), suggesting.group()
    suggesting.mqadmin("updateSubGroup", "-b", suggesting.broker_address, "-g", group, "-i", "3", "-w", "7")
    suggesting.producer.send(topic, "one", tags="other")
    consumer = suggesting.pull(group=group)

    def suggested(offset: int, status: str, expression: str = "*") -> int:
        assert consumer.pull(topic, 0, offset, expression=expression).status == status
        return consumer.next_broker_id(topic, 0)

    assert suggested(0, "FOUND") == 7
    assert suggested(0, "NO_MATCHED_MSG", "wanted") == 7
    assert suggested(1, "NO_NEW_MSG") == 3
    assert suggested(5, "OFFSET_ILLEGAL") == 3
    configure(suggesting, "accessMessageInMemoryMaxRatio", "40")
    assert suggested(0, "FOUND") == 3
    configure(suggesting, "accessMessageInMemoryMaxRatio", "0")
    assert suggested(0, "FOUND") == 7
    configure(suggesting, "slaveReadEnable", "false")
    assert suggested(0, "FOUND") == 0
    assert suggested(1, "NO_NEW_MSG") == 0


def test_group_without_settings_is_directed_to_first_slave_and_back_to_master(suggesting: Workbench) -> None:
    topic = suggesting.topic(queues=1)
    suggesting.producer.send(topic, "one")
    consumer = suggesting.pull(group=suggesting.group())
    consumer.pull(topic, 0, 0)
    assert consumer.next_broker_id(topic, 0) == 1
    consumer.pull(topic, 0, 1)
    assert consumer.next_broker_id(topic, 0) == 0
