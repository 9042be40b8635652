"""Rules of a NameServer: ownership of names, permissions for changes, and unreadable files."""

from pathlib import Path

import pytest
from delaymq.access.errors import AccessError
from delaymq.config import NamesrvConfig
from delaymq.namesrv.guard import GUARDED
from delaymq.namesrv.rules import parse
from delaymq.protocol.command import Response, request_command
from delaymq.protocol.signatures import Signer
from delaymq_testing.namesrv_world import World

RULES = """\
accounts:
- accessKey: account-of-a
  secretKey: secret-of-a
  brokerNames:
  - broker-a
- accessKey: account-of-b
  secretKey: secret-of-b
  brokerNames: [broker-b, broker-c]
  unsigned: true
- accessKey: administrator
  secretKey: secret-of-admin
  admin: true
- accessKey: ordinary
  secretKey: secret-of-ordinary
  whiteRemoteAddress: "*"
unsignedBrokers:
- 10.1.0.0/16
"""
ACCOUNT = "accounts:\n- accessKey: account-of-a\n  secretKey: secret-of-a\n  "
A = ("account-of-a", "secret-of-a")
B = ("account-of-b", "secret-of-b")
ADMIN = ("administrator", "secret-of-admin")
ORDINARY = ("ordinary", "secret-of-ordinary")
BROKER = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
FIELDS = {
    100: {"namespace": "N", "key": "K", "value": "V"},
    102: {"namespace": "N", "key": "K"},
    103: {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "C",
        "haServerAddr": "",
        "brokerId": "0",
    },
    104: {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"},
    205: {"brokerName": "broker-a"},
    216: {"topic": "T"},
    318: {},
    327: {"brokerName": "broker-a"},
}
BODIES = {318: b"orderMessageEnable=true"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "namesrv_acl.yml"
    path.write_text(RULES)
    return path


@pytest.fixture
def world(path: Path) -> World:
    return World(config=NamesrvConfig(kv_config_path="", namesrv_acl_config_path=str(path)))


def ask(world: World, code: int, account: tuple[str, str] | None, **fields: str) -> Response:
    command = request_command(code, FIELDS[code] | fields, BODIES.get(code, b""))
    if account is not None:
        Signer(account[1]).sign(command, account[0])
    return world.answer(world.peer(), command)


def test_table_lists_all_codes_that_change_state() -> None:
    assert set(GUARDED) == set(FIELDS)


@pytest.mark.parametrize("code", FIELDS)
@pytest.mark.parametrize(
    ("account", "remark"),
    [
        (None, "No accessKey is configured"),
        (("nobody-knows", "secret-of-a"), "No acl config for nobody-knows"),
        ((A[0], "another secret"), "Check signature failed for accessKey=account-of-a"),
        (ORDINARY, "ordinary"),
    ],
)
def test_unauthorized_request_changes_nothing(
    world: World, code: int, account: tuple[str, str] | None, remark: str
) -> None:
    world.broker("broker-a", address="10.0.0.1:10911", account=A).register("T")
    answer = ask(world, code, account)
    assert answer.code == 1
    assert remark in str(answer.remark)
    assert str(answer.remark).startswith("org.apache.rocketmq.acl.common.AclException: ")
    assert world.permissions("T") == {"broker-a": 6}
    assert not world.server.config.order_message_enable
    assert world.server.kv.table("N") is None


@pytest.mark.parametrize("code", FIELDS)
def test_brokers_and_administrators_have_separate_codes(world: World, code: int) -> None:
    of_broker = code in (103, 104)
    assert ask(world, code, A).code == (0 if of_broker else 1)
    assert ask(world, code, ADMIN).code == (1 if of_broker else 0)
    refused = world.server.refused
    assert (refused["admin"], refused["name"]) == ((0, 1) if of_broker else (1, 0))


def test_reading_needs_no_signature(world: World) -> None:
    world.broker("broker-a", address="10.0.0.1:10911", account=A).register("T")
    assert world.permissions("T") == {"broker-a": 6}
    assert [world.ask(code).code for code in (106, 206, 304, 319)] == [0, 0, 0, 0]


def test_account_registers_only_its_own_names(world: World) -> None:
    answer = world.broker("broker-b", address="10.0.0.2:10911", account=A).register("T")
    assert answer.code == 1
    assert "may not register broker broker-b" in str(answer.remark)
    assert world.broker("broker-c", address="10.0.0.3:10911", account=B).register("T").code == 0


def test_unsigned_brokers_register_unowned_names_from_their_network(world: World) -> None:
    assert world.broker("theirs", address="10.1.2.3:10911", host="10.1.2.3").register("T").code == 0
    assert world.broker("other", address="10.2.2.3:10911", host="10.2.2.3").register("T").code == 1
    assert world.broker("broker-a", address="10.1.2.4:10911", host="10.1.2.4").register("T").code == 1
    assert world.permissions("T") == {"theirs": 6}


def test_owned_name_may_stay_unsigned_for_a_while(world: World) -> None:
    first = world.broker("broker-b", address="10.0.0.1:10911")
    assert first.register("T").code == 0
    assert world.broker("broker-b", address="10.0.0.2:10911", host="10.0.0.2").register("T").code == 1
    assert world.server.refused["owner"] == 1
    assert world.broker("broker-b", address="10.0.0.3:10911", account=B).register("T").code == 0


def test_signed_broker_moves_to_another_address_immediately(world: World) -> None:
    world.broker("broker-a", address="10.0.0.1:10911", account=A).register("T")
    moved = world.broker("broker-a", address="10.0.0.2:10911", account=A, host="10.0.0.2")
    assert moved.register("T").code == 0
    assert set(world.server.routes.live) == {"10.0.0.2:10911"}


def test_promoted_replica_replaces_the_master_immediately(world: World) -> None:
    def at(host: int, broker_id: int, epoch: int) -> Response:
        address, more = f"10.0.0.{host}:10911", {"epoch": str(epoch)}
        return world.broker("broker-a", address=address, broker_id=broker_id, account=A, more=more).register("T")

    assert at(1, 0, 1).code == 0
    assert at(2, 1, 1).code == 0
    assert at(2, 0, 2).code == 0
    answer = at(1, 0, 1)
    assert answer.code == 1
    assert "is registered with epoch 2" in str(answer.remark)
    assert world.server.routes.groups["broker-a"].addresses == {0: "10.0.0.2:10911"}


def test_signed_broker_does_not_take_another_names_address(world: World) -> None:
    world.broker("broker-a", address="10.0.0.1:10911", account=A).register("T")
    assert world.broker("broker-b", address="10.0.0.1:10911", account=B).register("T").code == 1
    assert world.permissions("T") == {"broker-a": 6}


def test_signed_broker_takes_its_address_from_an_unsigned_one(world: World) -> None:
    stranger = world.broker("theirs", address="10.0.0.1:10911", host="10.1.2.3")
    assert stranger.register("T").code == 0
    assert world.broker("broker-a", address="10.0.0.1:10911", account=A).register("T").code == 0
    assert world.permissions("T") == {"broker-a": 6}
    assert stranger.register("T").code == 1


def test_unsigned_replay_does_not_release_an_address(world: World) -> None:
    world.broker("broker-b", address="10.0.0.1:10911", account=B).register("T")
    assert world.broker("broker-b", address="10.0.0.1:10911", host="10.6.6.6").register("T").code == 0
    assert world.broker("broker-a", address="10.0.0.1:10911", account=A).register("T").code == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"aa": "1"},
        {"brokerAddr": "broker.example:10911"},
        {"brokerAddr": "0.0.0.0:10911"},
        {"brokerAddr": "10.0.0.1:010911"},
    ],
)
def test_signed_requests_allow_no_shifting_between_fields(world: World, fields: dict[str, str]) -> None:
    assert ask(world, 103, A, **fields).code == 1
    assert world.server.refused["fields"] == 1


