"""Without rules, a broker's name and address are reserved for 45 s after each registration."""

import pytest
from delaymq_testing.namesrv_world import BrokerPeer, World, limited

HELD_MS = 45_000


@pytest.fixture
def world() -> World:
    return World()


def addresses(world: World, topic: str = "T") -> dict[str, str]:
    route = world.route(topic)
    return {} if route is None else route["brokerDatas"][0]["brokerAddrs"]


def other(world: World, name: str = "broker-a", **options: object) -> BrokerPeer:
    """A second broker, at another address and from another host."""
    return world.broker(name, **({"address": "10.0.0.66:10911", "host": "10.0.0.66"} | options))


def test_name_moves_to_another_address_45_s_after_the_last_registration(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    broker.register("T")
    world.now_ms += HELD_MS - 1
    answer = other(world).register("T", version=9)
    assert answer.code == 1
    assert answer.remark == (
        "broker broker-a (id 0) is registered at 10.0.0.1:10911: change this broker's brokerName, or stop the other"
        " one; the name is free 45 s after its last registration"
    )
    assert addresses(world) == {"0": "10.0.0.1:10911"}
    assert world.server.refused["owner"] == 1
    world.now_ms += 1
    assert other(world).register("T", version=9).code == 0
    assert addresses(world) == {"0": "10.0.0.66:10911"}


def test_each_registration_and_query_extends_the_name_for_45_s(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    broker.register("T")
    for code in (103, 322):
        world.now_ms += HELD_MS - 1
        if code == 103:
            broker.register("T")
        else:
            table = world.server.routes.live["10.0.0.1:10911"].data_version
            assert broker.ask(322, broker.names(), table.encode()).fields == {"changed": "false"}
        world.now_ms += HELD_MS - 1
        assert other(world).register("T").code == 1, code


def test_query_over_another_connection_is_no_heartbeat(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    broker.register("T")
    table = world.server.routes.live["10.0.0.1:10911"].data_version
    world.now_ms += HELD_MS
    world.ask(322, broker.names(), table.encode(), world.peer())
    assert other(world).register("T").code == 0
    assert world.server.routes.live["10.0.0.66:10911"].seen_ms == world.now_ms


def test_broker_at_its_own_address_is_accepted_from_any_host_immediately(world: World) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    moved = world.broker(address="10.0.0.1:10911", host="10.0.7.7")
    assert moved.register("T", "T2", version=2).code == 0
    assert world.topics() == ["T", "T2"]


def test_unregistered_broker_releases_its_name_immediately(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    broker.register("T")
    assert broker.unregister().code == 0
    assert other(world).register("T").code == 0


@pytest.mark.parametrize("fields", [{}, {"brokerAddr": "10.0.0.66:10911"}, {"brokerId": "7"}, {"brokerName": "other"}])
def test_only_the_registering_connection_may_unregister(world: World, fields: dict[str, str]) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    broker.register("T")
    stranger = other(world)
    answer = stranger.ask(104, broker.names() | fields)
    assert answer.code == 1
    assert "registered over another connection" in str(answer.remark)
    assert addresses(world) == {"0": "10.0.0.1:10911"}
    assert stranger.register("T").code == 1


@pytest.mark.parametrize(("name", "broker_id"), [("other", 0), ("broker-a", 1)])
def test_address_is_not_taken_from_its_first_name(world: World, name: str, broker_id: int) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    answer = other(world, name, address="10.0.0.1:10911", broker_id=broker_id).register("T")
    assert answer.code == 1
    assert "10.0.0.1:10911 is the address of broker broker-a (id 0)" in str(answer.remark)
    assert other(world).register("T").code == 1
    assert addresses(world) == {"0": "10.0.0.1:10911"}


def test_slave_promoted_on_its_connection_keeps_its_address(world: World) -> None:
    slave = world.broker(address="10.0.0.2:10911", broker_id=1)
    slave.register()
    slave.broker_id = 0
    assert slave.register("T").code == 0
    assert addresses(world) == {"0": "10.0.0.2:10911"}


def test_slave_does_not_change_the_cluster_of_its_name(world: World) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    other(world, broker_id=1, cluster="Theirs").register("T")
    assert world.server.routes.groups["broker-a"].cluster == "C"


def test_unauthenticated_epoch_is_ignored(world: World) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    assert other(world, more={"epoch": "9"}).register("T").code == 1
    assert world.broker(address="10.0.0.1:10911", more={"epoch": "9"}).register("T").code == 0
    assert world.broker(address="10.0.0.1:10911").register("T").code == 0


TOKENS = {"groupTokens": "0123456789abcdef" * 2 + "," + "f" * 32}


def member(world: World, number: int, epoch: int, tokens: dict[str, str] = TOKENS) -> BrokerPeer:
    address = f"10.0.0.{number}"
    return world.broker(address=f"{address}:10911", host=address, more={"epoch": str(epoch), **tokens})


def test_promoted_member_replaces_the_master_of_its_group_immediately(world: World) -> None:
    first = member(world, 1, 1)
    first.register("T")
    assert member(world, 2, 2, {"groupTokens": "f" * 32}).register("T").code == 0
    assert addresses(world) == {"0": "10.0.0.2:10911"}
    answer = first.register("T")
    assert answer.code == 1
    assert "is registered with epoch 2: a replica was promoted" in str(answer.remark)
    assert member(world, 3, 2).register("T").code == 1


def test_promoted_replica_moves_its_address_to_the_id_of_the_master(world: World) -> None:
    member(world, 1, 1).register("T")
    replica = member(world, 2, 1)
    replica.broker_id = 2
    assert replica.register().code == 0
    assert addresses(world) == {"0": "10.0.0.1:10911", "2": "10.0.0.2:10911"}
    assert member(world, 2, 1).register("T").code == 1, "in the same epoch"
    assert member(world, 2, 2).register("T").code == 0
    assert addresses(world) == {"0": "10.0.0.2:10911"}
    former = member(world, 1, 2)
    former.broker_id = 1
    assert former.register().code == 0
    assert addresses(world) == {"0": "10.0.0.2:10911", "1": "10.0.0.1:10911"}
    assert world.broker("other", address="10.0.0.1:10911", more={"epoch": "9", **TOKENS}).register("T").code == 1


@pytest.mark.parametrize("tokens", [{}, {"groupTokens": ""}, {"groupTokens": "e" * 32}])
def test_stranger_takes_over_no_group(world: World, tokens: dict[str, str]) -> None:
    member(world, 1, 3).register("T")
    assert member(world, 66, 9, tokens).register("T").code == 1
    assert member(world, 1, 9, tokens).register("T").code == 1
    assert member(world, 66, 9, tokens).register("T").code == 1
    assert member(world, 2, 4).register("T").code == 0


def test_stranger_that_repeats_a_registration_makes_no_group_of_it(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911", host="10.0.0.1")
    broker.register("T")
    repeated = world.broker(address="10.0.0.1:10911", host="10.0.0.66", more={"epoch": "1", **TOKENS})
    assert repeated.register("T").code == 0
    assert member(world, 66, 2).register("T").code == 1
    assert broker.register("T").code == 0


def test_broker_that_gets_replicas_becomes_the_master_of_its_group(world: World) -> None:
    world.broker(address="10.0.0.1:10911", host="10.0.0.1").register("T")
    world.now_ms += HELD_MS
    restarted = member(world, 1, 1)
    restarted.register("T")
    assert member(world, 2, 2).register("T").code == 0


@pytest.mark.parametrize("tokens", ["x" * 32, "a" * 31, ",".join(str(n) * 32 for n in range(5)), "A" * 32])
def test_invalid_tokens_are_rejected(world: World, tokens: str) -> None:
    answer = member(world, 1, 1, {"groupTokens": tokens}).register("T")
    assert answer.code == 1
    assert answer.remark == "groupTokens must have at most 4 tokens of 32 hexadecimal digits"


def test_time_is_measured_by_a_monotonic_clock(world: World) -> None:
    wall_ms = [10_000_000]
    world.server.now_ms = lambda: wall_ms[0]
    world.broker(address="10.0.0.1:10911").register("T")
    for step_ms in (3_600_000, -7_200_000):
        wall_ms[0] += step_ms
        assert other(world).register("T").code == 1
    world.now_ms += HELD_MS
    assert other(world).register("T").code == 0


def test_broker_registering_each_minute_keeps_its_name_in_between(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    for _ in range(3):
        broker.register("T")
        world.now_ms += 60_000
    assert other(world).register("T").code == 1
    broker.register("T", "T2", version=2)
    world.now_ms += 89_999
    assert other(world).register("T").code == 1
    world.now_ms += 1
    assert other(world).register("T").code == 0


def test_replayed_registration_is_ended_neither_by_104_nor_by_closing(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    broker.register("T")
    stranger = world.broker(address="10.0.0.1:10911", host="10.0.0.66")
    assert stranger.register("T", version=2).code == 0
    assert stranger.unregister().code == 1
    stranger.disconnect()
    world.now_ms += 15_000
    world.server.expire()
    assert addresses(world) == {"0": "10.0.0.1:10911"}
    world.now_ms += 15_000
    broker.register("T")
    world.now_ms += HELD_MS - 30_000
    assert broker.unregister().code == 0
    assert addresses(world) == {}


def test_reconnected_broker_may_unregister_over_its_new_connection(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    broker.register("T")
    broker.disconnect()
    broker.register("T")
    assert broker.unregister().code == 0


@pytest.mark.parametrize("shares", ["topic_shares", "route_shares"])
def test_rejected_registration_leaves_nothing(world: World, shares: str) -> None:
    limited(getattr(world.server.routes, shares), 1)
    world.broker("broker-a", address="10.0.0.1:10911").register("T1")
    assert other(world, "broker-b").register("T1", "T2").code == 1
    routes = world.server.routes
    assert (set(routes.groups), set(routes.live)) == ({"broker-a"}, {"10.0.0.1:10911"})


@pytest.mark.parametrize(
    "fields", [{"brokerId": "-1"}, {"clusterName": "C\x1b[2J"}, {"haServerAddr": "a\nb"}, {"epoch": "-1"}]
)
def test_impossible_registration_is_rejected(world: World, fields: dict[str, str]) -> None:
    broker = world.broker(address="10.0.0.1:10911", more=fields)
    assert broker.register("T").code == 1
    assert world.topics() == []


def test_claims_of_disconnected_brokers_are_limited_and_expire(world: World) -> None:
    limited(world.server.ownership.shares, 2)
    brokers = [world.broker(name, address=f"10.0.1.{number}:1") for number, name in enumerate("abc")]
    for broker in brokers[:2]:
        broker.register("T")
        broker.disconnect()
    answer = brokers[2].register("T")
    assert (answer.code, answer.remark) == (1, "the limit of 2 brokers of the last minute is reached")
    assert brokers[0].register("T").code == 0
    world.now_ms += HELD_MS
    assert brokers[2].register("T").code == 0


# Repeated registrations


@pytest.mark.parametrize("fields", [{}, {"brokerName": "theirs"}, {"brokerId": "7"}])
def test_replay_during_a_reconnect_cannot_end_the_registration(world: World, fields: dict[str, str]) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    broker.register("T")
    broker.disconnect()
    stranger = world.broker(address="10.0.0.1:10911", host="10.0.0.66")
    assert stranger.register("T").code == 0
    assert stranger.ask(104, broker.names() | fields).code == 1
    assert stranger.ask(103, broker.names() | {"haServerAddr": ""} | fields).code == (1 if fields else 0)
    broker.register("T")
    world.now_ms += HELD_MS - 1
    broker.register("T")
    assert stranger.unregister().code == 1, "two connections say that it is there"
    stranger.disconnect()
    world.now_ms += 20_000
    world.server.expire()
    assert addresses(world) == {"0": "10.0.0.1:10911"}


def test_replays_do_not_shorten_the_reservation_of_a_name(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911")
    stranger = world.broker(address="10.0.0.1:10911", host="10.0.0.66")
    broker.register("T")
    world.now_ms += 60_000
    broker.register("T")
    for _ in range(3):
        world.now_ms += 25_000
        stranger.register("T")
        world.now_ms += 35_000
        broker.register("T")
    world.now_ms += 59_999
    assert other(world).register("T").code == 1, "its next registration is due"


def test_replay_for_a_disconnected_broker_keeps_its_routes(world: World) -> None:
    # Nothing tells this from a broker that comes back from another host, such as a pod that moved.
    broker = world.broker(address="10.0.0.1:10911")
    broker.register("T")
    broker.disconnect()
    moved = world.broker(address="10.0.0.1:10911", host="10.0.0.66")
    moved.register("T")
    world.now_ms += 120_000
    world.server.expire()
    assert addresses(world) == {"0": "10.0.0.1:10911"}
    world.now_ms += 1
    world.server.expire()
    assert addresses(world) == {}, "an open connection alone keeps nothing"


def test_promoted_slave_may_reconnect_immediately(world: World) -> None:
    broker = world.broker(address="10.0.0.2:10911", broker_id=1)
    broker.register()
    broker.broker_id = 0
    broker.register("T")
    broker.disconnect()
    assert broker.register("T").code == 0


def test_stranger_of_the_same_ipv6_network_is_another_host(world: World) -> None:
    broker = world.broker(address="10.0.0.1:10911", host="2001:db8::1")
    broker.register("T")
    broker.disconnect()
    stranger = world.broker(address="10.0.0.1:10911", host="2001:db8::2")
    stranger.register("T")
    assert stranger.unregister().code == 1
    broker.register("T")
