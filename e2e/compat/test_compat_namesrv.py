"""NameServers and brokers of both kinds combined: if one side is DelayMQ, the other is RocketMQ.

With ``--against real``, both sides are RocketMQ.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest
from harness.clients import AdminClient, Workbench
from harness.driver import Driver
from harness.name_servers import BrokerNode, NameServerNode, Sides
from harness.recording_proxy import RecordingProxy
from harness.waiting import until

PERIOD = {"registerNameServerPeriod": "10000"}
"""The shortest interval that both brokers accept."""
REGISTER = 103


@pytest.fixture(scope="module", params=["broker", "namesrv"])
def sides(request: pytest.FixtureRequest, against: str) -> Sides:
    return Sides.of(request.param, against)


@dataclass
class Place:
    """Two NameServers, a broker that reaches them through recorders, and clients of each of them and of both."""

    namesrvs: list[NameServerNode]
    recorders: list[RecordingProxy]
    broker: BrokerNode
    clients: list[Workbench]
    """Clients of the first, of the second, and of both NameServers."""


@pytest.fixture(scope="module")
def place(sides: Sides, driver: Driver) -> Iterator[Place]:
    with ExitStack() as stack:
        namesrvs = [stack.enter_context(NameServerNode(sides.namesrv)) for _ in range(2)]
        recorders = [stack.enter_context(RecordingProxy(each.port)) for each in namesrvs]
        broker = BrokerNode(sides.broker, [each.address for each in recorders], config=PERIOD)
        stack.enter_context(broker)
        clients = [
            stack.enter_context(closing(Workbench(driver, namesrv_address=asked, broker_address=broker.address)))
            for asked in (*(each.address for each in namesrvs), ";".join(each.address for each in namesrvs))
        ]
        yield Place(namesrvs, recorders, broker, clients)


def topics_of(admin: AdminClient, broker: BrokerNode) -> dict[str, Any]:
    """Return the broker's own topic table."""
    return dict(admin.ask("getAllTopicConfig", broker.address, 5000)["topicConfigTable"])


@pytest.mark.one_in(2)
def test_broker_registers_with_every_name_server(place: Place) -> None:
    topic = place.clients[0].name("Topic")
    place.clients[0].admin.update_topic(topic, broker=place.broker.address, queues=3)
    for clients in place.clients[:2]:
        found = until(lambda admin=clients.admin: admin.route(topic), f"a route of {topic}")
        assert found["brokerDatas"][0]["brokerAddrs"] == {"0": place.broker.address}
        assert [(each["brokerName"], each["readQueueNums"], each["perm"]) for each in found["queueDatas"]] == [
            ("broker-a", 3, 6)
        ]
    for recorder in place.recorders:
        assert recorder.codes().count(REGISTER) >= 2
        code, fields = recorder.requests[0]
        assert code == REGISTER
        assert fields["haServerAddr"] == place.broker.ha_address
        assert fields["brokerId"] == "0"


def test_name_server_decides_which_topics_are_ordered(place: Place) -> None:
    both = place.clients[2]
    topic = both.name("Ordered")
    both.admin.update_topic(topic, broker=place.broker.address)
    both.wait_for_route(topic, queues=4)
    both.admin.ask("updateNameServerConfig", {"orderMessageEnable": "true"}, None)
    both.admin.ask("createOrUpdateOrderConf", topic, "broker-a:2", True)
    # A broker receives it with the response to its next registration, as when a topic is created.
    both.admin.update_topic(both.name("Another"), broker=place.broker.address)
    until(lambda: topics_of(both.admin, place.broker)[topic]["order"], f"the broker's {topic} is ordered")
    assert both.admin.route(topic)["orderTopicConf"] == "broker-a:2"
    producer = both.new_producer()
    assert producer.queue_ids(topic) == [0, 1]
    sent = producer.send(topic, "ordered")
    assert sent.queue_id in (0, 1)

    both.admin.ask("deleteKvConfig", "ORDER_TOPIC_CONFIG", topic)
    both.admin.update_topic(both.name("Another"), broker=place.broker.address)
    until(lambda: not topics_of(both.admin, place.broker)[topic]["order"], f"{topic} is no longer ordered")


@pytest.mark.one_in(2)
def test_clients_and_broker_survive_a_name_server_failure_and_reconnect(place: Place) -> None:
    both = place.clients[2]
    topic = both.name("Topic")
    both.admin.update_topic(topic, broker=place.broker.address, queues=2)
    until(lambda: place.clients[1].admin.route(topic), f"a route of {topic}")
    place.namesrvs[0].kill()
    producer = both.new_producer(retries=5)
    until(lambda: producer.queue_ids(topic), f"a route of {topic} from the other NameServer")
    assert producer.send(topic, "sent").status == "SEND_OK"
    place.namesrvs[0].start()
    first = place.clients[0]
    until(lambda: first.admin.route(topic), "the broker at the restarted NameServer")
