"""Broker registration: compressed, only after changes, as a slave, from a new address.

NameServers and brokers of both kinds are combined: if one side is DelayMQ, the other is RocketMQ.
"""

import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from delaymq.protocol.errors import FastJsonError
from delaymq.protocol.fastjson import loads
from harness.clients import Workbench
from harness.driver import Driver
from harness.name_servers import BrokerNode, NameServerNode, Sides
from harness.recording_proxy import RecordingProxy
from harness.waiting import until

PERIOD = {"registerNameServerPeriod": "10000"}
"""The shortest interval that both brokers accept."""
REGISTER, QUERY_VERSION = 103, 322


@pytest.fixture(params=["broker", "namesrv"])
def sides(request: pytest.FixtureRequest, against: str) -> Sides:
    return Sides.of(request.param, against)


@pytest.mark.one_in(2)
def test_registrations_are_compressed_and_repeated_only_after_changes(sides: Sides, driver: Driver) -> None:
    with ExitStack() as stack:
        namesrv = stack.enter_context(NameServerNode(sides.namesrv))
        recorder = stack.enter_context(RecordingProxy(namesrv.port))
        config = {**PERIOD, "compressedRegister": "true", "forceRegister": "false"}
        broker = stack.enter_context(BrokerNode(sides.broker, [recorder.address], config=config))
        addresses: dict[str, Any] = {"namesrv_address": namesrv.address, "broker_address": broker.address}
        clients = stack.enter_context(closing(Workbench(driver, **addresses)))
        topic = clients.name("Topic")
        clients.admin.update_topic(topic, broker=broker.address, queues=5)
        found = until(lambda: clients.admin.route(topic), f"a route of {topic}")
        assert found["queueDatas"][0]["writeQueueNums"] == 5
        registered = [fields for code, fields in recorder.requests if code == REGISTER]
        assert {fields["compressed"] for fields in registered} == {"true"}

        asked_before = recorder.codes().count(QUERY_VERSION)
        until(lambda: recorder.codes().count(QUERY_VERSION) > asked_before, "a version query")
        time.sleep(0.5)  # if nothing changed, no registration follows
        assert recorder.codes().count(REGISTER) == len(registered)
        clients.admin.update_topic(topic, broker=broker.address, queues=6)
        until(lambda: clients.admin.route(topic)["queueDatas"][0]["writeQueueNums"] == 6, "the changed topic")


@pytest.mark.one_in(2)
def test_rocketmq_slave_finds_its_master_and_copies_its_tables(sides: Sides, driver: Driver) -> None:
    with ExitStack() as stack:
        namesrv = stack.enter_context(NameServerNode(sides.namesrv))
        master = stack.enter_context(BrokerNode(sides.broker, [namesrv.address], config=PERIOD))
        addresses: dict[str, Any] = {"namesrv_address": namesrv.address, "broker_address": master.address}
        clients = stack.enter_context(closing(Workbench(driver, **addresses)))
        topic, group = clients.topic(queues=2), clients.name("group")
        clients.mqadmin("updateSubGroup", "-b", master.address, "-g", group, "-r", "7")
        clients.producer.send(topic, "m0", queue_id=0)
        clients.producer.send(topic, "late", queue_id=0, delayLevel=1)
        reader = clients.pull(group=group)
        reader.commit(topic, 0, 1)

        config = {**PERIOD, "brokerId": "1", "brokerRole": "SLAVE"}
        slave = stack.enter_context(BrokerNode("real", [namesrv.address], config=config))
        expected = {"0": master.address, "1": slave.address}
        until(lambda: clients.admin.route(topic)["brokerDatas"][0]["brokerAddrs"] == expected, "both addresses")

        def copied(name: str) -> dict[str, Any]:
            try:
                tree = loads((slave.store_path / "config" / name).read_bytes())  # not valid JSON: keys are numbers
            except FastJsonError:
                return {}  # it is being written
            assert isinstance(tree, dict)
            return tree

        until(lambda: topic in copied("topics.json").get("topicConfigTable", {}), "the topics at the slave")
        groups = until(lambda: copied("subscriptionGroup.json"), "the groups at the slave")
        assert groups["subscriptionGroupTable"][group]["retryMaxTimes"] == 7
        offsets = until(lambda: copied("consumerOffset.json"), "the offsets at the slave")
        assert offsets["offsetTable"][f"{topic}@{group}"][0] == 1
        delays = until(lambda: copied("delayOffset.json"), "the positions of delays at the slave")
        assert "1" in map(str, delays["offsetTable"])


def test_broker_at_a_new_address_replaces_its_former_registration(against: str, driver: Driver, tmp_path: Path) -> None:
    """As after the move of a pod: the same name and another address, and the predecessor did not unregister.

    DelayMQ's NameServer requires proof that it is the same broker: both sign with the same account.
    """
    account, rules = tmp_path / "account.yml", tmp_path / "namesrv_acl.yml"
    account.write_text("accessKey: broker-a-account\nsecretKey: broker-a-secret\n")
    rules.write_text(
        "accounts:\n- accessKey: broker-a-account\n  secretKey: broker-a-secret\n  brokerNames: [broker-a]\n"
    )
    kind = Sides.of("namesrv", against).namesrv
    signing = {"namesrvAccountFile": str(account)}
    asking = {"namesrvAclConfigPath": str(rules)} if kind == "ours" else {}
    with ExitStack() as stack:
        namesrv = stack.enter_context(NameServerNode(kind, config=asking))
        first = stack.enter_context(BrokerNode("ours", [namesrv.address], config=signing))
        addresses: dict[str, Any] = {"namesrv_address": namesrv.address, "broker_address": first.address}
        clients = stack.enter_context(closing(Workbench(driver, **addresses)))
        until(lambda: clients.admin.route("TBW102"), "a route")
        second = stack.enter_context(BrokerNode("ours", [namesrv.address], config=signing))
        found = until(
            lambda: clients.admin.route("TBW102")["brokerDatas"][0]["brokerAddrs"] == {"0": second.address},
            "only the new address",
        )
        assert found
