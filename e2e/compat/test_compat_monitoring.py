"""mqadmin startMonitoring: periodic monitoring of all groups while its process runs."""

from collections.abc import Iterator

import pytest
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import Driver
from harness.waiting import until

MONITORS = "__MONITOR_CONSUMER"
RECORDS = "OFFSET_MOVED_EVENT"


@pytest.fixture
def monitor(cluster: Cluster) -> Iterator[Driver]:
    """Provide a separate JVM, since the monitoring ends only with its process."""
    with Driver() as driver:
        yield driver


def test_monitor_receives_offset_events_and_checks_groups(
    cluster: Cluster, clients: Workbench, monitor: Driver
) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)
    clients.producer.send(topic, "m")
    clients.push(topic, group=group).inbox.wait_count(1)
    until(lambda: (topic, 0) in clients.admin.consumed(group), "the group's offsets")
    assert "Exception" not in monitor.mqadmin("startMonitoring", "-n", cluster.namesrv_address)
    until(lambda: clients.admin.consumers(MONITORS), "the monitor's consumer")
    members = clients.mqadmin("consumerConnection", "-g", MONITORS)
    assert RECORDS in members

    reports = monitor.call("monitor.round", namesrv=cluster.namesrv_address)
    undone = {(each["consumerGroup"], each["topic"]): each for each in reports["undone"]}
    assert undone[(group, topic)]["undoneMsgsTotal"] == 0
    assert group in reports["running"]
