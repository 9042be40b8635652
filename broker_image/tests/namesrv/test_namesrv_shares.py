"""A host takes a limited share of a NameServer's tables, and none reserved for signed registrations."""

from pathlib import Path

import pytest
from delaymq.config import NamesrvConfig
from delaymq.message.ids import network_of, pack_host
from delaymq.namesrv.links import Links
from delaymq.namesrv.shares import SIGNED, Shares
from delaymq.protocol.bodies import TopicConfig
from delaymq_testing.namesrv_world import BrokerPeer, World, limited

RULES = """\
accounts:
- accessKey: account-of-a
  secretKey: secret-of-a
  brokerNames: [signed]
unsignedBrokers: [10.0.0.0/8]
"""
ACCOUNT = ("account-of-a", "secret-of-a")
GREEDY, OTHER = "10.6.6.6", "10.0.0.2"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def ruled(tmp_path: Path) -> World:
    path = tmp_path / "namesrv_acl.yml"
    path.write_text(RULES)
    return World(config=NamesrvConfig(kv_config_path="", namesrv_acl_config_path=str(path)))


def brokers(world: World, count: int, host: str = GREEDY) -> list[BrokerPeer]:
    return [world.broker(f"{host}-{number}", address=f"{host}:{number + 1}", host=host) for number in range(count)]


def test_one_host_takes_a_quarter_of_each_table(world: World) -> None:
    greedy = brokers(world, 2_501)
    assert [each.register().code for each in greedy] == [0] * 2_500 + [1]
    for first in (0, 25_000):
        topics = [f"T{number}" for number in range(first, first + 25_000)]
        assert greedy[0].register(*topics, version=2 + first).code == 0
    assert greedy[0].register("T50000", version=3).code == 1
    assert brokers(world, 1, OTHER)[0].register("T50000").code == 0
    assert world.server.routes.route_shares.host_limit == 250_000


def test_one_host_does_not_use_up_the_broker_limit(world: World) -> None:
    limited(world.server.routes.broker_shares, 4, 2)
    greedy = brokers(world, 3)
    assert [each.register("T").code for each in greedy] == [0, 0, 1]
    assert [each.register("T").code for each in brokers(world, 2, OTHER)] == [0, 0]
    assert world.server.refused["room"] == 1
    assert greedy[0].register("T").code == 0, "a registered broker is renewed"
    assert greedy[1].unregister().code == 0
    assert greedy[2].register("T").code == 0, "room comes back"


def test_remark_says_what_to_do(world: World) -> None:
    limited(world.server.routes.broker_shares, 4, 1)
    greedy = brokers(world, 2)
    greedy[0].register("T")
    assert greedy[1].register("T").remark == (
        "your address may register 1 brokers without a signature, and has 1: unregister some, or sign"
        " (namesrvAccountFile)"
    )


def test_one_host_does_not_use_up_names_by_abandoning_brokers(world: World) -> None:
    limited(world.server.ownership.shares, 4, 2)
    for each in (greedy := brokers(world, 3)):
        each.register("T")
        each.disconnect()
        world.now_ms += 15_000
        world.server.expire()
    assert [each.register("T").code for each in greedy] == [0, 0, 1], "the third name was never its own"
    assert [each.register("T").code for each in brokers(world, 2, OTHER)] == [0, 0]


@pytest.mark.parametrize(("shares", "others_topic"), [("topic_shares", "New"), ("route_shares", "T1")])
def test_one_host_does_not_use_up_the_topic_limit(world: World, shares: str, others_topic: str) -> None:
    limited(getattr(world.server.routes, shares), 4, 3)
    (greedy,) = brokers(world, 1)
    assert greedy.register("T1", "T2", "T3").code == 0
    assert greedy.register("T1", "T2", "T3", "T4", version=2).code == 1
    assert brokers(world, 1, OTHER)[0].register(others_topic).code == 0
    greedy.unregister()
    assert world.topics() == [others_topic]
    assert brokers(world, 1)[0].register("T5", "T6", "T7").code == 0


def test_registered_broker_is_renewed_without_excess_topics(world: World) -> None:
    limited(world.server.routes.topic_shares, 10, 1)
    (broker,) = brokers(world, 1)
    broker.register("T1")
    world.now_ms += 100_000
    assert broker.register(TopicConfig("T1", perm=4), "T2", version=2).code == 1
    world.now_ms += 100_000
    world.server.expire()
    assert world.permissions("T1") == {broker.name: 4}, "its topic is known with its new permission"
    assert world.topics() == ["T1"]
    world.server.routes.topic_shares.host_limit = 2
    assert broker.register(TopicConfig("T1", perm=4), "T2", version=2).code == 0
    assert world.topics() == ["T1", "T2"]


def test_topics_added_by_a_stranger_count_for_the_stranger(world: World) -> None:
    limited(world.server.routes.topic_shares, 10, 2)
    (broker,) = brokers(world, 1, OTHER)
    broker.register("T1")
    stranger = world.broker(broker.name, address=broker.address, host=GREEDY)
    assert stranger.register("X1", "X2", version=2).code == 0
    assert stranger.register("X3", version=3).code == 1
    assert broker.register("T1", "T2", version=4).code == 0


@pytest.mark.parametrize("shares", ["broker_shares", "topic_shares", "route_shares", "claims"])
def test_signed_registrations_have_reserved_capacity(ruled: World, shares: str) -> None:
    table = ruled.server.ownership.shares if shares == "claims" else getattr(ruled.server.routes, shares)
    limited(table, 2)
    assert [each.register(f"T{number}").code for number, each in enumerate(brokers(ruled, 3))] == [0, 0, 1]
    signed = ruled.broker("signed", address="10.0.0.9:1", account=ACCOUNT, host=GREEDY)
    assert signed.register("S1", "S2").code == 0


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:0:0:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
    ],
)
def test_host_is_an_ipv4_address_or_an_ipv6_network(one: str, another: str, same: bool) -> None:
    assert (network_of(pack_host(one, 1)) == network_of(pack_host(another, 2))) is same


def test_connections_of_a_host_share_a_memory_limit() -> None:
    links = Links()
    links.shares = Shares(8, "connections")
    stranger, host = b"\x0a\x06\x06\x06", b"\x0a\x00\x00\x01"
    for session_id in range(5):
        links.add("broker:1", session_id, stranger)
    links.add("broker:1", 9, host)
    links.add("broker:1", 10, SIGNED)
    assert links.of("broker:1") == {0, 1, 9, 10}
    assert [links.closed(session_id) for session_id in (0, 1, 2, 3, 4, 9, 10)] == [[]] * 6 + [["broker:1"]]
    links.add("broker:1", 11, stranger)
    links.forget("broker:1")
    assert (links.of("broker:1"), links.closed(11)) == (set(), [])
    assert links.shares.problem(stranger, 2) is None, "all was given back"
