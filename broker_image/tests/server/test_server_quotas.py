"""Quotas over sockets: pauses of connections, rejections, reloads, and the Python client."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delaymq.broker.quotas.usage import AccountUsage
from delaymq.client import Client, ClientOptions, Credentials, Message, Producer
from delaymq.protocol.batch import encode_batch
from delaymq.protocol.command import FLAG_ONEWAY, Command, encode_command
from delaymq.protocol.signatures import Signer
from delaymq.server.standalone import Standalone
from delaymq.transport import ConnectionClosedError, RemotingConnection, connect
from delaymq.transport.states import Throttle
from delaymq_testing.broker.guarded import rewrite_rules
from delaymq_testing.certificates import Authority, client_context
from delaymq_testing.repetitions import SEED
from delaymq_testing.running_server import HOST, BrokerPeer, run, send_command, standalone, until

BUSY = "[QUOTA]system busy, start flow control for a while: account tenant-a "


def rules(quotas: str, *, without: str = "") -> str:
    accounts = [
        "- {accessKey: operators, secretKey: operators-secret, admin: true}\n",
        "- {accessKey: tenant-a, secretKey: tenant-a-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,"
        f" quotas: {{{quotas}}}}}\n",
        "- {accessKey: tenant-b, secretKey: tenant-b-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}\n",
    ]
    return "accounts:\n" + "".join(each for each in accounts if not without or without not in each)


class Guarded:
    """A broker with quotas for tenant-a."""

    def __init__(self, server: Standalone, path: Path) -> None:
        self.server = server
        self.port = server.broker.port
        self.broker = server.broker.broker
        self._path = path

    def reload(self, text: str) -> None:
        assert self.broker.access is not None
        rewrite_rules(self.broker.access.rules, self._path, text)

    @property
    def usage(self) -> AccountUsage:
        assert self.broker.access is not None
        return self.broker.access.usages.by_account["tenant-a"]

    def connections(self) -> list[RemotingConnection]:
        """The broker's side."""
        return [session.connection for session in self.server.broker.sessions._sessions.values()]

    def stored(self, topic: str = "Orders") -> int:
        return sum(self.broker.store.queue_bounds(topic, queue_id)[1] for queue_id in range(8))


@asynccontextmanager
async def guarded(path: Path, quotas: str, **changes: Any) -> AsyncIterator[Guarded]:
    file = path / "plain_acl.yml"
    file.write_text(rules(quotas))
    async with standalone(path, acl_enable=True, acl_config_path=str(file), **changes) as server:
        yield Guarded(server, file)


def signed(command: Command, key: str = "tenant-a") -> Command:
    Signer(f"{key}-secret").sign(command, key)
    return command


def sign(command: Command) -> None:
    signed(command)


async def send(peer: BrokerPeer, body: bytes = b"x", key: str = "tenant-a") -> Command:
    return await peer.connection.request(signed(send_command("Orders", body), key), 30_000)


def pull(peer: BrokerPeer, offset: int, *, wait_ms: int = 20_000) -> asyncio.Future[Command]:
    peer.connection.sign = sign
    return peer.pull("Orders", offset, wait_ms=wait_ms)


def test_synchronous_producer_is_delayed_and_never_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "sendRequestsPerSecond: 50") as one:
            peer = await BrokerPeer.connect(one.port)
            began = time.monotonic()
            for _ in range(100):
                answer = await send(peer)
                assert answer.code == 0, answer.remark
            assert time.monotonic() - began > 0.9
            assert one.usage.delays["sendRequestsPerSecond"] > 0
            assert one.usage.refused == {}
            assert one.stored() == 100

    run(scenario)


async def over_tls(tmp_path: Path, check: Callable[[Guarded, BrokerPeer], Awaitable[None]], quotas: str) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.issue(HOST)
    keys = {"tls_server_cert_path": str(pair.certificate), "tls_server_key_path": str(pair.key)}
    async with guarded(tmp_path, quotas, **keys) as one:
        connection = await connect(HOST, one.port, tls=client_context(authority), timeout_ms=20_000)
        await check(one, BrokerPeer(connection, []))


@pytest.mark.parametrize("tls", [False, True])
def test_send_beyond_the_longest_delay_is_rejected_and_names_the_quota(tmp_path: Path, tls: bool) -> None:
    async def check(one: Guarded, peer: BrokerPeer) -> None:
        assert (await send(peer, bytes(20_000))).code == 0
        assert all(each.throttle is Throttle.FREE or each.is_tls is tls for each in one.connections())
        began = time.monotonic()
        answer = await send(peer)
        assert time.monotonic() - began > 0.25, "the connection was not read for maxDelayMs"
        assert answer.code == 2
        assert str(answer.remark).startswith(BUSY + "has used its sendBytesPerSecond (1000) for the next 18")
        assert "more than maxDelayMs (300): send less, or raise the quota" in str(answer.remark)
        assert (await send(await BrokerPeer.connect(one.port), key="tenant-b")).code == 0 if not tls else True
        assert one.stored() == 2 - tls

    async def scenario() -> None:
        quotas = "sendBytesPerSecond: 1000, maxDelayMs: 300"
        if tls:
            await over_tls(tmp_path, check, quotas)
            return
        async with guarded(tmp_path, quotas) as one:
            await check(one, await BrokerPeer.connect(one.port))

    run(scenario)


