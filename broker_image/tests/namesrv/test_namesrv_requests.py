"""Responses of a NameServer: unknown and broken requests, and configuration changes."""

import json
from dataclasses import replace

import pytest
from delaymq.namesrv import PROCESSORS
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.namesrv_world import Peer, World


@pytest.fixture
def world() -> World:
    return World()


def test_unknown_code_gets_3(world: World) -> None:
    answer = world.ask(9_999)
    assert answer.code == 3
    assert answer.remark is not None
    assert "9999 not supported" in answer.remark


def test_defect_in_a_processor_gets_1(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_routes_are_ascii_json_even_for_old_clients(world: World) -> None:
    world.broker("brökér").register("T")
    for version in (121, 400, 407):
        answer = world.answer(Peer(0), Command(105, version=version, fields={"topic": "T"}))
        assert answer.body.isascii()
        assert json.loads(answer.body)["queueDatas"][0]["brokerName"] == "brökér"


def test_configuration_is_read_and_changed_over_the_wire(world: World) -> None:
    assert b"routeGraceMs=15000\n" in world.ask(319).body
    assert world.ask(318, body=b"routeGraceMs=1000").code == 0
    assert world.server.config.route_grace_ms == 1_000
    assert b"routeGraceMs=1000\n" in world.ask(319).body


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("kvConfigPath=/tmp/x", 16, "cannot be changed over the network"),
        ("configBlackList=", 16, "cannot be changed over the network"),
        ("scanIntervalMs=1000", 1, "needs a restart"),
        ("routeGraceMs=many", 1, "not an integer"),
        ("routeGraceMz=1", 1, "did you mean routeGraceMs"),
        ("nonsense", 1, "not key=value"),
        ("routeGraceMs=1\nlistenPort=1", 16, "changed over the network"),
    ],
)
def test_invalid_change_is_rejected_as_a_whole(world: World, text: str, code: int, remark: str) -> None:
    before = replace(world.server.config)
    answer = world.ask(318, body=text.encode())
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert world.server.config == before