def test_rocketmq_5_fields_are_accepted(world: World) -> None:
    assert ask(world, 216, ADMIN, bname="", oway="", ns="", nsd="", lo="", SecurityToken="").code == 0


ADDRESSES = "  - broker-a\n  addresses: [10.0.0.0/24, '2001:db8::/32']\n"


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, ""),
        ({"brokerAddr": "[2001:db8::1]:10911", "haServerAddr": "10.0.0.1:10912"}, ""),
        ({"brokerAddr": "10.0.1.1:10911"}, "brokerAddr '10.0.1.1:10911'"),
        ({"brokerAddr": "[2001:db9::1]:10911"}, "brokerAddr '[2001:db9::1]:10911'"),
        ({"haServerAddr": "127.0.0.1:10912"}, ""),
        ({"haServerAddr": "10.0.1.1:10912"}, "haServerAddr '10.0.1.1:10912'"),
        ({"haServerAddr": "broker.example:10912"}, "haServerAddr 'broker.example:10912'"),
    ],
)
def test_account_may_be_bound_to_its_brokers_addresses(
    world: World, path: Path, fields: dict[str, str], refused: str
) -> None:
    path.write_text(RULES.replace("  - broker-a\n", ADDRESSES))
    world.reload_rules()
    answer = ask(world, 103, A, **fields)
    assert (answer.code, world.server.refused["address"]) == ((1, 1) if refused else (0, 0))
    assert refused in str(answer.remark)
    assert ask(world, 103, B, brokerName="broker-c", brokerAddr="10.7.7.7:10911").code == 0, "another account's"
    assert ask(world, 104, A).code == 0