def test_batch_of_several_seconds_is_stored_once_and_the_next_one_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "sendBytesPerSecond: 50000, maxDelayMs: 100") as one:
            peer = await BrokerPeer.connect(one.port)
            assert (await send(peer, bytes(250_000))).code == 0
            assert (await send(peer, bytes(250_000))).code == 2
            one.reload(rules("sendBytesPerSecond: 5000000, maxDelayMs: 100"))
            assert (await send(peer, bytes(250_000))).code == 0

    run(scenario)


@pytest.mark.parametrize("number", range(5))
def test_pipelined_requests_are_each_answered_and_stored_if_accepted(tmp_path: Path, number: int) -> None:
    async def scenario() -> None:
        random = Random(f"{SEED}/{number}")
        rate = random.choice([20, 200])
        async with guarded(tmp_path, f"sendRequestsPerSecond: {rate}, maxDelayMs: 100") as one:
            peers = [await BrokerPeer.connect(one.port) for _ in range(random.choice([1, 4]))]
            waiting = [
                random.choice(peers).connection.start_request(signed(send_command("Orders")), 30_000)
                for _ in range(random.choice([50, 500]))
            ]
            codes = [answer.code for answer in await asyncio.gather(*waiting)]
            assert set(codes) <= {0, 2}
            assert codes.count(0) >= min(rate, len(codes))
            assert one.stored() == codes.count(0)
            assert one.usage.refused.get("sendRequestsPerSecond", 0) == codes.count(2)
            await until(lambda: all(each.throttle is Throttle.FREE for each in one.connections()))

    run(scenario)


def test_one_way_sends_beyond_the_longest_delay_are_dropped_and_later_requests_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "sendRequestsPerSecond: 20, maxDelayMs: 100") as one:
            peer = await BrokerPeer.connect(one.port)
            commands = [signed(send_command("Orders")) for _ in range(100)]
            for command in commands:
                command.flag |= FLAG_ONEWAY
            peer.connection.send(b"".join(map(encode_command, commands)))
            await until(lambda: one.stored() >= 20)
            await until(lambda: one.usage.refused.get("sendRequestsPerSecond", 0) + one.stored() == 100)
            one.reload(rules(""))
            assert (await send(peer)).code == 0

    run(scenario)


def test_quota_that_is_lowered_and_raised_during_a_pause_leaves_no_connection_paused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "sendRequestsPerSecond: 10, maxDelayMs: 400") as one:
            peers = [await BrokerPeer.connect(one.port) for _ in range(4)]
            while not any(each.throttle is Throttle.THROTTLED for each in one.connections()):
                await asyncio.gather(*(send(peer) for peer in peers))
            waiting = [asyncio.ensure_future(send(peer)) for peer in peers]
            await asyncio.sleep(0)
            one.reload(rules("sendRequestsPerSecond: 1, maxDelayMs: 10"))
            one.reload(rules("sendRequestsPerSecond: 1000000, maxDelayMs: 400"))
            assert {answer.code for answer in await asyncio.gather(*waiting)} == {0}
            await until(lambda: all(each.throttle is Throttle.FREE for each in one.connections()))
            assert {answer.code for answer in await asyncio.gather(*(send(peer) for peer in peers))} == {0}

    run(scenario)


def test_account_that_is_removed_during_a_pause_gets_its_response(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "sendRequestsPerSecond: 1, maxDelayMs: 300") as one:
            peer = await BrokerPeer.connect(one.port)
            while (await send(peer)).code == 0:
                pass
            waiting = asyncio.ensure_future(send(peer))
            await asyncio.sleep(0)
            one.reload(rules("", without="tenant-a"))
            answer = await waiting
            assert (answer.code, str(answer.remark).partition("Exception: ")[2]) == (1, "No acl config for tenant-a")
            assert one.usage.counts["connections"] == 1
            peer.connection.close()
            await until(lambda: one.usage.counts["connections"] == 0)

    run(scenario)


def test_connection_that_ends_during_a_pause_is_released(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "sendBytesPerSecond: 10, maxDelayMs: 10000") as one:
            peer = await BrokerPeer.connect(one.port)
            assert (await send(peer, bytes(1_000))).code == 0
            (paused,) = [each for each in one.connections() if each.throttle is Throttle.THROTTLED]
            # The end of a client is noticed when the pause ends, a close by the broker immediately.
            paused.close()
            await until(lambda: one.usage.counts["connections"] == 0)
            assert paused.throttle is Throttle.FREE

    run(scenario)


