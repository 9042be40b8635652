"""Effect of a captured request on a NameServer with rules, for RocketMQ's and the second signature."""

from pathlib import Path

import pytest
from delaymq.config import NamesrvConfig
from delaymq.protocol.command import Command, Response, request_command
from delaymq.protocol.second_signature import ConnectionKey, ConnectionSigner, challenge_in, challenge_request
from delaymq.protocol.signatures import Signer
from delaymq_testing.namesrv_world import Peer, World

NONCE = bytes(range(16))
ADMIN = ("administrator", "secret-of-admin")
STRICT = ("account-of-b", "secret-of-b")
RULES = """\
accounts:
- accessKey: administrator
  secretKey: secret-of-admin
  admin: true
- accessKey: account-of-b
  secretKey: secret-of-b
  requireSecondSignature: true
  brokerNames: [broker-b]
"""
REGISTRATION = {
    "brokerName": "broker-b",
    "brokerAddr": "10.0.0.2:10911",
    "clusterName": "C",
    "haServerAddr": "",
    "brokerId": "0",
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    path = tmp_path / "namesrv_acl.yml"
    path.write_text(RULES)
    return World(config=NamesrvConfig(kv_config_path="", namesrv_acl_config_path=str(path)))


def remote(world: World) -> Peer:
    peer = world.peer()
    peer.is_private = False
    return peer


def as_rocketmq(account: tuple[str, str], code: int, fields: dict[str, str]) -> Command:
    command = request_command(code, dict(fields))
    Signer(account[1]).sign(command, account[0])
    return command


def signer_on(world: World, peer: Peer, account: tuple[str, str]) -> ConnectionSigner:
    answer = world.answer(peer, challenge_request(NONCE))
    told = challenge_in(Command(answer.code, fields=answer.fields))
    assert told is not None
    return ConnectionSigner(ConnectionKey(*account, told[0], NONCE, told[1]), account[0])


def signed(signer: ConnectionSigner, code: int, fields: dict[str, str]) -> Command:
    command = request_command(code, dict(fields))
    signer.sign(command)
    return command


def why(world: World, answer: Response) -> str:
    assert answer.code == 1, answer
    return max(world.server.refused, key=lambda reason: world.server.refused[reason])


@pytest.mark.parametrize(
    ("captured", "code", "fields"),
    [
        ({"topic": "T"}, 216, {"topic": "T"}),
        ({"topic": "broker-b"}, 205, {"brokerName": "broker-b"}),
        (
            {"topic": "OrdersORDER_TOPIC_CONFIGx"},
            100,
            {"key": "Orders", "namespace": "ORDER_TOPIC_CONFIG", "value": "x"},
        ),
    ],
)
def test_captured_query_of_an_administrator_changes_nothing(
    world: World, captured: dict[str, str], code: int, fields: dict[str, str]
) -> None:
    question = as_rocketmq(ADMIN, 202, captured)
    credentials = {name: question.fields[name] for name in ("AccessKey", "Signature")}
    forged = request_command(code, fields | credentials)
    assert why(world, world.answer(remote(world), forged)) == "plain"
    assert world.answer(world.peer(), as_rocketmq(ADMIN, code, fields)).code == 0, "from this machine it is served"


def test_text_in_a_common_field_cannot_replace_part_of_another(world: World) -> None:
    question = as_rocketmq(ADMIN, 105, {"topic": "xxOrders"})
    credentials = {name: question.fields[name] for name in ("AccessKey", "Signature")}
    forged = request_command(216, {"bname": "xx", "topic": "Orders"} | credentials)
    assert why(world, world.answer(world.peer(), forged)) == "fields"


def test_administrator_with_the_second_signature_may_come_from_anywhere(world: World) -> None:
    peer = remote(world)
    signer = signer_on(world, peer, ADMIN)
    command = signed(signer, 100, {"namespace": "N", "key": "K", "value": "V"})
    assert world.answer(peer, command).code == 0
    assert "was sent before" in str(world.answer(peer, command).remark)
    other = remote(world)
    signer_on(world, other, ADMIN)
    assert "not signed for this connection" in str(world.answer(other, command).remark)


def test_account_may_require_the_second_signature(world: World) -> None:
    peer = remote(world)
    assert why(world, world.answer(peer, as_rocketmq(STRICT, 103, REGISTRATION))) == "second_required"
    signer = signer_on(world, peer, STRICT)
    assert world.answer(peer, signed(signer, 103, REGISTRATION)).code == 0
    assert world.answer(peer, signed(signer, 103, REGISTRATION)).code == 0
    wrong = ConnectionSigner(ConnectionKey(*STRICT, bytes(16), NONCE, "namesrv/1"), STRICT[0])
    assert world.answer(peer, signed(wrong, 104, REGISTRATION)).code == 1


def test_broker_that_only_queries_keeps_its_challenge(world: World) -> None:
    assert world.server.channels is not None
    now = [0.0]
    world.server.channels._clock = lambda: now[0]
    peer = remote(world)
    signer = signer_on(world, peer, STRICT)
    for _ in range(10):
        now[0] += 200
        world.answer(peer, signed(signer, 322, REGISTRATION))
    assert world.answer(peer, signed(signer, 103, REGISTRATION)).code == 0
    now[0] += 301
    assert "ask for a new challenge" in str(world.answer(peer, signed(signer, 103, REGISTRATION)).remark)


def test_stored_value_is_no_challenge(world: World) -> None:
    fields = {"namespace": "DELAYMQ", "key": "challenge", "value": "stored"}
    assert world.answer(world.peer(), as_rocketmq(ADMIN, 100, fields)).code == 0
    assert signer_on(world, remote(world), ADMIN)


def test_names_count_only_from_the_file_of_the_account(world: World, tmp_path: Path) -> None:
    (tmp_path / "acl").mkdir()
    (tmp_path / "acl" / "other.yml").write_text(
        "accounts:\n- accessKey: account-of-b\n  secretKey: another-secret\n  brokerNames: [broker-x]\n"
    )
    world.reload_rules()
    assert world.server.rules is not None
    assert set(world.server.rules.registrars) == {"broker-x"}, "files of the folder come first"