# Files


def test_unreadable_file_keeps_its_last_valid_rules(world: World, path: Path) -> None:
    path.write_text("accounts: [")
    world.reload_rules()
    assert ask(world, 103, A).code == 0
    assert ask(world, 103, None).code == 1


def test_unreadable_rules_at_start_forbid_changes_and_serve_routes(path: Path) -> None:
    path.write_text("accounts: [")
    world = World(config=NamesrvConfig(kv_config_path="", namesrv_acl_config_path=str(path)))
    for code in FIELDS:
        answer = ask(world, code, ADMIN)
        assert "the rules are unreadable: correct namesrv_acl.yml" in str(answer.remark)
    assert world.ask(206).code == 0
    path.write_text(RULES)
    world.reload_rules()
    assert ask(world, 103, A).code == 0
    assert world.server.refused["unreadable"] == len(FIELDS)


def test_changed_rules_apply_immediately_with_old_and_new_secrets(world: World, path: Path) -> None:
    second = "- accessKey: account-of-a-2\n  secretKey: second-secret\n  brokerNames: [broker-a]\n"
    path.write_text(RULES.replace("unsignedBrokers", f"{second}unsignedBrokers"))
    world.reload_rules()
    assert ask(world, 103, A).code == 0
    assert ask(world, 103, ("account-of-a-2", "second-secret")).code == 0
    path.write_text(RULES.replace("account-of-a\n", "account-of-a-2\n").replace("secret-of-a\n", "second-secret\n"))
    world.reload_rules()
    assert ask(world, 103, A).code == 1
    assert ask(world, 103, ("account-of-a-2", "second-secret")).code == 0


def test_administrators_of_an_adjacent_broker_file_are_administrators(world: World, path: Path) -> None:
    (path.parent / "acl").mkdir()
    (path.parent / "acl" / "plain_acl.yml").write_text(
        "globalWhiteRemoteAddresses: ['*']\n"
        "accounts:\n- accessKey: boss-of-brokers\n  secretKey: its-secret\n  admin: true\n"
    )
    world.reload_rules()
    assert ask(world, 216, ("boss-of-brokers", "its-secret")).code == 0
    assert ask(world, 216, None).code == 1, "a white list of brokers opens no NameServer"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("unsignedBrokers: [10.1.0.0/33]", "is not a network"),
        ("unsignedBrokers: 10.1.0.0/16", "use a list"),
        (
            "accounts:\n- accessKey: account-of-a\n  secretKey: secret-of-a\n  brokerNames: a",
            "brokerNames: use a list",
        ),
        (
            "accounts:\n- accessKey: account-of-a\n  secretKey: secret-of-a\n  unsigned: maybe",
            "unsigned: use true or",
        ),
        (f"{ACCOUNT}addresses: [10.0.0.0/33]", "account account-of-a: addresses: '10.0.0.0/33' is not a network"),
        (f"{ACCOUNT}addresses: []", "`addresses` lists no network: add one, or remove `addresses`"),
        ("accounts: 7", "accounts: use a list"),
        ("- 7", "is not a rule file"),
    ],
)
def test_errors_in_a_file_are_reported(text: str, problem: str) -> None:
    with pytest.raises(AccessError, match=problem):
        parse(text, 0)


def test_file_with_only_networks_is_valid() -> None:
    file = parse("unsignedBrokers: ['10.1.0.0/16', '2001:db8::/32', 10.2.0.7]", 0)
    assert [str(network) for network in file.networks] == ["10.1.0.0/16", "2001:db8::/32", "10.2.0.7/32"]
    assert file.has_data
