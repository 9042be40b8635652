"""The NameServer's domain, played with a clock of the test's own: requests in, answers out."""

import json
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from delaymq.config import NamesrvConfig
from delaymq.namesrv import PROCESSORS, NameServer
from delaymq.namesrv import routes as routes_module
from delaymq.protocol.bodies import ClusterInfo, DataVersion, RegisterBody, TopicConfig, TopicList, TopicTable
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response, request_command
from step_runner import at_once


@dataclass
class Peer:
    id: int
    remote_address: str = "10.0.0.9:40000"


@dataclass
class World:
    """A NameServer, its clock, and brokers that speak to it."""

    now_ms: int = 1_000_000
    config: NamesrvConfig = field(default_factory=lambda: NamesrvConfig(kv_config_path=""))
    sessions: int = 0

    def __post_init__(self) -> None:
        self.server = NameServer(self.config, lambda: self.now_ms)

    def peer(self) -> Peer:
        self.sessions += 1
        return Peer(self.sessions)

    def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", peer: Peer | None = None
    ) -> Response:
        return self.answer(peer or Peer(0), request_command(code, fields, body))

    def answer(self, peer: Peer, command: Command) -> Response:
        result = self.server.handle(peer, command)
        return result if isinstance(result, Response) else self.server.guarded(command.code, lambda: at_once(result))

    def broker(self, name: str = "broker-a", **options: Any) -> "BrokerPeer":
        return BrokerPeer(self, name, **options)

    def route(self, topic: str) -> dict[str, Any] | None:
        answer = self.ask(105, {"topic": topic})
        assert answer.code in (0, 17), answer
        return json.loads(answer.body) if answer.code == 0 else None

    def permissions(self, topic: str) -> dict[str, int]:
        route = self.route(topic)
        return {} if route is None else {each["brokerName"]: each["perm"] for each in route["queueDatas"]}

    def topics(self, code: int = 206, **fields: str) -> list[str]:
        return sorted(TopicList.decode(self.ask(code, fields).body).topic_list)


@dataclass
class BrokerPeer:
    """One broker: registers, and can lose its connection."""

    world: World
    name: str
    address: str = ""
    broker_id: int = 0
    cluster: str = "C"

    def __post_init__(self) -> None:
        self.address = self.address or f"10.0.0.{sum(self.name.encode()) % 250}:10911"
        self.peer = self.world.peer()

    def register(
        self, *topics: str | TopicConfig, version: int = 1, compressed: bool = False, crc32: int | None = None
    ) -> Response:
        configs = [TopicConfig(each) if isinstance(each, str) else each for each in topics]
        table = TopicTable(DataVersion(version, 7), {each.topic_name: each for each in configs})
        body = RegisterBody(table)
        data = body.encode_compressed() if compressed else body.encode()
        fields = self.names() | {
            "haServerAddr": self.address.replace("10911", "10912"),
            "compressed": "true" if compressed else "false",
            "bodyCrc32": str(zlib.crc32(data) & 0x7FFFFFFF if crc32 is None else crc32),
        }
        return self.world.ask(103, fields, data, self.peer)

    def names(self) -> dict[str, str]:
        return {
            "brokerName": self.name,
            "brokerAddr": self.address,
            "clusterName": self.cluster,
            "brokerId": str(self.broker_id),
        }

    def unregister(self) -> Response:
        return self.world.ask(104, self.names(), peer=self.peer)

    def disconnect(self) -> None:
        self.world.server.session_closed(self.peer)
        self.peer = self.world.peer()


@pytest.fixture
def world() -> World:
    return World()


# Registering


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registered_topic_has_a_route(world: World, compressed: bool) -> None:
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


def test_an_unknown_topic_is_code_17(world: World) -> None:
    world.broker().register("T")
    answer = world.ask(105, {"topic": "other"})
    assert answer.code == 17
    assert answer.remark is not None
    assert answer.remark.startswith("No topic route info in name server for the topic: other")


def test_a_body_with_a_wrong_checksum_is_refused(world: World) -> None:
    answer = world.broker().register("T", crc32=12345)
    assert answer.code == 1
    assert "crc32 not match" in (answer.remark or "")
    assert world.route("T") is None


def test_a_partial_registration_adds_and_removes_nothing(world: World) -> None:
    broker = world.broker()
    broker.register("T1", "T2", version=1)
    broker.register("T3", version=2)
    assert world.topics() == ["T1", "T2", "T3"]


def test_topics_are_taken_over_only_with_a_changed_data_version(world: World) -> None:
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


