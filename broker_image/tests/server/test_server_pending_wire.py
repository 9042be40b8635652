"""Pending messages over the remoting protocol: what `Producer.pending` and `count_pending` return."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delaymq.client import (
    AccessDeniedError,
    Client,
    ClientOptions,
    Credentials,
    Message,
    NoRouteError,
    NoSuchDelayError,
    Producer,
)
from delaymq.message.errors import IllegalMessageError
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.server.requests import listings
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone

RULES = """
accounts:
- {accessKey: producers, secretKey: producers-secret, topicPerms: [Orders=PUB]}
- {accessKey: watchers, secretKey: watchers-secret, topicPerms: [Orders=SUB]}
"""


def test_client_lists_and_counts_pending_messages_by_every_filter(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            standalone(tmp_path) as server,
            Client(f"{HOST}:{server.namesrv.port}") as client,
            Producer(client, "shop") as producer,
        ):
            now = datetime.now(UTC)
            for number in reversed(range(6)):
                customer = (f"customer-{number % 3}",)
                message = Message(topic="Orders", body=bytes(number), tags=f"T{number % 2}", keys=customer)
                at, group = now + timedelta(hours=number + 1), "spring" if number < 4 else None
                await producer.schedule(message, at=at, key=f"order-{number}", group=group)
            await producer.send(Message(topic="Orders", body=b"level", delay_level=18))
            await producer.schedule(Message(topic="Bills", body=b"b"), after="1h")
            found = await producer.pending("Orders")
            assert [each.key for each in found.messages] == [f"order-{number}" for number in range(2)] + [None] + [
                f"order-{number}" for number in range(2, 6)
            ]
            assert (found.total, found.missing) == (7, ())
            first = found.messages[0]
            assert (first.tags, first.keys, first.group, first.bytes) == ("T0", ["customer-0"], "spring", 0)
            assert (first.delay_level, found.messages[2].delay_level) == (0, 18)
            assert abs(first.due_ms - (now.timestamp() + 3_600) * 1_000) < 2
            assert first.broker_name == server.broker.broker.config.broker_name
            assert not any(name.startswith("__DMQ_") for each in found.messages for name in each.properties)
            late = now + timedelta(hours=3, minutes=30)
            cases: list[tuple[dict[str, Any], set[int]]] = [
                ({"group": "spring"}, {0, 1, 2, 3}),
                ({"key": "customer-1"}, {1, 4}),
                ({"key": "order-5"}, {5}),
                ({"key": first.message_id}, {0}),
                ({"tag": "T1"}, {1, 3, 5}),
                ({"since": late}, {3, 4, 5}),
                ({"group": "spring", "until": late}, {0, 1, 2}),
                ({"held": True}, set()),
            ]
            for filters, keys in cases:
                listed = await producer.pending("Orders", **filters)
                assert {each.key for each in listed.messages} == {f"order-{number}" for number in keys}, filters
                assert (await producer.count_pending("Orders", **filters)).messages == len(keys), filters
            assert (await producer.count_pending("Orders")).messages == 7
            assert len((await producer.pending("Orders", limit=3)).messages) == 3
            moved = await producer.move("Orders", message_id=first.message_id, after="9h")
            assert (await producer.pending("Orders")).messages[-1].due_ms == moved.due_ms
            with pytest.raises(NoRouteError):
                await producer.pending("Nowhere")
            with pytest.raises(ValueError, match="use 1 to 10000"):
                await producer.pending("Orders", limit=0)
            with pytest.raises(IllegalMessageError, match="no time zone"):
                await producer.pending("Orders", since=datetime(2030, 1, 1))
            assert len(server.broker.listings) == 0

    run(scenario)


def test_long_lists_are_read_page_by_page(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            standalone(tmp_path) as server,
            Client(f"{HOST}:{server.namesrv.port}") as client,
            Producer(client, "shop") as producer,
        ):
            numbers = range(250)
            await asyncio.gather(
                *(
                    producer.schedule(
                        Message(topic="Orders", body=b"", tags="T"), after=3_600 + number, key=f"{number}"
                    )
                    for number in numbers
                )
            )
            for limit in (99, 100, 101, 249, 10_000):
                found = await producer.pending("Orders", limit=limit)
                assert len({each.message_id for each in found.messages}) == min(limit, 250)
                assert [each.due_ms for each in found.messages] == sorted(each.due_ms for each in found.messages)
                assert found.total == 250
            assert (await producer.count_pending("Orders", tag="T")).messages == 250

    run(scenario)


def test_account_needs_the_permission_to_subscribe(tmp_path: Path) -> None:
    async def scenario() -> None:
        rules = tmp_path / "plain_acl.yml"
        rules.write_text(RULES)
        async with standalone(tmp_path, acl_enable=True, acl_config_path=str(rules)) as server:

            def options(name: str) -> ClientOptions:
                return ClientOptions(credentials=Credentials(name, f"{name}-secret"))

            address = f"{HOST}:{server.namesrv.port}"
            async with (
                Client(address, options("producers")) as owner,
                Client(address, options("watchers")) as other,
                Producer(owner, "shop") as producer,
                Producer(other, "desk") as watcher,
            ):
                await producer.schedule(Message(topic="Orders", body=b""), after="1h")
                with pytest.raises(AccessDeniedError):
                    await producer.pending("Orders")
                found = await watcher.pending("Orders")
                assert [each.topic for each in found.messages] == ["Orders"]
                assert "producers" not in found.messages[0].properties.values()
                with pytest.raises(AccessDeniedError):
                    await watcher.cancel("Orders", message_id=found.messages[0].message_id)

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "lacks field topic"),
        ({"topic": ""}, "names no topic"),
        ({"topic": "Orders", "limit": "0"}, "limit"),
        ({"topic": "Orders", "limit": "many"}, "limit"),
        ({"topic": "Orders", "level": "3", "kind": "timed"}, "timed"),
        ({"topic": "Orders", "after": "1.2.00000000"}, "other filters"),
        ({"topic": "Orders", "key": "k" * 256}, "key"),
        ({"topic": "T" * 300}, "topic"),
    ],
)
def test_invalid_request_is_rejected_with_a_sentence(tmp_path: Path, fields: dict[str, str], problem: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            answer = await peer.connection.request(request_command(RequestCode.LIST_PENDING_MESSAGES, fields))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert problem in (answer.remark or "")

    run(scenario)


def test_requests_of_one_connection_are_bounded_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peers = [await BrokerPeer.connect(server.broker.port) for _ in range(2)]
            assert (await peers[0].send("Orders", TIMER_DELAY_MS="60000")).code == 0
            fields = {"topic": "Orders", "AccessKey": "ignored", "unknown": "ignored"}
            command = request_command(RequestCode.LIST_PENDING_MESSAGES, fields)
            waiting = [peers[0].connection.start_request(command, 10_000) for _ in range(40)]
            other = await peers[1].connection.request(command)
            assert len(json.loads(other.body)["messages"]) == 1
            codes = [(await each).code for each in waiting]
            assert codes.count(ResponseCode.SUCCESS) == listings.MAX_PER_CONNECTION
            assert codes.count(ResponseCode.SYSTEM_BUSY) == 40 - listings.MAX_PER_CONNECTION
            monkeypatch.setattr(listings, "MAX_LISTINGS", 0)
            refused = await peers[1].connection.request(command)
            assert (refused.code, refused.remark) == (
                ResponseCode.SYSTEM_BUSY, "0 other requests are reading pending messages: try again"
            )  # fmt: skip

    run(scenario)


def test_server_stops_while_clients_list(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            assert (await peer.send("Orders", TIMER_DELAY_MS="60000")).code == 0
            command = request_command(RequestCode.LIST_PENDING_MESSAGES, {"topic": "Orders"})
            waiting = [peer.connection.start_request(command, 10_000) for _ in range(4)]
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert len(done) == 4

    run(scenario)


def test_broker_that_does_not_know_the_request_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with (
            standalone(tmp_path) as server,
            Client(f"{HOST}:{server.namesrv.port}") as client,
            Producer(client, "shop") as producer,
        ):
            await producer.schedule(Message(topic="Orders", body=b""), after="1h")
            monkeypatch.setitem(server.broker.broker._processors, RequestCode.LIST_PENDING_MESSAGES, None)
            with pytest.raises(NoSuchDelayError, match="does not list pending messages: upgrade it"):
                await producer.pending("Orders")

    run(scenario)
