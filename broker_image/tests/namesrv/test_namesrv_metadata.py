"""Queries with `namesrvAclMetadata=own`: signatures, topics of an account, brokers' own queries, administrators."""

import json
from pathlib import Path
from typing import Any

import pytest
from delaymq.config import NamesrvConfig
from delaymq.namesrv.errors import NamesrvError
from delaymq.namesrv.guard import GUARDED
from delaymq.namesrv.queries import ADMIN, QUERIES
from delaymq.namesrv.table import PROCESSORS
from delaymq.protocol.bodies import TopicList
from delaymq.protocol.command import Response, request_command
from delaymq.protocol.headers import GetBrokerAclConfigResponseHeader
from delaymq.protocol.second_signature import ConnectionKey, ConnectionSigner, challenge_in, challenge_request
from delaymq.protocol.signatures import Signer
from delaymq_testing.namesrv_world import World

RULES = """\
accounts:
- {accessKey: account-of-a, secretKey: secret-of-a, brokerNames: [broker-a]}
- {accessKey: operators, secretKey: secret-of-operators, admin: true}
- {accessKey: careful, secretKey: secret-of-careful, topicPerms: [Orders=SUB], requireSecondSignature: true}
- accessKey: tenant1
  secretKey: secret-of-tenant
  topicPerms: [Orders=SUB, Writes=PUB, Closed=DENY]
  groupPerms: [mine=SUB, closed=DENY]
- {accessKey: generous, secretKey: secret-of-generous, defaultTopicPerm: SUB, topicPerms: [Secret=DENY]}
unsignedBrokers: [10.1.0.0/16]
"""
SECRETS = {key: f"secret-of-{key}" for key in ("operators", "careful", "generous")} | {
    "tenant1": "secret-of-tenant",
    "account-of-a": "secret-of-a",
}
TOPICS = (
    "Orders",
    "Writes",
    "Closed",
    "Secret",
    "%RETRY%mine",
    "%RETRY%others",
    "%RETRY%closed",
    "%DLQ%mine",
    "TBW102",
)
FIELDS: dict[int, dict[str, str]] = {
    101: {"namespace": "ORDER_TOPIC_CONFIG", "key": "Orders"},
    105: {"topic": "Orders"},
    219: {"namespace": "ORDER_TOPIC_CONFIG"},
    224: {"cluster": "C"},
    322: {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"},
}
BODIES = {322: b'{"counter":1,"timestamp":7}'}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yml"
    path.write_text(RULES)
    return path


@pytest.fixture
def world(path: Path) -> World:
    config = NamesrvConfig(kv_config_path="", namesrv_acl_config_path=str(path), namesrv_acl_metadata="own")
    world = World(config=config)
    broker = world.broker("broker-a", address="10.0.0.1:10911", account=("account-of-a", SECRETS["account-of-a"]))
    assert broker.register(*TOPICS).code == 0
    return world


def ask(world: World, code: int, key: str | None, host: str = "10.0.0.9", **fields: str) -> Response:
    command = request_command(code, FIELDS.get(code, {}) | fields, BODIES.get(code, b""))
    if key is not None:
        Signer(SECRETS[key]).sign(command, key)
    return world.answer(world.peer(host), command)


def listed(world: World, key: str, code: int = 206) -> set[str]:
    return set(TopicList.decode(ask(world, code, key).body).topic_list)


def test_every_query_needs_a_signature(world: World) -> None:
    assert set(QUERIES) | set(GUARDED) == set(PROCESSORS)
    for code in QUERIES:
        refused = ask(world, code, None)
        assert (refused.code, refused.body) == (1, b"")
        assert "No accessKey is configured" in str(refused.remark)
    wrong = request_command(105, {"topic": "Orders"})
    Signer("another secret").sign(wrong, "tenant1")
    assert "Check signature failed" in str(world.answer(world.peer(), wrong).remark)
    assert world.server.refused["unsigned"] == len(QUERIES)


def test_route_needs_a_permission_for_the_topic(world: World) -> None:
    for topic in ("Orders", "Writes", "%RETRY%mine", "%DLQ%mine"):
        assert ask(world, 105, "tenant1", topic=topic).code == 0, topic
    for topic in ("Closed", "Secret", "Nobody", "%RETRY%closed"):
        refused = str(ask(world, 105, "tenant1", topic=topic).remark)
        assert refused.endswith(f"No default permission for topic:{topic}")
    assert ask(world, 105, "tenant1", topic="%RETRY%others").code == 1
    assert ask(world, 105, "generous", topic="Nobody").code == 17
    assert ask(world, 105, "generous", topic="Secret").code == 1
    assert ask(world, 105, "operators", topic="Secret").code == 0
    assert ask(world, 105, "operators", topic="Nobody").code == 17


def test_every_account_finds_routes_for_traces_replies_and_new_topics(world: World) -> None:
    assert ask(world, 105, "tenant1", topic="TBW102").code == 0
    missing = [ask(world, 105, "tenant1", topic=topic).code for topic in ("RMQ_SYS_TRACE_TOPIC", "C_REPLY_TOPIC")]
    assert missing == [17, 17]
    for topic in ("Other_REPLY_TOPIC", "_REPLY_TOPIC", "C_REPLY_TOPIC_", "REPLY_TOPIC"):
        assert ask(world, 105, "tenant1", topic=topic).code == 1, topic


def test_lists_contain_permitted_topics_only(world: World) -> None:
    assert listed(world, "tenant1") == {"Orders", "Writes", "%RETRY%mine", "%DLQ%mine"}
    assert listed(world, "tenant1", 224) == listed(world, "tenant1")
    assert listed(world, "generous") == {"Orders", "Writes", "Closed", "TBW102"}
    assert listed(world, "operators") == set(TOPICS)
    assert listed(world, "account-of-a") == set()


def test_long_lists_are_reduced_in_a_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    short = listed(world, "generous")
    monkeypatch.setattr("delaymq.namesrv.processors._REDUCED_AT_ONCE", 1)
    command = request_command(206)
    Signer(SECRETS["generous"]).sign(command, "generous")
    assert not isinstance(world.server.handle(world.peer(), command), Response)
    assert listed(world, "generous") == short


def test_settings_need_an_administrator_and_addresses_an_account(world: World) -> None:
    for code in (code for code, needs in QUERIES.items() if needs == ADMIN):
        assert "Need admin permission" in str(ask(world, code, "tenant1").remark)
        assert "AclException" not in str(ask(world, code, "operators").remark)
    for code in (106, 304):
        assert ask(world, code, "tenant1").code == 0
    assert json.loads(ask(world, 106, "tenant1").body)["clusterAddrTable"] == {"C": ["broker-a"]}


def test_brokers_query_only_their_own_registration(world: World) -> None:
    assert ask(world, 322, "account-of-a").code == 0
    assert ask(world, 322, "operators").code == 0
    assert "Need admin permission" in str(ask(world, 322, "tenant1").remark)
    assert "Need admin permission" in str(ask(world, 322, "account-of-a", brokerName="broker-b").remark)
    assert ask(world, 322, None, "10.1.0.7", brokerName="theirs").code == 0
    assert ask(world, 322, None, "10.1.0.7").code == 1
    assert ask(world, 322, None, "10.2.0.7", brokerName="theirs").code == 1


def test_account_may_require_the_second_signature_for_queries(world: World) -> None:
    assert "requires the second signature" in str(ask(world, 105, "careful").remark)
    peer, nonce = world.peer(), bytes(range(16))
    answer: Any = world.answer(peer, challenge_request(nonce))
    told = challenge_in(answer)
    assert told is not None
    signer = ConnectionSigner(ConnectionKey("careful", SECRETS["careful"], told[0], nonce, told[1]), "careful")
    command = request_command(105, {"topic": "Orders"})
    signer.sign(command)
    assert world.answer(peer, command).code == 0
    assert "was sent before" in str(world.answer(peer, command).remark)


def test_deleted_account_gets_no_routes(world: World, path: Path) -> None:
    assert ask(world, 105, "tenant1").code == 0
    path.write_text(RULES.replace("tenant1", "tenant2"))
    world.reload_rules()
    assert "No acl config for tenant1" in str(ask(world, 105, "tenant1").remark)


def test_unreadable_rules_at_the_start_refuse_queries(path: Path) -> None:
    path.write_text("accounts: [")
    config = NamesrvConfig(kv_config_path="", namesrv_acl_config_path=str(path), namesrv_acl_metadata="own")
    assert "the rules are unreadable" in str(ask(World(config=config), 105, "tenant1").remark)


def test_setting_without_rules_is_an_error_at_the_start() -> None:
    with pytest.raises(NamesrvError, match="set namesrvAclConfigPath to a file with rules"):
        World(config=NamesrvConfig(kv_config_path="", namesrv_acl_metadata="own"))


def test_administrators_read_versions_of_the_rules(world: World, path: Path) -> None:
    counted = "dataVersion:\n- {counter: 9, timestamp: 7}\n"
    folder = path.parent / "acl"
    folder.mkdir()
    (folder / "users.yml").write_text(f"accounts:\n- {{accessKey: another, secretKey: secret-of-other}}\n{counted}")
    world.reload_rules()
    (folder / "users.yml").write_text("accounts: [")
    world.reload_rules()
    answer = ask(world, 52, "operators")
    assert answer.code == 0
    header = GetBrokerAclConfigResponseHeader.from_fields(answer.fields or {})
    versions = json.loads(header.all_acl_file_version or "")
    assert versions[str(folder / "users.yml")] == {"counter": 9, "timestamp": 7}, "the rules in force"
    assert versions[str(path)] == json.loads(header.version)


def test_versions_of_the_rules_need_an_administrator_without_the_setting(path: Path) -> None:
    world = World(config=NamesrvConfig(kv_config_path="", namesrv_acl_config_path=str(path)))
    assert ask(world, 52, "operators").code == 0
    assert "Need admin permission" in str(ask(world, 52, "tenant1").remark)
    assert str(ask(world, 52, None).remark).endswith("request code=52 requires a signature")
    assert ask(world, 206, None).code == 0
    without = World(config=NamesrvConfig(kv_config_path=""))
    assert "this NameServer has no access rules" in str(ask(without, 52, None).remark)
