"""Tens of thousands of held pulls over real connections: limited memory, and no blocking."""

from __future__ import annotations

import asyncio
from pathlib import Path

from delaymq.protocol.bodies import HeartbeatData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, encode_command, request_command
from delaymq.protocol.signatures import Signer
from delaymq.server.requests.long_polling import PULL_BYTES, RESUME_UNITS, SLICE_UNITS, HeldPulls
from delaymq.server.standalone import Standalone
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone, until

FLOOD = 2_000
PULL = {
    "consumerGroup": "G",
    "topic": "Orders",
    "queueId": "0",
    "queueOffset": "1",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "0",
    "suspendTimeoutMillis": "100000",
    "subscription": "*",
    "subVersion": "1",
    "expressionType": "TAG",
}


def test_pulls_of_many_connections_share_a_limit_that_favours_small_holders(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, max_held_pull_bytes=1 << 20) as server:
            held = server.broker.held_pulls
            polite = await BrokerPeer.connect(server.broker.port)
            await polite.send("Orders", b"first")
            flood = encode_command(request_command(RequestCode.PULL_MESSAGE, dict(PULL))) * FLOOD
            answered = [0] * 4
            writers = []
            for number in range(4):
                reader, writer = await asyncio.open_connection(HOST, server.broker.port)
                writers.append(writer)
                writer.write(flood)
                count = len(held)
                await until(lambda count=count: len(held) > count + 10)
                asyncio.get_running_loop().create_task(read_all(reader, answered, number))
            await until(lambda: sum(answered) > 0 and not server.broker._fair_queue._line)
            waiting = polite.pull("Orders", 1)
            await polite.connection.request(request_command(RequestCode.GET_BROKER_CONFIG))
            assert not waiting.done()
            assert held.bytes_held <= 1 << 20
            assert len(held) <= (1 << 20) // PULL_BYTES
            slices = watch(server)
            await polite.send("Orders", b"wakes all of them")
            assert (await waiting).code == 0
            await until(lambda: len(held) == 0)
            assert len(slices) >= 10
            assert max(slices) <= SLICE_UNITS // RESUME_UNITS
            for writer in writers:
                writer.close()

    async def read_all(reader: asyncio.StreamReader, answered: list[int], number: int) -> None:
        while data := await reader.read(1 << 16):
            answered[number] += len(data)

    run(scenario)


def watch(server: Standalone) -> list[int]:
    """How many pulls each further turn of the loop wakes."""
    held = server.broker.held_pulls
    slices: list[int] = []
    resume = HeldPulls._resume

    def counted(pull: object) -> None:
        slices[-1] += 1
        resume(held, pull)  # type: ignore[arg-type]

    go_on = held._work.resume

    def counting() -> None:
        slices.append(0)
        go_on()

    held._resume = counted
    held._work.resume = counting
    return slices


RULES = """accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- {accessKey: consumers, secretKey: consumers-secret, defaultGroupPerm: SUB, topicPerms: [Orders=SUB]}
- {accessKey: neighbours, secretKey: neighbours-secret, defaultGroupPerm: SUB, topicPerms: [Orders=SUB]}
- {accessKey: rotated, secretKey: old-secret, defaultGroupPerm: SUB, topicPerms: [Orders=SUB]}
- {accessKey: departed, secretKey: departed-secret, defaultGroupPerm: SUB, topicPerms: [Orders=SUB]}
- {accessKey: producers, secretKey: producers-secret, defaultTopicPerm: PUB}
"""
CHANGED = """accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- {accessKey: consumers, secretKey: consumers-secret, defaultGroupPerm: SUB, topicPerms: [Orders=DENY]}
- {accessKey: neighbours, secretKey: neighbours-secret, defaultGroupPerm: SUB, topicPerms: [Orders=SUB]}
- {accessKey: rotated, secretKey: new-secret, defaultGroupPerm: SUB, topicPerms: [Orders=SUB]}
- {accessKey: producers, secretKey: producers-secret, defaultTopicPerm: PUB}
"""
SECRETS = {"rotated": "old-secret"}


def test_held_pull_ends_when_its_permission_is_revoked_or_its_account_deleted(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES)

    async def scenario() -> None:
        async with standalone(tmp_path, acl_enable=True, acl_config_path=str(rules)) as server:
            assert (await signed(await BrokerPeer.connect(server.broker.port), "operators", create())).code == 0
            waiting = {}
            peers = {}
            for key in ("consumers", "neighbours", "rotated", "departed"):
                peer = peers[key] = await BrokerPeer.connect(server.broker.port)
                beat = request_command(RequestCode.HEART_BEAT, body=HeartbeatData(key).encode())
                assert (await signed(peer, key, beat)).code == 0
                pull = request_command(RequestCode.PULL_MESSAGE, PULL | {"queueOffset": "0"})
                waiting[key] = asyncio.ensure_future(signed(peer, key, pull, 60_000))
            await until(lambda: len(server.broker.held_pulls) == 4)
            rules.write_text(CHANGED)
            assert "No default permission for topic:Orders" in ((await waiting["consumers"]).remark or "")
            assert "Check signature failed" in ((await waiting["rotated"]).remark or "")
            assert "No acl config for departed" in ((await waiting["departed"]).remark or "")
            # Their last heartbeats are no longer those of an account.
            await until(lambda: all(peers[key].connection.closing for key in ("departed", "rotated")))
            assert not any(peers[key].connection.closing for key in ("consumers", "neighbours"))
            assert not waiting["neighbours"].done()
            assert len(server.broker.held_pulls) == 1
            waiting["neighbours"].cancel()

    async def signed(peer: BrokerPeer, key: str, command: Command, timeout_ms: int = 10_000) -> Command:
        Signer(SECRETS.get(key, f"{key}-secret")).sign(command, key)
        return await peer.connection.request(command, timeout_ms)

    def create() -> Command:
        fields = {"topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4"}
        fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        return request_command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    run(scenario)