def test_a_slave_gets_its_masters_addresses_and_registers_no_topics(world: World) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    slave = world.broker(address="10.0.0.2:10911", broker_id=1)
    answer = slave.register("Only on the slave".replace(" ", "_"))
    assert answer.fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
    assert world.topics() == ["T"]
    route = world.route("T")
    assert route is not None
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}


def test_a_slave_that_becomes_the_master_keeps_one_address(world: World) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    world.broker(address="10.0.0.2:10911", broker_id=1).register()
    world.broker(address="10.0.0.2:10911", broker_id=0).register("T")
    route = world.route("T")
    assert route is not None
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.2:10911"}


def test_illegal_topic_names_in_a_registration_are_left_aside(world: World) -> None:
    world.broker().register("good", "bad name", "")
    assert world.topics() == ["good"]


@pytest.mark.parametrize("missing", ["brokerName", "brokerAddr", "clusterName", "brokerId", "haServerAddr"])
def test_a_registration_without_a_name_is_refused(world: World, missing: str) -> None:
    fields = world.broker().names() | {"haServerAddr": "x"}
    del fields[missing]
    answer = world.ask(103, fields)
    assert answer.code == 1
    assert missing in (answer.remark or "")


def test_more_brokers_and_topics_than_allowed_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "MAX_BROKERS", 1)
    monkeypatch.setattr(routes_module, "MAX_TOPICS", 2)
    assert world.broker("a").register("T1").code == 0
    assert world.broker("b").register("T1").code == 1
    assert world.broker("a").register("T2", "T3", version=2).code == 1


def test_topics_of_all_brokers_together_are_limited_and_room_comes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MAX_ROUTES", 3)
    first, second = world.broker("a"), world.broker("b")
    assert first.register("T1", "T2").code == 0
    assert second.register("T1", "T2").code == 1
    assert second.register("T1", version=2).code == 0
    first.unregister()
    assert second.register("T1", "T2", "T3", version=3).code == 0
    world.ask(216, {"topic": "T3"})
    assert world.broker("a").register("T1", "T2").code == 1
    assert world.permissions("T1") == {"a": 6, "b": 6}


def test_a_replication_address_of_any_length_is_not_kept(world: World) -> None:
    answer = world.ask(103, world.broker().names() | {"haServerAddr": "x" * 256})
    assert answer.code == 1
    assert "haServerAddr must have at most 255 characters" in (answer.remark or "")


def test_of_many_brokers_that_are_gone_some_are_dropped_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "MAX_EXPIRED_A_TURN", 2)
    for name in "abcde":
        world.broker(name).register(f"Topic{name}", "Shared")
    world.now_ms += 120_001
    assert [len(world.server.expire()) for _ in range(4)] == [2, 2, 1, 0]
    assert world.topics() == []


# Going away


def test_routes_stay_for_the_grace_period_after_the_connection_closed(world: World) -> None:
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


