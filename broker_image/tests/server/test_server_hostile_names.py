"""Names that hostile clients invent: topics, groups, message origins, broker addresses."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker import topics
from delaymq.config import BrokerConfig
from delaymq.config.running import RunningSettings
from delaymq.message.properties import decode_properties, encode_properties
from delaymq.message.record import decode_record
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.server.standalone import Standalone
from delaymq.store.model import Dispatched, NewRecord
from delaymq_testing.running_server import BrokerPeer, run, send_command, standalone

GROUP = "G"
RETRY_TOPIC = f"%RETRY%{GROUP}"


def creating(topic: str) -> Command:
    """Request 17, as mqadmin sends it."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    return request_command(
        RequestCode.UPDATE_AND_CREATE_TOPIC, fields | {"topicFilterType": "SINGLE_TAG", "order": "false"}
    )


def heartbeat(group: str) -> Command:
    body = {"clientID": "c", "consumerDataSet": [{"groupName": group, "subscriptionDataSet": [{"topic": "T"}]}]}
    return request_command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


async def codes(peer: BrokerPeer, commands: Iterable[Command]) -> list[int]:
    answers = await asyncio.gather(*(peer.connection.start_request(command, 30_000) for command in commands))
    return [answer.code for answer in answers]


def test_invented_topics_leave_capacity_for_administrators_and_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MAX_TOPICS", 100)

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            table = server.broker.broker.topics.table
            peer = await BrokerPeer.connect(server.broker.port)
            made = await codes(peer, (send_command(f"Made{number}") for number in range(200)))
            assert (set(made), len(table)) == ({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}, 80)
            grouped = await codes(peer, (heartbeat(f"group{number}") for number in range(50)))
            assert (grouped.count(ResponseCode.SUCCESS), len(table)) == (15, 95)
            assert await codes(peer, [creating("Wanted"), send_command("Wanted")]) == [0, 0]

    run(scenario)


def test_topics_per_connection_and_address_are_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits: dict[str, Any] = {"auto_create_max_per_connection": 10, "auto_create_max_per_account": 25}
        async with standalone(tmp_path, **limits) as server:
            table = server.broker.broker.topics.table
            before, made = len(table), []
            for name in "ABCD":
                peer = await BrokerPeer.connect(server.broker.port)
                answers = await codes(peer, (send_command(f"{name}{number}") for number in range(20)))
                made.append(answers.count(ResponseCode.SUCCESS))
                peer.connection.close()
            assert made == [10, 10, 5, 0]
            assert len(table) == before + 25
            honest = await BrokerPeer.connect(server.broker.port)
            assert (await honest.send("A0")).code == ResponseCode.SUCCESS
            refused = await honest.send("Z")
            assert "[127.0.0.1] has already created 25 topics and groups" in str(refused.remark)

    run(scenario)


@pytest.mark.parametrize("key", ["namesrvAddr", "brokerIP1", "brokerIP2", "brokerName", "brokerClusterName"])
def test_broker_settings_cannot_redirect_clients(tmp_path: Path, key: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("fileReservedTime=48\n")

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            before = server.broker.broker.config
            server.broker.broker.settings = RunningSettings(BrokerConfig, file=file)
            peer = await BrokerPeer.connect(server.broker.port)
            value = "10.6.6.6:9876" if key == "namesrvAddr" else "10.6.6.6"
            body = f"{key}={value}\nfileReservedTime=1\n".encode()
            answer = await peer.connection.request(request_command(RequestCode.UPDATE_BROKER_CONFIG, {}, body))
            assert answer.code == ResponseCode.NO_PERMISSION
            assert f"{key}: cannot be changed over the network" in str(answer.remark)
            assert (server.broker.broker.config, file.read_text()) == (before, "fileReservedTime=48\n")

    run(scenario)


def batch(topic: str, **properties: str) -> Command:
    """Request 320 with one message."""
    command = send_command(topic, encode_batch([BatchMessage(0, b"x", encode_properties(properties))]))
    command.code = RequestCode.SEND_BATCH_MESSAGE
    return command


def hand_over(server: Standalone) -> None:
    """Make all pending messages due immediately."""
    server.broker.broker.hand_over(server.broker.broker.now_ms() + 1_000, 100)


async def origin(peer: BrokerPeer, topic: str) -> list[str | None]:
    """RETRY_TOPIC of the messages of a topic's first queue."""
    answer = await peer.pull(topic, 0, wait_ms=0)
    found: list[str | None] = []
    at = 0
    while at < len(answer.body):
        record = decode_record(answer.body, at)
        found.append(decode_properties(record.raw_properties).get("RETRY_TOPIC"))
        at += record.size
    return found


def test_producer_cannot_forge_a_messages_origin(tmp_path: Path) -> None:
    forged: dict[str, Any] = {"RETRY_TOPIC": "Payments"}

    async def scenario() -> None:
        async with standalone(tmp_path, message_delay_level="1s") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            sent = [send_command("Mine", **forged), send_command("Mine", DELAY="1", **forged), batch("Mine", **forged)]
            sent.append(send_command(f"%DLQ%{GROUP}", **forged))
            answers = [await peer.connection.request(command) for command in sent]
            assert [answer.code for answer in answers] == [0] * 4
            hand_over(server)
            assert (await origin(peer, "Mine"), await origin(peer, f"%DLQ%{GROUP}")) == ([None] * 3, [None])
            offset = int(answers[0].fields["msgId"][16:], 16)
            fields = {"offset": str(offset), "group": GROUP, "delayLevel": "1", "maxReconsumeTimes": "3"}
            back = request_command(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            assert (await peer.connection.request(back)).code == ResponseCode.SUCCESS
            # What RocketMQ's consumers send themselves after a failed send-back.
            assert (await peer.send(RETRY_TOPIC, RETRY_TOPIC="Mine")).code == ResponseCode.SUCCESS
            hand_over(server)
            assert await origin(peer, RETRY_TOPIC) == ["Mine", "Mine"]

    run(scenario)


def test_forged_stored_origin_is_not_copied_into_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, message_delay_level="1s") as server:
            broker = server.broker.broker
            peer = await BrokerPeer.connect(server.broker.port)
            append = broker.store.append

            def as_before(record: NewRecord) -> Dispatched:
                record.properties["RETRY_TOPIC"] = "Payments"
                return append(record)

            with monkeypatch.context() as context:
                context.setattr(broker.store, "append", as_before)
                answer = await peer.send("Mine")
            assert await origin(peer, "Mine") == ["Payments"]
            offset = int(answer.fields["msgId"][16:], 16)
            fields = {"offset": str(offset), "group": GROUP, "delayLevel": "1", "maxReconsumeTimes": "3"}
            await peer.connection.request(request_command(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
            hand_over(server)
            assert await origin(peer, RETRY_TOPIC) == ["Mine"]

    run(scenario)
