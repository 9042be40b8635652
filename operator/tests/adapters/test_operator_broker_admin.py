"""The BrokerAdmin port against a real broker and NameServer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delaymq.api_types.delay import TimedMessages
from delaymq.api_types.delay_settings import LatenessObjective, TopicDelaySettings
from delaymq.config import NamesrvConfig
from delaymq.server.standalone import Standalone
from delaymq_operator.adapters import broker_admin
from delaymq_operator.adapters.broker_admin import HttpBrokerAdmin
from delaymq_operator.api.broker import parse_broker
from delaymq_operator.manifests import Registrations, registration_secret
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import AdminAccount, Endpoint, TopicConfig
from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import BROKER_FIELDS, HOST, BrokerPeer, run, standalone, until
from harness.ports import free_port

TOKEN = "secret"


@asynccontextmanager
async def an_admin(path: Path, **changes: Any) -> AsyncIterator[tuple[HttpBrokerAdmin, Endpoint, str]]:
    """Start a broker; yield an admin, the broker's endpoint and the address of its NameServer."""
    async with standalone(path, http=True, http_token=TOKEN, **changes) as server:
        admin = HttpBrokerAdmin(timeout_s=5)
        assert server.broker.http_port is not None
        endpoint = Endpoint(host=HOST, broker_port=server.broker.port, http_port=server.broker.http_port, token=TOKEN)
        try:
            yield admin, endpoint, f"{HOST}:{server.namesrv.port}"
        finally:
            await admin.close()


def test_info_reports_broker_and_pending_delays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with an_admin(tmp_path) as (admin, endpoint, _):
            peer = await BrokerPeer.connect(endpoint.broker_port)
            await peer.send("T", DELAY="5")
            info = await admin.info(endpoint)
            assert (info.ready, info.not_ready, info.decommissioned) == (True, (), False)
            assert info.store_id
            assert info.boot_id
            assert info.settings["brokerName"] == info.broker_name
            level = next(one for one in info.delay.levels if one.level == 5)
            assert (level.pending, level.delay_ms, level.in_table) == (1, 60_000, True)
            assert level.next_due_ms is not None
            assert info.delay.timed == TimedMessages()
            await peer.send("T", TIMER_DELAY_SEC="3600")
            timed = (await admin.info(endpoint)).delay.timed
            assert timed is not None
            assert (timed.pending, timed.pending_bytes > 100, timed.next_due_ms is not None) == (1, True, True)
            assert (await admin.remaining(endpoint)).pending_delays == 2

    run(scenario)


def test_delay_settings_and_pending_messages_of_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_admin, "_PAGE", 2)  # several pages

    async def scenario() -> None:
        async with an_admin(tmp_path) as (admin, endpoint, _):
            peer = await BrokerPeer.connect(endpoint.broker_port)
            assert await admin.topic_delays(endpoint, "T0") is None
            for number in range(5):
                await peer.send(f"T{number}", TIMER_DELAY_SEC="3600")
            await peer.send("Idle")
            wanted = TopicDelaySettings(
                max_pending_messages=5,
                when_topic_is_gone="drop",
                lateness_objective=LatenessObjective(within_ms=5_000, percent=99.9),
            )
            changed = await admin.set_topic_delays(endpoint, "T1", wanted)
            assert (changed.settings, changed.pending) == (wanted, 1)
            found = await admin.delays(endpoint)
            assert sorted(found) == [f"T{number}" for number in range(5)]
            assert found["T1"] == changed == await admin.topic_delays(endpoint, "T1")
            assert found["T0"].settings == TopicDelaySettings()
            assert found["T0"].next_due_ms == found["T0"].latest_due_ms is not None
            idle = await admin.topic_delays(endpoint, "Idle")
            assert idle is not None
            assert (idle.pending, idle.next_due_ms) == (0, None)
            with pytest.raises(BrokerRefused) as caught:
                await admin.set_topic_delays(endpoint, "Unknown", wanted)
            assert caught.value.code == "no_such_topic"
            with pytest.raises(BrokerRefused) as caught:
                await admin.delays(replace(endpoint, token="wrong"))
            assert caught.value.code == "unauthorized"

    run(scenario)


def test_broker_is_drained_and_accepts_writes_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with an_admin(tmp_path) as (admin, endpoint, _):
            drained = await admin.drain(endpoint, "refuse", 30_000)
            assert drained.mode == "refuse"
            assert drained.lease_ends_ms is not None
            assert (await admin.info(endpoint)).drain.mode == "refuse"
            assert (await admin.drain(endpoint, "none", 0)).mode == "none"
            with pytest.raises(BrokerRefused) as caught:
                await admin.drain(endpoint, "withdraw", 1)
            assert caught.value.code == "bad_request"

    run(scenario)


