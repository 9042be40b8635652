"""Strangers and defective members at the port of a broker with links: rejected, bounded, and harmless to others."""

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import encode_command, request_command
from delaymq.replication.events import ConnectionLost, Received
from delaymq.replication.messages import Frame
from delaymq.server.replication import link
from delaymq.server.replication.handshake import Connecting, Identity, LinkError
from delaymq.server.replication.message_codec import encode_message
from delaymq.server.requests import sessions
from delaymq.transport import ConnectionClosedError
from delaymq_testing.linked_members import GROUP, SECRET, ForeignPeer, MemberServer, ack, group, linked
from delaymq_testing.running_server import HOST, BrokerPeer, run, until

PROGRAM = """
import asyncio, sys
from pathlib import Path
from delaymq_testing.linked_members import MemberServer, ack
from delaymq_testing.running_server import HOST, run
async def scenario():
    b = MemberServer(Path(sys.argv[1]), "b")
    links = await b.start({"b": b.address, "a": (HOST, int(sys.argv[2]))})
    while True:
        links.send("a", ack(1))
        await asyncio.sleep(0.01)
run(scenario)
"""
STRANGER = Identity(*GROUP, "b", "stranger")


async def impostor(a: MemberServer, *, secret: bytes = SECRET, process: str = "impostor") -> ForeignPeer:
    """A process that proves to `a` that it is member b."""
    peer = await ForeignPeer.connect(a.server.port)
    await peer.prove(Connecting(STRANGER._replace(process=process), "a", secret))
    return peer


def test_messages_without_a_proof_are_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            assert b.links is not None
            stranger = await ForeignPeer.connect(a.server.port)
            small, large = encode_message(ack(666), 1), request_command(RequestCode.REPLICATE, body=bytes(1 << 20))
            large.flag |= 2
            for _ in range(50):
                stranger.connection.send(small * 100)
                stranger.connection.send(encode_command(large))
                b.links.send("a", ack(1))
                await asyncio.sleep(0)
            answer = await stranger.connection.request(request_command(RequestCode.REPLICATE), 30_000)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "needs a proof that the peer is a member" in str(answer.remark)
            await until(lambda: len(a.received("b")) == 50)
            assert a.events == [Received("b", ack(1))] * 50

    run(scenario)


def test_connection_storm_without_proofs_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            assert a.links is not None
            assert b.links is not None
            strangers = [await ForeignPeer.connect(a.server.port) for _ in range(150)]
            greetings = [Connecting(STRANGER, "a", b"no secret") for _ in strangers]
            answers = await asyncio.gather(*map(ForeignPeer.hello, strangers, greetings))
            assert len(a.links._accepting) == 150
            assert linked(a, b)
            # The member reconnects amid the storm.
            b.links.disconnect("a", "reconnect")
            await until(lambda: linked(a, b))
            for stranger, greeting, answer in zip(strangers[:50], greetings, answers, strict=False):
                second = greeting.answered(answer, b"")
                assert (await stranger.connection.request(second, 30_000)).code == ResponseCode.NO_PERMISSION
                await stranger.ended()
            for stranger in strangers[50:]:
                stranger.connection.abort()
            await until(lambda: len(a.links._accepting) == 0)  # type: ignore[union-attr]
            assert a.links.rejected == {"proof": 50}
            assert a.received("b") == []
            assert linked(a, b)

    run(scenario)