def test_the_end_of_the_grace_period_is_known_ahead(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    assert world.server.next_expiry_ms() is None
    broker.disconnect()
    assert world.server.next_expiry_ms() == world.now_ms + 15_000
    broker.register("T")
    assert world.server.next_expiry_ms() is None


def test_without_grace_a_closed_connection_drops_the_routes_at_once() -> None:
    world = World(config=NamesrvConfig(kv_config_path="", route_grace_ms=0))
    broker = world.broker()
    broker.register("T")
    broker.disconnect()
    assert world.route("T") is None


def test_a_slave_whose_connection_closed_is_gone_at_once(world: World) -> None:
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


def test_a_broker_that_is_away_loses_write_permission_while_another_takes_writes(world: World) -> None:
    first, second = world.broker("broker-a"), world.broker("broker-b")
    first.register("shared", "alone")
    second.register("shared")
    first.disconnect()
    assert world.permissions("shared") == {"broker-a": 4, "broker-b": 6}
    assert world.permissions("alone") == {"broker-a": 6}
    first.register("shared", "alone")
    assert world.permissions("shared") == {"broker-a": 6, "broker-b": 6}


@pytest.mark.parametrize("other", ["away too", "read only", "slave only"])
def test_write_permission_stays_if_no_other_broker_takes_writes(world: World, other: str) -> None:
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


def test_what_is_withheld_is_never_written_into_the_data(world: World) -> None:
    first, second = world.broker("broker-a"), world.broker("broker-b")
    first.register("T")
    second.register("T")
    first.disconnect()
    assert world.permissions("T")["broker-a"] == 4
    second.unregister()
    assert world.permissions("T") == {"broker-a": 6}


def test_a_broker_that_registered_over_a_new_connection_survives_the_end_of_the_old_one(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    old = broker.peer
    broker.peer = world.peer()
    broker.register("T")
    world.server.session_closed(old)
    world.now_ms += 20_000
    world.server.expire()
    assert world.permissions("T") == {"broker-a": 6}


def test_unregistering_drops_the_routes_at_once(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    assert broker.unregister().code == 0
    assert world.route("T") is None
    assert world.server.routes.groups == {}
    assert broker.unregister().code == 0


def test_a_silent_broker_expires_after_two_minutes_and_its_session_is_named(world: World) -> None:
    broker = world.broker()
    broker.register("T")
    world.now_ms += 120_000
    assert world.server.expire() == []
    world.now_ms += 1
    assert world.server.expire() == [broker.peer.id]
    assert world.route("T") is None


def test_a_broker_at_a_new_address_replaces_the_old_one(world: World) -> None:
    world.broker(address="10.0.0.1:10911").register("T")
    world.broker(address="10.0.0.2:10911").register("T")
    world.now_ms += 130_000
    route = world.route("T")
    assert route is not None
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.2:10911"}


def test_an_address_that_another_broker_took_over_leaves_no_trace_of_the_first(world: World) -> None:
    world.broker("broker-a", address="10.0.0.1:10911").register("T1")
    world.broker("broker-b", address="10.0.0.1:10911").register("T2")
    assert world.topics() == ["T2"]
    assert list(world.server.routes.groups) == ["broker-b"]


# Data versions


def query_version(broker: BrokerPeer, version: int) -> tuple[str, bytes]:
    answer = broker.world.ask(322, broker.names(), DataVersion(version, 7).encode(), broker.peer)
    return answer.fields["changed"], answer.body


def test_an_unchanged_data_version_is_a_sign_of_life(world: World) -> None:
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


def test_a_broker_whose_connection_closed_must_register_again(world: World) -> None:
    broker = world.broker()
    broker.register("T", version=1)
    broker.disconnect()
    assert query_version(broker, 1)[0] == "true"


# Write permission, topics


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


def test_a_restarted_broker_gets_its_wiped_permission_back(world: World) -> None:
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


# Answers


def test_an_unknown_code_is_answered_with_3(world: World) -> None:
    answer = world.ask(9_999)
    assert answer.code == 3
    assert answer.remark is not None
    assert "9999 not supported" in answer.remark


def test_a_defect_in_a_processor_is_answered_with_1(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Response:
        raise KeyError("a defect")

    monkeypatch.setitem(PROCESSORS, RequestCode.GET_BROKER_CLUSTER_INFO, fail)
    answer = world.ask(106)
    assert answer.code == 1
    assert "a defect" in (answer.remark or "")


def test_every_code_survives_empty_and_broken_requests(world: World) -> None:
    for code in PROCESSORS:
        for fields, body in (({}, b""), ({"topic": "T"}, b"\xff{"), ({"brokerId": "x"}, b"[1")):
            answer = world.answer(Peer(0), Command(code, fields=fields, body=body))
            assert answer.code in (0, 1, 17, 22), (code, answer)


def test_routes_are_ascii_json_also_for_old_clients(world: World) -> None:
    world.broker("brökér").register("T")
    for version in (121, 400, 407):
        answer = world.answer(Peer(0), Command(105, version=version, fields={"topic": "T"}))
        assert answer.body.isascii()
        assert json.loads(answer.body)["queueDatas"][0]["brokerName"] == "brökér"


# Configuration


def test_configuration_is_read_and_changed_over_the_wire(world: World) -> None:
    assert b"routeGraceMs=15000\n" in world.ask(319).body
    assert world.ask(318, body=b"routeGraceMs=1000").code == 0
    assert world.server.config.route_grace_ms == 1_000
    assert b"routeGraceMs=1000\n" in world.ask(319).body


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("kvConfigPath=/tmp/x", 16, "cannot be changed over the wire"),
        ("configBlackList=", 16, "cannot be changed over the wire"),
        ("scanIntervalMs=1000", 1, "needs a restart"),
        ("routeGraceMs=many", 1, "not a whole number"),
        ("routeGraceMz=1", 1, "did you mean routeGraceMs"),
        ("nonsense", 1, "not key=value"),
        ("routeGraceMs=1\nlistenPort=1", 16, "changed over the wire"),
    ],
)
def test_what_cannot_be_changed_is_refused_whole(world: World, text: str, code: int, remark: str) -> None:
    before = replace(world.server.config)
    answer = world.ask(318, body=text.encode())
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert world.server.config == before
