"""RocketMQ's producer, consumer and `mqadmin` with two broker groups of one `delaymq standalone`."""

import time
from collections.abc import Callable

import pytest
from harness.brokers import CLUSTER_NAME, Cluster, OurCluster
from harness.clients import Workbench

pytestmark = pytest.mark.ours_only

NAMES = {"broker-a", "broker-a-1"}
MESSAGES = 32


def test_clients_use_all_groups_and_each_delayed_message_arrives_once(
    new_workbench: Callable[[Cluster], Workbench],
) -> None:
    with OurCluster(config={"messageDelayLevel": "1s 2s"}, arguments=("--groups", "2")) as cluster:
        clients = new_workbench(cluster)
        done = clients.mqadmin("updateTopic", "-c", CLUSTER_NAME, "-t", "Both")
        assert done.count("create topic to") == len(NAMES), done
        clients.wait_for_route("Both", queues=16)
        consumer = clients.push("Both", group="readers")
        sent = [clients.producer.send("Both", f"{i}", delayLevel=1 + i % 2) for i in range(MESSAGES)]
        assert {each.broker_name for each in sent} == NAMES
        consumer.inbox.wait_count(MESSAGES)
        time.sleep(1)  # a duplicate would arrive soon afterwards
        assert sorted(int(m.body) for m in consumer.inbox.messages()) == list(range(MESSAGES))
