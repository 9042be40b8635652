"""Offsets that point into a body: forged records there are never found, at bounded cost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delaymq.message.ids import offset_message_id
from delaymq.message.properties import encode_properties
from delaymq.message.record import HEAD, MESSAGE_MAGIC, encode_record
from delaymq.protocol.bodies import ConsumerData, HeartbeatData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.signatures import Signer
from delaymq.server.standalone import Standalone
from delaymq.store.commit_log import CommitLog
from delaymq_testing.running_server import HOST, BrokerPeer, run, send_command, standalone

BY_OFFSET = (33, 36, 37, 309, 323)
NOT_FOUND = ("can not find message", "look message by offset failed", "Find prepared transaction", "no half message")
HEAD_BYTES = 262
"""Head, topic and lengths; of a record in one of the broker's own topics the properties too."""
BODY_BYTES = 1_000_000


@dataclass
class Reads:
    """Bytes of the log that were read since `forget`."""

    sizes: list[int] = field(default_factory=list)

    def forget(self) -> None:
        self.sizes.clear()


@asynccontextmanager
async def watched(
    path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> AsyncIterator[tuple[Standalone, Reads]]:
    reads = Reads()
    read_bytes = CommitLog.read_bytes

    def noted(log: CommitLog, offset: int, size: int) -> bytes:
        data = read_bytes(log, offset, size)
        reads.sizes.append(len(data))
        return data

    monkeypatch.setattr(CommitLog, "read_bytes", noted)
    async with standalone(path, **changes) as server:
        yield server, reads


def forged(server: Standalone, offset: int, topic: str = "Orders", **properties: str) -> bytes:
    """A whole record with a sound checksum that says of itself that it stands at `offset`, first of queue 0."""
    host = server.broker.broker.store_host
    raw = encode_properties(properties)
    return encode_record(topic.encode(), 0, 0, offset, 0, 0, 1, host, 1, host, 0, 0, b"not a message", raw)


def forged_head(offset: int, size: int) -> bytes:
    """The head of a record of `size` bytes that ends in `forged_tail`."""
    body_bytes = size - HEAD.size - len(forged_tail())
    return HEAD.pack(size, MESSAGE_MAGIC, 0, 0, 0, 0, offset, 0, 1, bytes(8), 1, bytes(8), 0, 0, body_bytes)


def forged_tail() -> bytes:
    return b"\1T" + bytes(2)


async def heartbeat(peer: BrokerPeer) -> None:
    beat = HeartbeatData("member", consumer_data_set=[ConsumerData("G")]).encode()
    assert (await peer.connection.request(request_command(RequestCode.HEART_BEAT, body=beat))).code == 0


def by_offset(server: Standalone, code: int, offset: int) -> Command:
    message_id = offset_message_id(server.broker.broker.store_host, offset)
    fields: dict[str, str] = {"offset": str(offset), "msgId": message_id}
    fields |= {"group": "G", "delayLevel": "0", "consumerGroup": "G", "clientId": "member"}
    fields |= {"commitLogOffset": str(offset), "tranStateTableOffset": "0", "producerGroup": "P"}
    return request_command(code, fields | {"commitOrRollback": "8", "transactionId": "t"})


async def offset_of_next(peer: BrokerPeer) -> int:
    sent = await peer.send("Orders")
    # A record with this body, topic and cluster has as many bytes each time.
    again = await peer.send("Orders")
    first, second = (int(each.fields["msgId"][-16:], 16) for each in (sent, again))
    return second + second - first


TOPICS = ("Orders", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "%DLQ%G")


def test_record_within_a_body_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, monkeypatch, http=True) as (server, reads):
            peer = await BrokerPeer.connect(server.broker.port)
            await heartbeat(peer)
            for topic in TOPICS:
                offset = await offset_of_next(peer) + HEAD.size
                body = forged(server, offset, topic, PGROUP="P", REAL_TOPIC="Orders", REAL_QID="0", UNIQ_KEY="U")
                assert (await peer.send("Orders", body)).code == 0
                for code in BY_OFFSET:
                    reads.forget()
                    answer = await peer.connection.request(by_offset(server, code, offset))
                    assert answer.code != 0, code
                    assert any(text in (answer.remark or "") for text in NOT_FOUND), (code, answer.remark)
                    assert sum(reads.sizes) <= HEAD_BYTES, code
                assert await over_http(server, offset) == (404, "no_such_message")
            # 309 has not handed it to the member.
            assert RequestCode.CONSUME_MESSAGE_DIRECTLY not in {command.code for command in peer.told}

    async def over_http(server: Standalone, offset: int) -> tuple[int, str]:
        message_id = offset_message_id(server.broker.broker.store_host, offset)
        base = f"http://{HOST}:{server.broker.http_port}/api/v1"
        async with aiohttp.ClientSession() as http:
            resent = await http.post(
                f"{base}/deadletters/G/resend", json={"messages": [{"offsetMessageId": message_id}]}
            )
            failed = json.loads(await resent.read())["failed"]
            assert [each["code"] for each in failed] == ["no_such_message"]
            answer = await http.get(f"{base}/messages/{message_id}")
            return answer.status, str(json.loads(await answer.read())["error"]["code"])

    run(scenario)