def test_members_reconnect_although_clients_use_all_connections(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b", max_connections=8) as (a, b):
            assert b.links is not None
            clients = [await BrokerPeer.connect(a.server.port) for _ in range(8)]
            assert not (await clients[-1].send("T")).code, "links count towards the limit"
            for round_ in range(3):
                storm = [socket.create_connection((HOST, a.server.port)) for _ in range(3 * sessions.LINK_ROOM)]
                b.links.disconnect("a", f"reconnect {round_}")
                await until(lambda: a.links is not None and not a.links.receives_from("b"))
                await until(lambda: linked(a, b))
                for stranger in storm:
                    stranger.close()
            refused = await BrokerPeer.connect(a.server.port)
            with pytest.raises(ConnectionClosedError):
                await refused.send("T")
            assert not clients[0].connection.closing
            await until(lambda: len(a.server.sessions) == len(clients) + 1)
            clients.pop().connection.close()
            await until(lambda: len(a.server.sessions) == len(clients) + 1)
            storm = [socket.create_connection((HOST, a.server.port)) for _ in range(sessions.LINK_ROOM)]
            await until(lambda: len(a.server.sessions) == len(clients) + 1 + len(storm))
            storm.pop(0).close()  # the only one that is not beyond the limit
            await until(lambda: len(a.server.sessions) == len(clients) + 1 + len(storm))
            again = await BrokerPeer.connect(a.server.port)
            assert not (await again.send("T")).code
            for stranger in storm:
                stranger.close()
            for each in (*clients, again):
                each.connection.close()

    run(scenario)


def test_connections_beyond_the_limits_end_if_they_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LINK_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        async with group(tmp_path, "a", "b", max_connections=1) as (a, _):
            only = await BrokerPeer.connect(a.server.port)
            silent = await BrokerPeer.connect(a.server.port)
            await until(lambda: silent.connection.closing)
            stranger = await ForeignPeer.connect(a.server.port)
            await stranger.hello(Connecting(STRANGER, "a", b"no secret"))
            await stranger.ended()
            assert a.server.sessions.refused == 2
            assert not only.connection.closing
            only.connection.close()

    run(scenario)


def test_full_memory_ends_connections_of_strangers_not_links(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b", max_buffered_bytes=16 << 20) as (a, b):
            assert b.links is not None
            frame = Frame(1, 1, 0, bytes(200_000), 0, False)
            b.links.send("a", frame)  # the link now has a large buffer, before all others
            await until(lambda: a.received("b") == [frame])
            announced = (2 << 20).to_bytes(4, "big") + bytes(4)
            strangers = [await ForeignPeer.connect(a.server.port) for _ in range(16)]
            for stranger in strangers:
                stranger.connection.send(announced + bytes(3 << 19))
            await until(lambda: any(stranger.connection.closing for stranger in strangers))
            assert a.server.buffers.disconnected > 0
            b.links.send("a", frame)
            await until(lambda: a.received("b") == [frame, frame])
            assert a.lost("b") == 0
            for stranger in strangers:
                stranger.connection.abort()

    run(scenario)


def test_captured_handshake_is_worthless(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, _):
            handshake = Connecting(STRANGER, "a", SECRET)
            honest = await ForeignPeer.connect(a.server.port)
            hello = handshake.hello()
            second = handshake.answered(await honest.connection.request(hello), b"")
            captured = [encode_command(hello), encode_command(second), encode_message(ack(9), 1)]
            # Sent before, after and without the original.
            for frames in (captured, captured[1:], captured[:1] + captured):
                replaying = await ForeignPeer.connect(a.server.port)
                replaying.connection.send(b"".join(frames))
                await replaying.ended()
            handshake.proven(await honest.connection.request(second))
            again = await ForeignPeer.connect(a.server.port)
            again.connection.send(b"".join(captured))
            await again.ended()
            assert a.received("b") == []
            assert a.lost("b") == 1  # the proven one replaced that of the member

    run(scenario)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode_command(request_command(RequestCode.REPLICATE, body=bytes((1, 3)) + bytes(2 << 20))), "exceeds the"),
        (encode_message(ack(1), 1)[:-1] + b"\xff", "the checksum of a message Ack is wrong"),
        (encode_command(request_command(RequestCode.REPLICATE)), "has no header"),
        (encode_command(request_command(RequestCode.GET_BROKER_CONFIG)), "a link carries no requests with code 26"),
        (encode_message(ack(1), 1).replace(b"\x01\x04\x00\x00", b"\x01\x63\x00\x00"), "no kind 99"),
    ],
)
def test_defective_member_is_disconnected_with_the_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    async def scenario() -> None:
        a = MemberServer(tmp_path, "a")
        await a.start({"a": a.address, "b": (HOST, 1)})
        peer = await impostor(a)
        peer.send(ack(1))
        peer.connection.send(data)
        peer.connection.send(encode_message(ack(2), 1))
        await peer.ended()
        assert a.events == [Received("b", ack(1)), ConnectionLost("b")]
        assert [each.code for each in peer.told] == [RequestCode.LINK_REPLICA]
        assert reason in str(peer.told[0].remark)
        await a.stop()

    run(scenario)