def test_requests_are_signed_with_account_of_endpoint(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    account = "accessKey: operators, secretKey: operators-secret, admin: true, requireSecondSignature: true"
    rules.write_text(f"accounts: [{{{account}}}]")

    async def scenario() -> None:
        guarded = {"acl_enable": True, "acl_config_path": str(rules)}
        async with an_admin(tmp_path / "broker", **guarded) as (admin, endpoint, _):
            wanted = TopicConfig(topic="orders", read_queues=4, write_queues=4)
            with pytest.raises(BrokerRefused, match="No accessKey is configured"):
                await admin.put_topic(endpoint, wanted)
            signing = replace(endpoint, account=AdminAccount(access_key="operators", secret_key="operators-secret"))
            await admin.put_topic(signing, wanted)
            await admin.set_settings(signing, {"fileReservedTime": "9"})
            assert (await admin.topics(signing))["orders"] == wanted
            await admin.delete_topic(signing, "orders")
            assert (await admin.info(endpoint)).ready  # HTTP requests use the token
            other = replace(endpoint, account=AdminAccount(access_key="operators", secret_key="another-secret"))
            with pytest.raises(BrokerRefused, match="Check signature failed") as caught:
                await admin.topics(other)
            assert "another-secret" not in str(caught.value)
            assert "operators-secret" not in repr(signing)

    run(scenario)


def test_topics_and_settings_of_broker_can_be_changed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with an_admin(tmp_path) as (admin, endpoint, name_server):
            wanted = TopicConfig(topic="orders", read_queues=4, write_queues=2, permission=6)
            await admin.put_topic(endpoint, wanted)
            assert (await admin.topics(endpoint))["orders"] == wanted
            await admin.put_order((name_server,), "orders", "broker-a:4")
            assert await admin.orders(name_server) == {"orders": "broker-a:4"}
            await admin.put_order((name_server,), "orders", None)
            assert await admin.orders(name_server) == {}
            cluster = (await admin.info(endpoint)).cluster_name
            for _ in range(2):
                await admin.delete_topic(endpoint, "orders")
                await admin.delete_route((name_server,), "orders", cluster=cluster)
            assert "orders" not in await admin.topics(endpoint)
            await admin.set_settings(endpoint, {"messageDelayLevel": "1s 2s"})
            assert (await admin.info(endpoint)).settings["messageDelayLevel"] == "1s 2s"

    run(scenario)


def test_rejection_and_unreachable_broker_raise_different_errors(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with an_admin(tmp_path) as (admin, endpoint, _):
            wrong = Endpoint(host=HOST, broker_port=endpoint.broker_port, http_port=endpoint.http_port, token="wrong")
            with pytest.raises(BrokerRefused) as refused:
                await admin.info(wrong)
            assert refused.value.code == "unauthorized"
            with pytest.raises(BrokerRefused):
                await admin.put_topic(endpoint, TopicConfig(topic="not a name!", read_queues=1, write_queues=1))
            with pytest.raises(BrokerRefused):
                await admin.set_settings(endpoint, {"messageDelayLevel": "nonsense"})
            port = free_port()
            gone = Endpoint(host=HOST, broker_port=port, http_port=port, token=TOKEN)
            for call in (admin.info(gone), admin.topics(gone), admin.orders(f"{HOST}:{port}")):
                with pytest.raises(BrokerUnreachable) as unreachable:
                    await call
                assert unreachable.value.address == f"{HOST}:{port}"

    run(scenario)


def test_request_to_silent_broker_times_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        admin = HttpBrokerAdmin(timeout_s=0.3)
        endpoint = Endpoint(host=HOST, broker_port=port, http_port=port, token=TOKEN)
        for call in (admin.info(endpoint), admin.topics(endpoint)):
            with pytest.raises(BrokerUnreachable):
                await call
        await admin.close()
        server.close()

    run(scenario)


def test_connections_are_closed_after_each_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = len(asyncio.all_tasks())
        async with an_admin(tmp_path) as (admin, endpoint, _):
            during = len(asyncio.all_tasks())
            for _ in range(20):
                await admin.info(endpoint)
                await admin.topics(endpoint)
            await until(lambda: len(asyncio.all_tasks()) <= during + 2)
        await until(lambda: len(asyncio.all_tasks()) <= before + 1)

    run(scenario)


def test_servers_accept_accounts_that_operator_creates(tmp_path: Path) -> None:
    body = {"metadata": {"name": "demo", "namespace": "ns", "uid": "u"}, "spec": {"accessControl": {"secretName": "s"}}}
    made = registration_secret(parse_broker(body), Registrations(seeds={1: "seed"}, given=1, newest=1), ())
    texts = {key: base64.b64decode(value).decode() for key, value in made["data"].items()}
    rules, account = tmp_path / "namesrv_acl.yml", tmp_path / "account.yml"
    rules.write_text(texts["namesrv_acl.yml"])
    account.write_text(texts["group-0.yml"])
    operators = AdminAccount(access_key=texts["accessKey"], secret_key=texts["secretKey"])
    namesrv = NamesrvConfig(listen_port=0, kv_config_path="", namesrv_acl_config_path=str(rules))
    named = {"broker_name": "demo-0", "namesrv_account_file": str(account)}
    server = Standalone(broker_config(tmp_path, **BROKER_FIELDS, **named), namesrv)

    async def scenario() -> None:
        await server.start(http=False)
        admin = HttpBrokerAdmin(timeout_s=5)
        try:
            await until(lambda: server.broker.registration.is_registered)
            assert set(server.namesrv.namesrv.routes.groups) == {"demo-0"}
            address = f"{HOST}:{server.namesrv.port}"
            with pytest.raises(BrokerRefused, match="No accessKey is configured"):
                await admin.put_order((address,), "orders", "demo-0:4")
            await admin.put_order((address,), "orders", "demo-0:4", account=operators)
            assert await admin.orders(address) == {"orders": "demo-0:4"}
            with pytest.raises(BrokerRefused, match="No accessKey is configured"):
                await admin.delete_route((address,), "orders", cluster="demo")
            await admin.delete_route((address,), "orders", cluster="demo", account=operators)
        finally:
            await admin.close()
            await server.stop()

    run(scenario)
