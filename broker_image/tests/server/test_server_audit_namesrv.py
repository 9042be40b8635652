"""A NameServer records changes of its settings, and of the owners and addresses of broker names."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from delaymq.config import NamesrvConfig
from delaymq.protocol.bodies import RegisterBody, TopicConfig, TopicTable
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.signatures import Signer
from delaymq.server.standalone import Standalone
from delaymq_testing.audit_lines import lines_of, text_of
from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import BROKER_FIELDS, BrokerPeer, run, standalone, until

RULES = """
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- {accessKey: account-of-a, secretKey: secret-of-a, brokerNames: [broker-a, theirs]}
"""


def registration(name: str, address: str, code: int = 103) -> Command:
    fields = {"brokerName": name, "brokerAddr": address, "clusterName": "C", "brokerId": "0", "haServerAddr": ""}
    body = b""
    if code == 103:
        table = TopicTable(topic_config_table={"T": TopicConfig(topic_name="T")})
        body = RegisterBody(topic_config_serialize_wrapper=table).encode()
    return request_command(code, fields, body)


def folder_of(server: Standalone) -> Path:
    folder = server.namesrv.auditing.log.folder
    assert folder is not None
    return folder


def found_in(server: Standalone) -> list[tuple[Any, ...]]:
    """Action, result and names of all lines but those of the own broker."""
    return [
        (line["action"], line["result"], *line["target"].values())
        for line in lines_of(folder_of(server))
        if line["target"].get("broker") != "broker-a"
    ]


def test_registrations_are_recorded_when_owner_or_address_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = str(tmp_path / "kvConfig.json")
        async with standalone(tmp_path, namesrv_kv_config_path=kept) as server:
            assert folder_of(server) == tmp_path / "namesrv-audit"
            peer = await BrokerPeer.connect(server.namesrv.port)
            for _ in range(3):
                assert (await peer.connection.request(registration("theirs", "10.0.0.1:10911"))).code == 0
            registered = ("broker.register", "done", "theirs", "0", "10.0.0.1:10911", "C")
            assert found_in(server) == [registered]
            assert (await peer.connection.request(registration("nobody", "10.0.0.3:1", 104))).code == 0
            assert len(found_in(server)) == 1
            assert (await peer.connection.request(registration("theirs", "10.0.0.1:10911", 104))).code == 0
            assert (await peer.connection.request(registration("theirs", "10.0.0.2:10911"))).code == 0
            assert found_in(server)[1:] == [
                ("broker.unregister", "done", "theirs", "0", "10.0.0.1:10911", "C"),
                ("broker.register", "done", "theirs", "0", "10.0.0.2:10911", "C"),
            ]

    run(scenario)


def test_refused_takeover_is_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        kept = str(tmp_path / "kvConfig.json")
        async with standalone(tmp_path, namesrv_kv_config_path=kept) as server:
            peer = await BrokerPeer.connect(server.namesrv.port)
            await peer.connection.request(registration("theirs", "10.0.0.1:10911"))
            assert (await peer.connection.request(registration("theirs", "10.0.0.2:10911"))).code == 1
            assert found_in(server)[1:] == [("broker.register", "refused", "theirs", "0", "10.0.0.2:10911", "C")]

    run(scenario)


def test_every_administrative_code_is_recorded_with_its_account(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "rules.yml").write_text(RULES)
        kept = {
            "kv_config_path": str(tmp_path / "kvConfig.json"),
            "namesrv_acl_config_path": str(tmp_path / "rules.yml"),
        }
        async with with_account(tmp_path, **kept) as server:
            peer = await BrokerPeer.connect(server.namesrv.port)
            requests = {
                100: ({"namespace": "N", "key": "K", "value": "V-not-shown"}, b"", {"namespace": "N", "key": "K"}),
                102: ({"namespace": "N", "key": "K"}, b"", {"namespace": "N", "key": "K"}),
                205: ({"brokerName": "broker-a"}, b"", {"broker": "broker-a"}),
                327: ({"brokerName": "broker-a"}, b"", {"broker": "broker-a"}),
                216: ({"topic": "T"}, b"", {"topic": "T"}),
                318: ({}, b"orderMessageEnable=true", {"settings": "orderMessageEnable"}),
            }
            for code, (fields, body, target) in requests.items():
                command = request_command(code, dict(fields), body)
                assert (await peer.connection.request(command)).code == 1
                line = lines_of(folder_of(server))[-1]
                assert (line["code"], line["result"], line["target"]) == (code, "refused", target)
                command = request_command(code, dict(fields), body)
                Signer("operators-secret").sign(command, "operators")
                assert (await peer.connection.request(command)).code == 0
                line = lines_of(folder_of(server))[-1]
                assert (line["code"], line["result"], line["target"]) == (code, "done", target)
                assert (line["account"], line["verified"], line["server"]) == ("operators", True, "namesrv")
            first = lines_of(folder_of(server))[0]
            assert (first["action"], first["account"], first["verified"]) == ("broker.register", "account-of-a", True)
            assert "V-not-shown" not in text_of(folder_of(server))

    run(scenario)


@asynccontextmanager
async def with_account(path: Path, **namesrv: str) -> AsyncIterator[Standalone]:
    """Both servers; the broker signs its registrations. The key of its file begins like those of the NameServer."""
    (path / "account.yml").write_text("accessKey: account-of-a\nsecretKey: secret-of-a\n")
    config = broker_config(path, **BROKER_FIELDS, namesrv_account_file=str(path / "account.yml"))
    server = Standalone(config, NamesrvConfig(listen_port=0, **cast("Any", namesrv)))
    await server.start(http=False)
    try:
        await until(lambda: server.broker.registration.is_registered)
        yield server
    finally:
        await server.stop()


def test_nameserver_without_a_folder_records_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            assert not server.namesrv.auditing.log.is_on
            peer = await BrokerPeer.connect(server.namesrv.port)
            assert (await peer.connection.request(registration("theirs", "10.0.0.1:10911"))).code == 0

    run(scenario)


def test_lines_are_json(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, namesrv_audit_log_path=str(tmp_path / "own")) as server:
            assert folder_of(server) == tmp_path / "own"
            assert all(json.loads(line) for line in text_of(tmp_path / "own").splitlines())

    run(scenario)