def test_newer_proven_connection_of_a_member_replaces_the_older(tmp_path: Path) -> None:
    async def scenario() -> None:
        a = MemberServer(tmp_path, "a")
        links = await a.start({"a": a.address, "b": (HOST, 1)})
        older = await impostor(a, process="older")
        older.send(ack(1))
        await until(lambda: a.received("b") == [ack(1)])
        with pytest.raises(LinkError, match="the proof of member b is wrong"):
            await impostor(a, secret=b"not the secret of the group")
        older.send(ack(2))
        await until(lambda: len(a.events) == 2)
        newer = await impostor(a, process="newer")
        newer.send(ack(4))
        older.connection.send(encode_message(ack(3), 1))
        await older.ended()
        await until(lambda: len(a.events) == 4)
        assert a.events[2:] == [ConnectionLost("b"), Received("b", ack(4))]
        assert "member b has a newer connection" in str(older.told[0].remark)
        assert not newer.connection.closing
        assert links.receives_from("b")
        await a.stop()

    run(scenario)


def test_each_side_states_why_there_is_no_link(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        a = MemberServer(tmp_path, "a")
        b = MemberServer(tmp_path, "b", secret=b"the secret of another group")
        c = MemberServer(tmp_path, "c", group="broker-b")
        members = [a, b, c]
        addresses = {member.name: member.address for member in members}
        all_links = [await member.start(addresses) for member in members]
        await until(lambda: "the proof of member a is wrong" in str(all_links[0].problem("b")))
        await until(lambda: "the proof of member b is wrong" in str(all_links[1].problem("a")))
        await until(lambda: "this is member c of the group broker-b" in str(all_links[0].problem("c")))
        await until(lambda: "this is member a of the group broker-a" in str(all_links[2].problem("a")))
        await until(lambda: all_links[0].rejected["proof"] > 2 and all_links[0].rejected["group"] > 2)
        # The reason of a lasting problem is logged once, whatever the number of attempts.
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len([line for line in warnings if line.startswith("no link to member b")]) <= 2
        assert len([line for line in warnings if line.startswith("rejected a link")]) <= 3
        assert not any(member.events for member in members)
        for member in members:
            await member.stop()

    run(scenario)


def test_silent_peers_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "HANDSHAKE_TIMEOUT_MS", 50)

    async def scenario() -> None:
        with socket.create_server((HOST, 0)) as silent:
            a = MemberServer(tmp_path, "a")
            links = await a.start({"a": a.address, "b": silent.getsockname()})
            await until(lambda: "no response to request 30002 within 50 ms" in str(links.problem("b")))
            assert not links.send("b", ack(1))
            await a.stop()

    run(scenario)


def test_connection_that_stops_after_its_greeting_is_an_ordinary_idle_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        a = MemberServer(tmp_path, "a", channel_idle_ms=1_000)
        links = await a.start({"a": a.address, "b": (HOST, 1)})
        stranger = await ForeignPeer.connect(a.server.port)
        await stranger.hello(Connecting(STRANGER, "a", SECRET))
        assert len(links._accepting) == 1
        await stranger.ended()
        await until(lambda: len(links._accepting) == 0)
        await a.stop()

    run(scenario)


def test_killed_process_is_noticed_without_a_timeout(tmp_path: Path) -> None:
    async def scenario() -> None:
        a = MemberServer(tmp_path, "a")
        await a.start({"a": a.address, "b": (HOST, 1)})
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        arguments = [str(tmp_path / "process"), str(a.server.port)]
        (tmp_path / "process").mkdir()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, *arguments, env=environment)
        try:
            await until(lambda: a.received("b"))
        finally:
            process.kill()
            await process.wait()
        await until(lambda: a.lost("b"))
        assert a.links is not None
        assert not a.links.receives_from("b")
        await a.stop()

    run(scenario)


def test_both_ends_let_the_kernel_notice_a_vanished_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            assert a.links is not None
            assert b.links is not None
            outgoing = a.links._links["b"]._connection
            assert outgoing is not None
            for connection in (outgoing, b.links._incoming["a"].connection):
                own = connection._transport.get_extra_info("socket")
                assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 4_000
                assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
            client = await BrokerPeer.connect(a.server.port)
            (own,) = [
                session.connection._transport.get_extra_info("socket")
                for session in a.server.sessions._sessions.values()
                if not session.is_link
            ]
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
            client.connection.abort()

    run(scenario)
