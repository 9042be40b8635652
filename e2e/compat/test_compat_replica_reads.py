"""RocketMQ's consumers that lag read from a replica of a group, and continue there when it becomes the master."""

from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from typing import Any

import pytest
from harness.brokers import HOST
from harness.clients import Workbench
from harness.driver import Driver
from harness.pairs import OurPair
from harness.waiting import until

FIRST: dict[str, Any] = {"from": "CONSUME_FROM_FIRST_OFFSET"}
HURRIED: dict[str, Any] = {"pollNamesrvMs": 1_000, "heartbeatMs": 1_000}
CONFIG = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": "0", "brokerRole": "SYNC_MASTER"}
"""Every message counts as far behind, so one pull returns 8."""


@pytest.fixture
def pair(isolated_network: None) -> Iterator[OurPair]:
    pair = OurPair(config=CONFIG)
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


@pytest.mark.ours_only
@pytest.mark.timeout(240)  # five programs start
def test_lagging_consumer_reads_from_a_replica_and_continues_when_it_becomes_the_master(
    pair: OurPair, driver: Driver
) -> None:
    addresses: dict[str, Any] = {"namesrv_address": pair.namesrv_address, "broker_address": pair.broker_address}
    with closing(Workbench(driver, **addresses)) as clients:
        topic, group = clients.topic(queues=1), clients.group()
        replica_address = f"{HOST}:{pair.replica_port}"
        expected = {"0": pair.broker_address, "2": replica_address}
        until(lambda: clients.admin.route(topic)["brokerDatas"][0]["brokerAddrs"] == expected, "both addresses")
        for number in range(48):
            clients.producer.send(topic, str(number))
        until(lambda: pair.state("b")["confirmed"] == pair.state("a")["end"], "all messages on the replica")

        consumer = clients.push(topic, group=group, recordPulls=True, **HURRIED, **FIRST)
        consumer.inbox.wait_count(48, timeout_s=60)
        until(lambda: (replica_address, 48) in consumer.pulls(topic), "a pull at the replica's end")
        names = {pair.broker_address: "a", replica_address: "b"}
        pulls = [(names[address], offset) for (address, offset), _ in groupby(consumer.pulls(topic))]
        assert pulls == [("a", 0), *(("b", offset) for offset in range(8, 49, 8))]
        until(lambda: clients.admin.consumed(group)[topic, 0] == (48, 48), "the offset at the master")

        pair.broker.kill()
        promoted = {"0": replica_address}
        until(lambda: clients.admin.route(topic)["brokerDatas"][0]["brokerAddrs"] == promoted, "the promoted replica")
        # A producer would use its route to the former master until it polls the NameServer, 30 s later.
        with closing(Workbench(driver, **addresses | {"broker_address": replica_address})) as others:
            for number in range(48, 72):
                others.producer.send(topic, str(number))
        consumer.inbox.wait_count(72, timeout_s=60)
        assert sorted(int(message.body) for message in consumer.inbox.messages()) == list(range(72))
        assert all(offset >= 48 for _, offset in consumer.pulls(topic)[len(pulls) :])
