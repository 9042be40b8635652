"""Costs of a hostile client's heartbeats in memory, files and time are bounded."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from delaymq.broker.groups import client_snapshot, heartbeat_limits
from delaymq.broker.groups.client_registry import EXPIRE_MS
from delaymq.protocol.bodies import ConsumerIds, HeartbeatData
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.server.standalone import Standalone
from delaymq_testing.running_server import BrokerPeer, run, standalone, until

MIB = 1 << 20


def heartbeat(client_id: str, *groups: tuple[str, Iterable[str]], text: str = "*", tags: int = 0) -> Command:
    """Request 34 of a consumer of `groups` with their topics."""
    consumers = [
        {
            "groupName": group,
            "subscriptionDataSet": [
                {"topic": topic, "subString": text, "tagsSet": [f"tag{number}" for number in range(tags)]}
                for topic in topics
            ],
        }
        for group, topics in groups
    ]
    body = json.dumps({"clientID": client_id, "consumerDataSet": consumers}, separators=(",", ":")).encode()
    return request_command(RequestCode.HEART_BEAT, {}, body)


def producing(groups: list[str]) -> Command:
    """Request 34 of a producer of `groups`."""
    data = {"clientID": "c", "producerDataSet": [{"groupName": group} for group in groups]}
    return request_command(RequestCode.HEART_BEAT, {}, json.dumps(data).encode())


async def refusal(peer: BrokerPeer, command: Command) -> str:
    """What the broker says against a heartbeat; empty when it takes it."""
    answer = await peer.connection.request(command, 30_000)
    assert (answer.code == ResponseCode.SUCCESS) is not bool(answer.remark)
    return answer.remark or ""


async def members(peer: BrokerPeer, group: str) -> list[str]:
    answer = await peer.connection.request(
        request_command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    )
    return ConsumerIds.decode(answer.body).consumer_id_list if answer.code == 0 else []


def topics(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (heartbeat("c", ("g", topics(100_000))), "exceeds the limit of 1048576"),
        (request_command(34, {}, b'{"clientID":"c","consumerDataSet":[' + b"{}," * 60_000 + b"{}]}"), "100000 values"),
        (heartbeat("c", ("g", topics(1_001))), "has 1001 subscriptions of group[g] (limit: 1000)"),
        (heartbeat("c", ("g", ["T"]), text="x" * 32_769), "a string of 32769 characters (limit: 32768)"),
        (heartbeat("c", *((f"g{number}", ()) for number in range(1_000))), "1001 groups (limit: 1000)"),
        (producing(topics(1_001)), "1001 groups (limit: 1000)"),
        (heartbeat("c", ("g", topics(150)), tags=300), "bytes (limit: 4194304)"),
    ],
    ids=["bytes", "values", "subscriptions", "text", "groups", "producers", "memory"],
)
def test_heartbeat_beyond_a_limit_is_rejected_without_effect(tmp_path: Path, command: Command, said: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            clients = server.broker.broker.clients
            peer = await BrokerPeer.connect(server.broker.port)
            assert await refusal(peer, heartbeat("c", ("before", ["T"]))) == ""
            held = clients.stated_bytes
            assert said in await refusal(peer, command)
            assert await members(peer, "before") == ["c"]
            assert (set(clients.consumers), clients.stated_bytes) == ({"before"}, held)

    run(scenario)


def test_client_with_rejected_heartbeats_stays_unchanged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            broker = server.broker.broker
            peer = await BrokerPeer.connect(server.broker.port)
            assert await refusal(peer, heartbeat("c", ("g", ["T"]))) == ""
            (client,) = broker.clients.members("g")
            client.updated_ms -= EXPIRE_MS + 1
            assert await refusal(peer, heartbeat("c", ("g", topics(1_001))))
            assert broker.expire_clients(broker.now_ms()) == []
            assert await members(peer, "g") == ["c"]

    run(scenario)


def test_heartbeat_data_per_connection_is_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            clients = server.broker.broker.clients
            peer = await BrokerPeer.connect(server.broker.port)
            said = [await refusal(peer, heartbeat("c", (f"g{number}", topics(1_000)))) for number in range(12)]
            taken = said.count("")
            assert 0 < taken < 12
            assert "(limit: 4194304): divide its groups" in said[-1]
            assert set(clients.consumers) == {f"g{number}" for number in range(taken)}
            assert 0 < clients.stated_bytes <= 4 * MIB
            # A new statement replaces the earlier one.
            assert await refusal(peer, heartbeat("c", ("g0", topics(900)))) == ""
            peer.connection.close()
            await until(lambda: not clients.consumers)
            assert clients.stated_bytes == 0

    run(scenario)


def test_heartbeat_data_of_all_connections_is_limited_with_a_reserve_for_small_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_limits, "MAX_BYTES", 2 * MIB)
    monkeypatch.setattr(heartbeat_limits, "RESERVED_BYTES", MIB)

    async def flood(server: Standalone, name: str) -> tuple[BrokerPeer, str]:
        peer = await BrokerPeer.connect(server.broker.port)
        return peer, await refusal(peer, heartbeat(name, (name, topics(1_000))))

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            clients = server.broker.broker.clients
            flooding = [await flood(server, f"flood{number}") for number in range(10)]
            assert {said == "" for _, said in flooding} == {True, False}
            assert "the groups and subscriptions of all clients already take 2 MiB" in flooding[-1][1]
            assert clients.stated_bytes <= MIB
            honest = await BrokerPeer.connect(server.broker.port)
            assert await refusal(honest, heartbeat("honest", ("G", ["T"]))) == ""
            # A thousand members share what their group states.
            before = clients.stated_bytes
            for number in range(20):
                peer = await BrokerPeer.connect(server.broker.port)
                assert await refusal(peer, heartbeat(f"member{number}", ("G", ["T"]))) == ""
            assert clients.stated_bytes - before < 20 * 500
            for peer, _ in flooding:
                peer.connection.close()
            await until(lambda: set(clients.consumers) == {"G"})
            assert (await flood(server, "later"))[1] == ""

    run(scenario)


def test_file_of_remembered_clients_never_exceeds_the_start_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_snapshot, "MAX_FILE_BYTES", 60_000)
    path = tmp_path / "store" / "delaymq" / "clients.json"

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peers = [await BrokerPeer.connect(server.broker.port) for _ in range(3)]
            said = [
                await refusal(peer, heartbeat(f"c{number}", (f"g{number}", topics(400))))
                for number, peer in enumerate(peers)
            ]
            assert said == [""] * 3
        assert path.stat().st_size <= 60_000
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            assert await asyncio.gather(*(members(peer, f"g{number}") for number in range(3))) == [["c0"], [], []]

    run(scenario)


def test_largest_allowed_heartbeat_is_read(tmp_path: Path) -> None:
    names = [f"Topic{number:04d}-of-a-large-client-with-long-names" for number in range(1_000)]
    command = heartbeat("c", *((f"group{number}", names) for number in range(4)), text="A || B", tags=1)
    assert len(HeartbeatData.decode(command.body).consumer_data_set) == 4

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            assert await refusal(peer, command) == ""
            assert await members(peer, "group3") == ["c"]

    run(scenario)
