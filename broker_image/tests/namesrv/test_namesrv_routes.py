"""Brokers register their topics with a NameServer, and clients get routes."""

import pytest
from delaymq.namesrv import routes as routes_module
from delaymq.protocol.bodies import ClusterInfo, TopicConfig, TopicList
from delaymq_testing.namesrv_world import World, limited


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("compressed", [False, True])
def test_registered_topic_has_a_route(world: World, compressed: bool) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    answer = broker.register(TopicConfig("T", 4, 8, 6), compressed=compressed)
    assert (answer.code, answer.fields, answer.body) == (0, {}, b"")
    assert world.route("T") == {
        "brokerDatas": [{"brokerAddrs": {"0": "10.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "C"}],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 8}
        ],
    }


def test_unknown_topic_gets_code_17(world: World) -> None:
    world.broker().register("T")
    answer = world.ask(105, {"topic": "other"})
    assert answer.code == 17
    assert answer.remark is not None
    assert answer.remark.startswith("No topic route info in name server for the topic: other")


def test_body_with_a_wrong_checksum_is_rejected(world: World) -> None:
    answer = world.broker().register("T", crc32=12345)
    assert answer.code == 1
    assert "crc32 not match" in (answer.remark or "")
    assert world.route("T") is None


def test_partial_registration_adds_and_removes_nothing(world: World) -> None:
    broker = world.broker()
    broker.register("T1", "T2", version=1)
    broker.register("T3", version=2)
    assert world.topics() == ["T1", "T2", "T3"]


def test_topics_are_updated_only_with_a_changed_data_version(world: World) -> None:
    broker = world.broker()
    broker.register(TopicConfig("T", 4, 4), version=1)
    broker.register(TopicConfig("T", 9, 9), version=1)
    route = world.route("T")
    assert route is not None
    assert route["queueDatas"][0]["readQueueNums"] == 4
    broker.register(TopicConfig("T", 9, 9), version=2)
    route = world.route("T")
    assert route is not None
    assert route["queueDatas"][0]["readQueueNums"] == 9


def test_slave_gets_its_masters_addresses_and_registers_no_topics(world: World) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    slave = world.broker(address="10.0.0.2:10911", broker_id=1)
    answer = slave.register("Only on the slave".replace(" ", "_"))
    assert answer.fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
    assert world.topics() == ["T"]
    route = world.route("T")
    assert route is not None
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}


def test_promoted_slave_keeps_one_address(world: World) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    slave = world.broker(address="10.0.0.2:10911", broker_id=1)
    slave.register()
    world.now_ms += 45_000
    slave.broker_id = 0
    slave.register("T")
    route = world.route("T")
    assert route is not None
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.2:10911"}


def test_illegal_topic_names_in_a_registration_are_ignored(world: World) -> None:
    world.broker().register("good", "bad name", "")
    assert world.topics() == ["good"]


@pytest.mark.parametrize("missing", ["brokerName", "brokerAddr", "clusterName", "brokerId", "haServerAddr"])
def test_registration_without_a_name_is_rejected(world: World, missing: str) -> None:
    fields = world.broker().names() | {"haServerAddr": "x"}
    del fields[missing]
    answer = world.ask(103, fields)
    assert answer.code == 1
    assert missing in (answer.remark or "")


def test_excess_brokers_and_topics_are_rejected(world: World) -> None:
    limited(world.server.routes.broker_shares, 1)
    limited(world.server.routes.topic_shares, 2)
    assert world.broker("a").register("T1").code == 0
    assert world.broker("b").register("T1").code == 1
    assert world.broker("a").register("T2", "T3", version=2).code == 1


def test_topics_of_all_brokers_are_limited_and_capacity_is_released(world: World) -> None:
    limited(world.server.routes.route_shares, 3)
    first, second = world.broker("a"), world.broker("b")
    assert first.register("T1", "T2").code == 0
    assert second.register("T1", "T2").code == 1
    assert second.register("T1", version=2).code == 0
    first.unregister()
    assert second.register("T1", "T2", "T3", version=3).code == 0
    world.ask(216, {"topic": "T3"})
    assert world.broker("a").register("T1", "T2").code == 1
    assert world.permissions("T1") == {"b": 6}


def test_replication_address_of_excessive_length_is_dropped(world: World) -> None:
    answer = world.ask(103, world.broker().names() | {"haServerAddr": "x" * 256})
    assert answer.code == 1
    assert "haServerAddr must have at most 255 characters" in (answer.remark or "")


def test_many_expired_brokers_are_dropped_in_bounded_numbers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "MAX_EXPIRED_PER_SLICE", 2)
    for name in "abcde":
        world.broker(name).register(f"Topic{name}", "Shared")
    world.now_ms += 120_001
    assert [len(world.server.expire()) for _ in range(4)] == [2, 2, 1, 0]
    assert world.topics() == []


def test_write_permission_is_wiped_and_added(world: World) -> None:
    broker = world.broker()
    broker.register("T1", TopicConfig("T2", perm=7))
    assert world.ask(205, {"brokerName": "broker-a"}).fields == {"wipeTopicCount": "2"}
    assert world.permissions("T1") == {"broker-a": 4}
    assert world.permissions("T2") == {"broker-a": 5}
    broker.register("T1", version=1)
    assert world.permissions("T1") == {"broker-a": 4}
    assert world.ask(327, {"brokerName": "broker-a"}).fields == {"addTopicCount": "2"}
    assert world.permissions("T2") == {"broker-a": 6}
    assert world.ask(205, {"brokerName": "nobody"}).fields == {"wipeTopicCount": "0"}


def test_restarted_broker_regains_its_wiped_permission(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    world.ask(205, {"brokerName": "broker-a"})
    broker.disconnect()
    broker.register("T")
    assert world.permissions("T") == {"broker-a": 6}


def test_topics_are_deleted_everywhere_or_in_one_cluster(world: World) -> None:
    world.broker("broker-a", cluster="C1").register("T", "U")
    world.broker("broker-b", cluster="C2").register("T", "U")
    world.ask(216, {"topic": "T", "clusterName": "C1"})
    assert world.permissions("T") == {"broker-b": 6}
    world.ask(216, {"topic": "U"})
    assert world.route("U") is None
    assert world.ask(216, {"topic": "never was"}).code == 0


def test_topic_lists(world: World) -> None:
    world.broker("broker-a", cluster="C1").register("T", TopicConfig("unit", topic_sys_flag=1))
    world.broker("broker-b", cluster="C2", address="10.0.0.2:10911").register(
        "T", TopicConfig("sub", topic_sys_flag=2), TopicConfig("both", topic_sys_flag=3)
    )
    assert world.topics(206) == ["T", "both", "sub", "unit"]
    assert world.topics(224, cluster="C1") == ["T", "unit"]
    assert world.topics(224, cluster="nowhere") == []
    assert world.topics(304) == ["C1", "C2", "broker-a", "broker-b"]
    assert TopicList.decode(world.ask(304).body).broker_addr == world.broker("broker-a").address
    assert world.topics(311) == ["both", "unit"]
    assert world.topics(312) == ["both", "sub"]
    assert world.topics(313) == ["sub"]


def test_cluster_info(world: World) -> None:
    world.broker("broker-a", address="10.0.0.1:10911").register("T")
    world.broker("broker-a", address="10.0.0.2:10911", broker_id=1).register()
    world.broker("broker-b", address="10.0.0.3:10911").register("T")
    info = ClusterInfo.decode(world.ask(106).body)
    assert info.cluster_addr_table == {"C": ["broker-a", "broker-b"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