def test_pulls_beyond_the_quota_are_rejected_and_their_messages_delivered_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "pullBytesPerSecond: 2000, maxDelayMs: 100") as one:
            peer = await BrokerPeer.connect(one.port)
            for _ in range(4):
                assert (await send(peer, bytes(1_000), key="tenant-b")).code == 0
            assert (await pull(peer, 0)).code == 0
            answer = await pull(peer, 0)
            assert answer.code == 2
            assert str(answer.remark).startswith(BUSY + "has used its pullBytesPerSecond (2000) for the next ")
            while answer.code == 2:
                answer = await pull(peer, 0)
            assert answer.code == 0

    run(scenario)


def test_held_pull_is_charged_when_a_message_ends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "pullBytesPerSecond: 1000, maxDelayMs: 100") as one:
            peer, other = await BrokerPeer.connect(one.port), await BrokerPeer.connect(one.port)
            assert (await send(other, key="tenant-b")).code == 0
            held = pull(peer, 1)
            await until(lambda: one.server.broker.held_pulls)
            assert (await send(other, bytes(3_000), key="tenant-b")).code == 0
            assert (await held).code == 0
            assert one.usage.pull_bytes > 3_000
            assert (await pull(peer, 1)).code == 2

    run(scenario)


def test_held_pulls_beyond_the_quota_are_rejected_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "heldPulls: 2") as one:
            peers = [await BrokerPeer.connect(one.port) for _ in range(2)]
            assert (await send(peers[0], key="tenant-b")).code == 0
            held = [pull(peers[0], 1), pull(peers[1], 1)]
            await until(lambda: len(one.server.broker.held_pulls) == 2)
            answer = await pull(peers[0], 1)
            assert answer.code == 2
            assert answer.remark == BUSY + "has 2 of at most 2 (heldPulls): use fewer, or raise the quota"
            peers[1].connection.close()
            await until(lambda: one.usage.counts["heldPulls"] == 1)
            again = pull(peers[0], 1)
            await until(lambda: one.usage.counts["heldPulls"] == 2)
            assert (await send(peers[0], key="tenant-b")).code == 0
            assert {(await each).code for each in (held[0], again)} == {0}
            assert one.usage.counts["heldPulls"] == 0
            with pytest.raises(ConnectionClosedError):
                await held[1]

    run(scenario)


def test_connection_beyond_the_quota_is_told_and_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "connections: 2") as one:
            peers = [await BrokerPeer.connect(one.port) for _ in range(3)]
            assert [(await send(peer)).code for peer in peers[:2]] == [0, 0]
            answer = await send(peers[2])
            assert (answer.code, str(answer.remark)) == (
                2,
                BUSY + "has 2 of at most 2 (connections): use fewer, or raise the quota",
            )
            await until(lambda: peers[2].connection.closing)
            peers[0].connection.close()
            await until(lambda: one.usage.counts["connections"] == 1)
            assert (await send(await BrokerPeer.connect(one.port))).code == 0

    run(scenario)


def test_time_of_the_event_loop_is_charged_also_for_long_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "") as one:
            peer = await BrokerPeer.connect(one.port)
            assert (await send(peer)).code == 0
            before = one.usage.loop_s
            assert before > 0
            peer.connection.sign = sign
            batch = send_command("Orders", encode_batch([(0, b"x", b"")] * 20_000))
            batch.code = 320
            batch.fields["m"] = "true"
            assert (await peer.connection.request(batch, 30_000)).code == 0
            spent = one.usage.loop_s - before
            assert spent > 0.005
            # A batch uses the time of about one second, whatever the speed of the machine; a send alone stays below it.
            one.reload(rules(f"eventLoopPercent: {min(max(round(spent * 100), 1), 100)}, maxDelayMs: 100"))
            while (await send(peer)).code != 2:
                await peer.connection.request(batch, 30_000)
            code = 2
            while code == 2:
                await asyncio.sleep(0.01)
                code = (await send(peer)).code
            assert code == 0

    run(scenario)


def test_python_producer_beyond_its_quota_is_slowed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, "sendRequestsPerSecond: 50") as one:
            options = ClientOptions(credentials=Credentials("tenant-a", "tenant-a-secret"))
            async with (
                Client([f"{HOST}:{one.server.namesrv.port}"], options) as client,
                Producer(client, "producers") as producer,
            ):
                began = time.monotonic()
                for _ in range(10):
                    await asyncio.gather(*(producer.send(Message(topic="Orders", body=b"x")) for _ in range(10)))
                assert time.monotonic() - began > 0.7, "50 of 100 are the burst, and 10 the debt"
            assert one.stored() == 100
            assert one.usage.refused == {}

    run(scenario)
