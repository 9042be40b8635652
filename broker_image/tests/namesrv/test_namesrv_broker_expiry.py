"""Brokers disconnect, return, and send heartbeats."""

import pytest
from delaymq.config import NamesrvConfig
from delaymq.protocol.bodies import DataVersion, TopicConfig
from delaymq_testing.namesrv_world import BrokerPeer, World


@pytest.fixture
def world() -> World:
    return World()


def test_routes_stay_for_the_grace_period_after_a_disconnect(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    broker.disconnect()
    world.now_ms += 14_999
    world.server.expire()
    assert world.permissions("T") == {"broker-a": 6}
    world.now_ms += 1
    world.server.expire()
    assert world.route("T") is None
    assert world.topics() == []


def test_end_of_the_grace_period_is_known(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    assert world.server.next_expiry_ms() is None
    broker.disconnect()
    assert world.server.next_expiry_ms() == world.now_ms + 15_000
    broker.register("T")
    assert world.server.next_expiry_ms() is None


def test_disconnect_drops_the_routes_immediately_without_grace() -> None:
    world = World(config=NamesrvConfig(kv_config_path="", route_grace_ms=0))
    broker = world.broker()
    broker.register("T")
    broker.disconnect()
    assert world.route("T") is None


def test_disconnected_slave_is_dropped_immediately(world: World) -> None:
    def addresses() -> object:
        route = world.route("T")
        return route and route["brokerDatas"][0]["brokerAddrs"]

    world.broker(address="10.0.0.1:10911").register("T")
    slave = world.broker(address="10.0.0.2:10911", broker_id=1)
    slave.register("T")
    slave.disconnect()
    assert addresses() == {"0": "10.0.0.1:10911"}
    assert world.server.next_expiry_ms() is None
    slave.register("T")
    assert addresses() == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}


def test_disconnected_broker_loses_write_permission_while_another_accepts_writes(world: World) -> None:
    first, second = world.broker("broker-a"), world.broker("broker-b")
    first.register("shared", "alone")
    second.register("shared")
    first.disconnect()
    assert world.permissions("shared") == {"broker-a": 4, "broker-b": 6}
    assert world.permissions("alone") == {"broker-a": 6}
    first.register("shared", "alone")
    assert world.permissions("shared") == {"broker-a": 6, "broker-b": 6}


@pytest.mark.parametrize("other", ["away too", "read only", "slave only"])
def test_write_permission_stays_if_no_other_broker_accepts_writes(world: World, other: str) -> None:
    first, second = world.broker("broker-a"), world.broker("broker-b")
    first.register("T")
    if other == "slave only":
        second.register("T")
        second.unregister()
        world.broker("broker-b", address="10.0.0.77:10911", broker_id=1).register()
    else:
        second.register(TopicConfig("T", perm=4 if other == "read only" else 6))
    if other == "away too":
        second.disconnect()
    first.disconnect()
    assert world.permissions("T")["broker-a"] == 6


def test_withheld_permission_is_never_stored(world: World) -> None:
    first, second = world.broker("broker-a"), world.broker("broker-b")
    first.register("T")
    second.register("T")
    first.disconnect()
    assert world.permissions("T")["broker-a"] == 4
    second.unregister()
    assert world.permissions("T") == {"broker-a": 6}


def test_broker_reregistered_over_a_new_connection_survives_the_old_ones_end(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    old = broker.peer
    broker.peer = world.peer()
    broker.register("T")
    world.server.session_closed(old)
    world.now_ms += 20_000
    world.server.expire()
    assert world.permissions("T") == {"broker-a": 6}


def test_unregistering_drops_the_routes_immediately(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    assert broker.unregister().code == 0
    assert world.route("T") is None
    assert world.server.routes.groups == {}
    assert broker.unregister().code == 0


def test_silent_broker_expires_after_two_minutes_and_its_session_is_named(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    world.now_ms += 120_000
    assert world.server.expire() == []
    world.now_ms += 1
    assert world.server.expire() == [broker.peer.id]
    assert world.route("T") is None


def test_broker_at_a_new_address_replaces_the_old_one(world: World) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    world.now_ms += 45_000
    world.broker(address="10.0.0.2:10911").register("T")
    world.now_ms += 85_000
    route = world.route("T")
    assert route is not None
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.2:10911"}


def test_address_taken_over_by_another_broker_leaves_no_trace_of_the_first(world: World) -> None:
    world.broker("broker-a", address="10.0.0.1:10911").register("T1")
    world.now_ms += 45_000
    world.broker("broker-b", address="10.0.0.1:10911").register("T2")
    assert world.topics() == ["T2"]
    assert list(world.server.routes.groups) == ["broker-b"]


def query_version(broker: BrokerPeer, version: int) -> tuple[str, bytes]:
    answer = broker.world.ask(322, broker.names(), DataVersion(version, 7).encode(), broker.peer)
    return answer.fields["changed"], answer.body


def test_unchanged_data_version_is_a_heartbeat(world: World) -> None:
    broker = world.broker()
    assert query_version(broker, 1) == ("true", b"")
    broker.register("T", version=1)
    world.now_ms += 100_000
    changed, body = query_version(broker, 1)
    assert changed == "false"
    assert DataVersion.decode(body) == DataVersion(1, 7)
    assert query_version(broker, 2)[0] == "true"
    world.now_ms += 100_000
    assert world.server.expire() == []


def test_disconnected_broker_must_register_again(world: World) -> None:
    broker = world.broker()
    broker.register("T", version=1)
    broker.disconnect()
    assert query_version(broker, 1)[0] == "true"