def test_header_spanning_megabytes_costs_one_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, monkeypatch) as (server, reads):
            peer = await BrokerPeer.connect(server.broker.port)
            await heartbeat(peer)
            sent = await peer.send("Orders", bytes(BODY_BYTES))
            step = int(sent.fields["msgId"][-16:], 16)
            sent = await peer.send("Orders", bytes(BODY_BYTES))
            at = int(sent.fields["msgId"][-16:], 16)
            step = at - step
            begin = at + step + HEAD.size
            size = 3 * step + 1_000
            first = forged_head(begin, size)
            await peer.send("Orders", first + bytes(BODY_BYTES - len(first)))
            await peer.send("Orders", bytes(BODY_BYTES))
            await peer.send("Orders", bytes(BODY_BYTES))
            last = bytearray(BODY_BYTES)
            last[1_000 - len(forged_tail()) : 1_000] = forged_tail()
            sent = await peer.send("Orders", bytes(last))
            assert int(sent.fields["msgId"][-16:], 16) + HEAD.size + 1_000 == begin + size
            for code in BY_OFFSET:
                reads.forget()
                answer = await peer.connection.request(by_offset(server, code, begin))
                assert any(text in (answer.remark or "") for text in NOT_FOUND), (code, answer.remark)
                assert sum(reads.sizes) <= HEAD_BYTES, (code, reads.sizes)

    run(scenario)


def test_real_records_are_found_until_their_topic_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, monkeypatch) as (server, _):
            peer = await BrokerPeer.connect(server.broker.port)
            half = await peer.send("Orders", b"half", TRAN_MSG="true", PGROUP="P", UNIQ_KEY="U")
            sent = [await peer.send("Orders", text) for text in (b"plain", b"")]
            sent += [await peer.send("Orders", b"late", DELAY="18"), half]
            offsets = [int(each.fields["msgId"][-16:], 16) for each in sent]
            for offset in offsets:
                answer = await peer.connection.request(by_offset(server, 33, offset))
                assert (answer.code, int.from_bytes(answer.body[28:36], "big")) == (0, offset)
            end = by_offset(server, 37, offsets[-1])
            assert (await peer.connection.request(end)).code == 0
            assert (await peer.connection.request(by_offset(server, 36, offsets[0]))).code == 0
            delete = request_command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
            assert (await peer.connection.request(delete)).code == 0
            for _ in range(2):  # also when a topic of that name counts from 0 again
                answers = [await peer.connection.request(by_offset(server, 33, offset)) for offset in offsets[:2]]
                assert [answer.code for answer in answers] == [1, 1]
                await peer.send("Orders", b"again")

    run(scenario)


def test_unauthorized_read_of_a_topic_reads_no_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules.yml").write_text(
        "accounts:\n"
        "- {accessKey: producers, secretKey: producers-secret, defaultTopicPerm: PUB}\n"
        "- {accessKey: strangers, secretKey: strangers-secret, defaultTopicPerm: DENY, defaultGroupPerm: SUB}\n"
    )

    async def scenario() -> None:
        settings = {"acl_enable": True, "acl_config_path": str(tmp_path / "rules.yml")}
        async with watched(tmp_path, monkeypatch, **settings) as (server, reads):
            peer = await BrokerPeer.connect(server.broker.port)

            async def ask(command: Command, key: str) -> Command:
                Signer(f"{key}-secret").sign(command, key)
                return await peer.connection.request(command)

            properties: list[dict[str, Any]] = [{}, {"DELAY": "18"}, {"TRAN_MSG": "true", "PGROUP": "P"}]
            sent = [await ask(send_command("Secret", bytes(BODY_BYTES), **each), "producers") for each in properties]
            offsets = [int(each.fields["msgId"][-16:], 16) for each in sent]
            for code in (33, 36, 37, 309):
                for offset in offsets:
                    reads.forget()
                    answer = await ask(by_offset(server, code, offset), "strangers")
                    assert "No default permission for topic:Secret" in (answer.remark or "")
                    assert sum(reads.sizes) <= HEAD_BYTES + 200

    run(scenario)
